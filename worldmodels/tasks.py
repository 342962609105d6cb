"""What a model knows of its task when it learns several: a learned vector, which actions count, how far to look.

A task is named by three observations, as ``dreamsim.envs.tasks.Tasks`` gives them: ``task/name`` (K,) one-hot,
``task/acts`` (A,) with 1 where a component of the action does something and 0 where it is padding, and
``task/steps`` (1,), decisions of an episode.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Obs

NAME, ACTS, STEPS = "task/name", "task/acts", "task/steps"


class TaskEmbedding(nn.Module):
    """One learned vector of norm 1 or less for each of K tasks.

    Source: TD-MPC2 (Hansen et al. 2024), section 3.3 and the released code: 96 numbers, at first uniform in
    [-0.02, 0.02]. A vector that has grown longer than 1 is read as one of norm 1; the released code shortens
    the stored one.
    """

    def __init__(self, count: int, size: int = 96) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(count, size).uniform_(-0.02, 0.02))

    def forward(self, name: Tensor) -> Tensor:
        """Return the vectors (..., E) of tasks (..., K), one-hot; padding, all 0, has 0."""
        norm = torch.linalg.vector_norm(self.weight.detach(), dim=-1, keepdim=True)
        return name @ (self.weight / norm.clamp(min=1.0))


def named(observation_space: spaces.Dict) -> bool:
    """Say whether observations name a task. Raises ValueError where only a part of it is named."""
    found = [name for name in (NAME, ACTS, STEPS) if name in observation_space.spaces]
    if len(found) not in (0, 3):
        raise ValueError(
            f"a task is named by {NAME}, {ACTS} and {STEPS} together, and these observations have {', '.join(found)} "
            "alone; take dreamsim.envs.tasks.Tasks, or rename them"
        )
    return bool(found)


def told(obs: Obs) -> Obs:
    """Return the observations that name the task."""
    return {name: obs[name] for name in (NAME, ACTS, STEPS)}


def without(observation_space: spaces.Dict) -> spaces.Dict:
    """Return the space of all other observations."""
    parts = {name: part for name, part in observation_space.spaces.items() if name not in (NAME, ACTS, STEPS)}
    return spaces.Dict(parts)


def discount(steps: Tensor, share: float = 5.0, low: float = 0.95, high: float = 0.995) -> Tensor:
    """Return the discount (...) for episodes of ``steps`` (...) decisions: 1 - share / steps, within [low, high].

    Source: TD-MPC2's released code, whose heuristic this is.
    """
    return (1 - share / steps).clamp(low, high)
