"""How much a policy earns in the dream that it does not earn in reality: the exploitation gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from dreamsim.core import tree
from dreamsim.core.protocols import Decodes, MissingPower, Modes, Policy, WorldModel, find_power
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Episode, Obs, State
from dreamsim.evaluation.cuts import Batch, Cut, take
from dreamsim.evaluation.intervals import Interval, interval
from dreamsim.evaluation.openloop import sees_observations
from dreamsim.imagination.imagine import Believer, Greedy, imagine
from dreamsim.imagination.plan import Deliberate

ROWS = 32  # dreams at once


class Beside(NamedTuple):
    """The same policy from the same starts over the first ``horizon`` steps, dreamt and real."""

    name: str  # why this horizon: "15 steps", "trusted", "full"
    horizon: int
    dream: np.ndarray  # (n,) returns
    real: np.ndarray  # (n,)
    gap: Interval  # of dream - real, paired by start


def compare(
    model: WorldModel,
    policy: Policy,
    episodes: Sequence[Episode],
    codec: Codec,
    horizons: dict[str, int],
    context: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Beside]:
    """Dream from the starts of real episodes of ``policy`` and compare returns over the same steps.

    ``policy`` acts on real observations, as in reality; inside the dream it is led to the
    states by ``inside``. A dream sees the first ``context`` >= 0 real steps, then the
    policy acts. Rewards are summed undiscounted and weighted by the probability that the
    dream has not ended. A row counts over the same steps in both: where the real episode
    was cut short (a time limit), the dream is cut too; where it really terminated, later
    real rewards are 0 and what the dream goes on earning belongs to the gap.
    Raises MissingPower where the policy cannot act in this dream.
    """
    kept = [episode for episode in episodes if episode.reward is not None and len(episode.action) > context]
    if not kept:
        raise ValueError(f"none of {len(episodes)} episodes has rewards and more than {context} steps")
    cuts = [Cut(i, 0, len(episode.action) - context) for i, episode in enumerate(kept)]
    furthest = min(max(horizons.values()), max(cut.left for cut in cuts))
    dreams, reals = [], []
    with torch.no_grad(), Stream(seed, device):
        for start in tqdm(range(0, len(cuts), ROWS), "dreaming", delay=10, unit="batch", leave=False):
            batch = take(kept, cuts[start : start + ROWS], context + furthest, codec.scale, device)
            dream, real = _returns(model, policy, batch, codec, context, furthest)
            dreams.append(dream)
            reals.append(real)
    dream, real = np.concatenate(dreams), np.concatenate(reals)
    return [_beside(name, min(horizon, furthest), dream, real) for name, horizon in horizons.items() if horizon > 0]


def _returns(
    model: WorldModel, policy: Policy, batch: Batch, codec: Codec, context: int, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return dream and real returns (B, H) after each of the first H steps."""
    state = model.start(_at(batch.obs, 0))
    seen, actor = inside(model, policy, codec, model.view(state))
    memory, first, applied = None, torch.ones_like(batch.terminated), None
    for t in range(context):
        memory = actor.act(seen.view(state), memory, first, applied).memory
        first, applied = torch.zeros_like(first), batch.action[:, t]
        state = model.update(state, applied, _at(batch.obs, t + 1))
    rollout = imagine(seen, Bounded(actor), state, horizon, memory)
    alive = torch.cat([torch.ones_like(rollout.proceed[:, :1]), rollout.proceed.cumprod(1)[:, :-1]], 1)
    step = torch.arange(horizon, device=alive.device)
    counted = (step < batch.left[:, None]) | batch.terminated[:, None]
    dream = (rollout.reward * alive * counted).double().cumsum(1)
    assert batch.reward is not None  # ``compare`` keeps episodes with rewards only
    real = batch.reward[:, context:].double().cumsum(1)
    return dream.cpu().numpy(), real.cpu().numpy()


def _beside(name: str, horizon: int, dream: np.ndarray, real: np.ndarray) -> Beside:
    imagined, happened = dream[:, horizon - 1], real[:, horizon - 1]
    return Beside(name, horizon, imagined, happened, interval(imagined - happened))


def _at(obs: Obs, t: int) -> Obs:
    return tree.select(obs, (slice(None), t))


def inside(model: WorldModel, policy: Policy, codec: Codec, view: Obs) -> tuple[Any, Any]:
    """Return the model and the policy as ``imagine`` takes them, from a policy that acts on real observations.

    A policy that believes by this very model acts on its view of the belief, one that
    deliberates by it plans from the state. Every other one is shown observations: the
    model's view where that is what it shows, else what it decodes.
    """
    if isinstance(policy, Greedy):
        seen, inner = inside(model, policy.policy, codec, view)
        return seen, Greedy(inner)
    if isinstance(policy, Believer) and policy.model is model:
        return model, policy.policy
    if isinstance(policy, Deliberate) and policy.model is model:
        return Bare(model), Planned(policy.planner)
    if sees_observations(view, codec):
        return model, policy
    if find_power(model, Decodes) is None:
        raise MissingPower(
            f"{type(policy).__name__} acts on observations and {type(model).__name__} shows none: its dreams cannot "
            "be decoded (dreamsim.core.protocols.Decodes). Judge a policy that was trained on this model's view, or "
            "train the model with a decoder"
        )
    return Decoded(model), policy


class Bounded(nn.Module):
    """A policy whose actions stop at [-1, 1], where the real environment stops them too."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the policy's action (B, A), clipped."""
        act = self.policy.act(view, memory, first, applied)
        return act._replace(action=act.action.clamp(-1, 1))


class Planned(nn.Module):
    """A planner as a policy whose view is the model's whole state."""

    def __init__(self, planner: Any) -> None:
        super().__init__()
        self.planner = planner

    def act(self, view: State, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the first action (B, A) of a plan from a state (B, ...)."""
        return self.planner.plan(view, memory, first)

    def mode(self, view: State, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the first action (B, A) of the best plan, where the planner tells it from one that explores."""
        return (find_power(self.planner, Modes) or self.planner.plan)(view, memory, first)


class Bare(nn.Module):
    """A world model whose view is its whole state, for planners."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step."""
        return self.model.step(state, action)

    def view(self, state: State) -> State:
        """Show everything."""
        return state


class Decoded(nn.Module):
    """A world model whose view is what it decodes, for policies that act on real observations."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step."""
        return self.model.step(state, action)

    def view(self, state: State) -> Obs:
        """Show observations (B, ...) as the real environment would give them."""
        return self.model.decode(state)
