"""Acting by looking ahead: planners, and the policy that acts by one on real observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.types import Act, Obs, State
from dreamsim.imagination.imagine import Script, believe, imagine


class Deliberate(nn.Module):
    """Acts on real observations by planning from the model's belief.

    Memory is ``{"state", "action", "plan"}``: the belief, the last action asked for, and
    what the planner wants to remember.
    """

    def __init__(self, model: Any, planner: Any) -> None:
        super().__init__()
        self.model = model
        self.planner = planner

    @torch.no_grad()
    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the first action (B, A) of the best plan from real observations (B, ...)."""
        state = believe(self.model, view, memory, first, applied)
        act = self.planner.plan(state, None if memory is None else memory["plan"], first)
        return act._replace(memory={"state": state, "action": act.action, "plan": act.memory})


class MPPI(nn.Module):
    """Model predictive path integral planning with policy proposals, as TD-MPC2 plans.

    Plans of H = ``horizon`` actions are drawn from a normal around the last plan, shifted by
    one step, together with ``proposals`` plans dreamt by ``policy``; the best ``elites`` are
    averaged with weights exp(temperature * (score - best)) and give the next normal.
    A plan's score is the discounted return of the dream plus ``value(view)`` (B,) at its end
    where one is given. Memory is the mean plan (B, H, A). Source: TD-MPC2, section 3.3 and
    the released code (512 samples, 64 elites, 24 proposals, 6 iterations, std in [0.05, 2]).
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        action_size: int,
        horizon: int = 3,
        samples: int = 512,
        elites: int = 64,
        proposals: int = 24,
        iterations: int = 6,
        temperature: float = 0.5,
        std_low: float = 0.05,
        std_high: float = 2.0,
        discount: float = 0.99,
        value: Callable[[Obs], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not 0 < elites <= samples + (proposals if policy is not None else 0):
            raise ValueError(f"elites must be between 1 and the number of plans, got {elites} of {samples}")
        self.model, self.policy, self.action_size, self.value = model, policy, action_size, value
        self.horizon, self.samples, self.elites = horizon, samples, elites
        self.proposals = proposals if policy is not None else 0
        self.iterations, self.temperature, self.discount = iterations, temperature, discount
        self.std_low, self.std_high = std_low, std_high

    @torch.no_grad()
    def plan(self, state: State, memory: Any = None, first: Tensor | None = None) -> Act:
        """Return an action (B, A) drawn from the refitted plan; ``first`` (B,) rows start from nothing."""
        rows = tree.batch_size(state)
        mean = self._shifted(rows, next(tree.leaves(state)), memory, first)
        std = torch.full_like(mean, self.std_high)
        proposed = self._propose(state, rows)
        for _ in range(self.iterations):
            noise = torch.randn(rows, self.samples, *mean.shape[1:], device=mean.device)
            plans = torch.cat([proposed, (mean[:, None] + std[:, None] * noise).clamp(-1, 1)], 1)
            score, place = self._score(state, plans).topk(self.elites, 1)
            elite = plans.gather(1, place[..., None, None].expand(-1, -1, *mean.shape[1:]))
            weight = torch.softmax(self.temperature * (score - score[:, :1]), 1)[..., None, None]
            mean = (weight * elite).sum(1)
            std = ((weight * (elite - mean[:, None]).square()).sum(1)).sqrt().clamp(self.std_low, self.std_high)
        chosen = elite[torch.arange(rows), torch.multinomial(weight[..., 0, 0], 1)[:, 0]]
        return Act(chosen[:, 0], mean)

    def _shifted(self, rows: int, like: Tensor, memory: Any, first: Tensor | None) -> Tensor:
        fresh = torch.zeros(rows, self.horizon, self.action_size, device=like.device)
        if memory is None:
            return fresh
        moved = torch.cat([memory[:, 1:], fresh[:, :1]], 1)
        return moved if first is None else tree.where(first, fresh, moved)

    def _propose(self, state: State, rows: int) -> Tensor:
        if self.policy is None or not self.proposals:
            return torch.empty(rows, 0, self.horizon, self.action_size, device=next(tree.leaves(state)).device)
        dreamt = imagine(self.model, self.policy, _repeat(state, self.proposals), self.horizon)
        return dreamt.action.unflatten(0, (rows, self.proposals))

    def _score(self, state: State, plans: Tensor) -> Tensor:
        rows, count = plans.shape[:2]
        dreamt = imagine(self.model, Script(plans.flatten(0, 1)), _repeat(state, count), self.horizon)
        alive = torch.cumprod(torch.cat([torch.ones_like(dreamt.proceed[:, :1]), self.discount * dreamt.proceed], 1), 1)
        score = (alive[:, :-1] * dreamt.reward).sum(1)
        if self.value is not None:
            score = score + alive[:, -1] * self.value({name: view[:, -1] for name, view in dreamt.view.items()})
        return score.unflatten(0, (rows, count))


def _repeat(state: State, count: int) -> State:
    return tree.map(lambda leaf: leaf.repeat_interleave(count, 0), state)
