"""What a policy earns when its actions come late, as on a real robot."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from dreamsim.core.protocols import Policy
from dreamsim.core.spaces import Codec
from dreamsim.evaluation.episodes import evaluate_policy


class Delayed(gym.Wrapper):
    """Applies every action ``steps`` steps late; until the first one arrives, the middle of the action space.

    The policy is not told what was really applied, as it would not be on a robot.
    """

    def __init__(self, env: gym.Env, steps: int) -> None:
        super().__init__(env)
        self.steps = steps
        codec = Codec(env.observation_space, env.action_space)
        self._idle = codec.decode_action(np.zeros(codec.action_size, np.float32))
        self._coming: deque[Any] = deque()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._coming = deque([self._idle] * self.steps)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._coming.append(action)
        return self.env.step(self._coming.popleft())


def delayed_returns(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    delays: Sequence[int],
    episodes: int,
    seed: int,
    processes: int = 0,
    device: torch.device | str = "cpu",
) -> dict[int, np.ndarray]:
    """Return {delay in steps: returns (n,)}, from the same seeds as ``evaluate_policy`` without delay."""
    return {
        steps: evaluate_policy(
            functools.partial(_make, make_env, steps), policy, episodes, seed, processes, device=device
        ).returns
        for steps in delays
    }


def _make(make_env: Callable[[], gym.Env], steps: int) -> gym.Env:
    return Delayed(make_env(), steps)
