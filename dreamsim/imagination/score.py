"""What a dreamt plan is worth: modules from a Rollout of N plans to scores (N,), the larger the better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dreamsim.core.protocols import Uncertain, Values, find_power, power
from dreamsim.core.types import Obs, Rollout, State
from dreamsim.imagination.returns import discounts


class Return(nn.Module):
    """The discounted reward of a dream plus ``value(view)`` (N,) of where it leads, if one is given.

    sum_t (prod_{k<t} d p_k) (r_t + d (1 - p_t) absorbing) + (prod_{t<H} d p_t) V, with p the probability
    of going on; a view's own ``discount`` comes before d. What follows an early end is worth ``absorbing``.
    It is 0 by default, which makes a quick end the best plan where all rewards are negative: such a task wants
    its worst return here.
    """

    def __init__(
        self, discount: float = 0.99, value: Callable[[Obs], Tensor] | None = None, absorbing: float = 0.0
    ) -> None:
        super().__init__()
        self.discount, self.value, self.absorbing = discount, value, absorbing

    def forward(self, dreamt: Rollout) -> Tensor:
        """Return the score (N,) of each plan."""
        discount = discounts({name: part[:, 1:] for name, part in dreamt.view.items()}, self.discount)
        alive = torch.cumprod(discount * dreamt.proceed, 1)
        reward = dreamt.reward
        if self.absorbing:
            reward = reward + discount * self.absorbing * (1 - dreamt.proceed)
        score = reward[:, 0] + (alive[:, :-1] * reward[:, 1:]).sum(1)
        return score if self.value is None else torch.addcmul(score, alive[:, -1], self.value(last(dreamt)))


class Leaf(nn.Module):
    """A value for ``Return`` from critics of actions: the mean of ``count`` random ones at an action of the policy.

    ``critic`` has ``members`` and ``value(view, action, members) -> (N, ...)``. Source: TD-MPC2's released
    code, which draws two of five critics anew at each scoring and samples the policy.
    """

    def __init__(self, policy: Any, critic: Any, count: int = 2) -> None:
        super().__init__()
        self.policy, self.critic, self.count = policy, critic, count

    def forward(self, view: Obs) -> Tensor:
        """Return the value (N,) of a view (N, ...)."""
        action, members = self.policy.act(view).action, self.critic.members
        chosen = torch.randperm(members, device=action.device)[: self.count] if members > self.count else None
        return self.critic.value(view, action, chosen).mean(0)


class Nearness(nn.Module):
    """Minus the squared distance between two parts of the last view, such as where a plan leads and a goal.

    The goal is part of the model's state and so of its view, where each row has its own. ``whole`` sums
    the distances after every step instead, which asks for getting there early and staying.
    """

    def __init__(self, part: str = "latent", goal: str = "goal", whole: bool = False) -> None:
        super().__init__()
        self.part, self.goal, self.first = part, goal, 1 if whole else -1

    def forward(self, dreamt: Rollout) -> Tensor:
        """Return the score (N,) of each plan."""
        for name in (self.part, self.goal):
            if name not in dreamt.view:
                raise KeyError(f"the view has no part {name!r} to measure a distance by; it has {sorted(dreamt.view)}")
        apart = dreamt.view[self.part][:, self.first :] - dreamt.view[self.goal][:, self.first :]
        return -apart.square().flatten(1).sum(1)


class Effort(nn.Module):
    """Minus the sum of squared actions along a plan."""

    def forward(self, dreamt: Rollout) -> Tensor:
        """Return the score (N,) of each plan."""
        return -dreamt.action.square().flatten(1).sum(1)


class Weighted(nn.Module):
    """A weighted sum of scores; ``parts`` are factories without arguments, as in a config."""

    def __init__(self, parts: Sequence[Callable[[], nn.Module]], weights: Sequence[float]) -> None:
        super().__init__()
        if len(parts) != len(weights):
            raise ValueError(f"{len(parts)} scores need as many weights, got {len(weights)}")
        self.parts, self.weights = nn.ModuleList(part() for part in parts), tuple(weights)

    def forward(self, dreamt: Rollout) -> Tensor:
        """Return the score (N,) of each plan."""
        return torch.stack([w * part(dreamt) for w, part in zip(self.weights, self.parts, strict=True)]).sum(0)


class Cautious(nn.Module):
    """A model's world in which doubt costs reward: each step's is lowered by ``weight`` times its uncertainty."""

    def __init__(self, model: Any, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.weight = model, weight
        self._doubt = power(model, Uncertain)

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step."""
        after, reward, proceed = self.model.step(state, action)
        return after, reward - self.weight * self._doubt(state, action), proceed

    def view(self, state: State) -> Obs:
        """Return the model's view."""
        return self.model.view(state)


def leaf_of(policy: Any) -> Callable[[Obs], Tensor] | None:
    """Return the value that a policy itself gives a view, where it has that power; a policy's state is its view."""
    return None if policy is None else find_power(policy, Values)


def last(dreamt: Rollout) -> Obs:
    """Return the last view (N, ...) of a dream."""
    return {name: part[:, -1] for name, part in dreamt.view.items()}
