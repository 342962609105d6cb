"""How a policy acts while it learns."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import Modes, find_power
from dreamsim.core.types import Act, Obs
from dreamsim.imagination.imagine import random_action
from dreamsim.imagination.proposals import Actions


class Explorer(nn.Module):
    """Base of exploring policies: wraps ``policy`` and follows the progress of a run.

    ``anneal(progress)`` is told the share of the run's environment steps that are done, in
    [0, 1]; ``begin(warming)`` says whether the policy has learned nothing yet.
    """

    progress: Tensor
    warming: Tensor

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        self.register_buffer("progress", torch.zeros(()))
        self.register_buffer("warming", torch.ones((), dtype=torch.bool))

    def anneal(self, progress: float, warming: bool) -> None:
        """Tell the share of the run that is done and whether the policy is still to be ignored."""
        self.progress.fill_(progress)
        self.warming.fill_(warming)


class Noisy(Explorer):
    """Adds noise to the typical action: std from ``high`` to ``low`` over the first ``until`` of a run.

    Noise is correlated in time, n' = c n + sqrt(1 - c^2) e: slow noise moves a body where
    white noise only shakes it (cf. Eberhard et al. 2023). With ``spread`` = s > 0 row i of N
    has its own multiple of the std, from 1 - s to 1 + s, so that some rows stay near the
    policy while others wander (cf. FastTD3's noise per environment). While the run warms up the policy is ignored
    and std is 1. For actions in a Box. Memory is ``{"noise": (B, A), "inner": ...}``.
    """

    def __init__(
        self,
        policy: Any,
        high: float = 0.5,
        low: float = 0.15,
        until: float = 0.6,
        correlation: float = 0.85,
        spread: float = 0.7,
    ) -> None:
        super().__init__(policy)
        self.high, self.low, self.until, self.correlation, self.spread = high, low, until, correlation, spread

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on a view (B, ...), actions in [-1, 1]."""
        choose = find_power(self.policy, Modes) or self.policy.act
        inner = choose(view, None if memory is None else memory["inner"], first, applied)
        fresh = torch.randn_like(inner.action)
        noise = fresh
        if memory is not None:
            noise = self.correlation * memory["noise"] + (1 - self.correlation**2) ** 0.5 * fresh
            noise = noise if first is None else tree.where(first, fresh, noise)
        action = noise if bool(self.warming) else inner.action + self._std(len(noise)).to(noise) * noise
        return Act(action.clamp(-1, 1), {"noise": noise, "inner": inner.memory}, inner.trace)

    def _std(self, rows: int) -> Tensor:
        share = min(float(self.progress) / self.until, 1.0)
        std = self.high + (self.low - self.high) * share
        return std * torch.linspace(1 - self.spread, 1 + self.spread, rows)[:, None] if rows > 1 else torch.tensor(std)


class AsItIs(Explorer):
    """Acts by the policy's own samples from the first step on, which is what on-policy learning weighs."""

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on a view (B, ...) as the policy does."""
        return self.policy.act(view, memory, first, applied)


class Planned(Explorer):
    """Acts on real observations as its planner explores; at random while the run warms up, without planning.

    ``policy`` is a ``Deliberate``. What it believes begins with the first observation that it plans from.
    """

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on real observations (B, ...)."""
        if not bool(self.warming):
            return self.policy.act(view, memory, first, applied)
        rows = len(next(iter(view.values())))
        return Act(self.policy.planner.actions.uniform(rows))


class Sampled(Explorer):
    """Acts by samples of the policy's own distribution; at random while the run warms up.

    With probability ``random``, annealed to 0 over the first ``until`` of a run, a row takes
    a random action: one-hot for Discrete (``discrete`` True), else uniform in [-1, 1].
    """

    def __init__(self, policy: Any, discrete: bool = False, random: float = 0.3, until: float = 0.6) -> None:
        super().__init__(policy)
        self.discrete, self.random, self.until = discrete, random, until

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on a view (B, ...)."""
        act = self.policy.act(view, memory, first, applied)
        share = 1.0 if bool(self.warming) else self.random * max(0.0, 1 - float(self.progress) / self.until)
        swap = torch.rand(len(act.action), device=act.action.device) < share
        return act._replace(action=tree.where(swap, random_action(act.action, self.discrete), act.action))


class AtRandom(nn.Module):
    """Acts at random, numbers uniform in [-1, 1] and every option as likely: for runs in which only a planner acts."""

    def __init__(self, view_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.actions = Actions(action_space)

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return random actions (B, A) for a view (B, ...)."""
        return Act(self.actions.uniform(len(next(iter(view.values())))))
