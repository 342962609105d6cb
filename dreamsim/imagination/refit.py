"""What is learned from scored plans: the belief about good ones, by the elite or by gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dreamsim.imagination.proposals import Actions

BAD = -1e30  # the score of a plan whose own is not a finite number


class Scored(NamedTuple):
    """Plans of B rows and what they are worth."""

    plans: Tensor  # (B, S, H, A)
    score: Tensor  # (B, S), finite

    def join(self, other: Scored | None) -> Scored:
        """Return these plans and others of the same rows."""
        if other is None:
            return self
        return Scored(torch.cat([self.plans, other.plans], 1), torch.cat([self.score, other.score], 1))

    def best(self, count: int) -> Scored:
        """Return the ``count`` best plans, or all there are, best first."""
        score, place = self.score.topk(min(count, self.score.shape[1]), 1)
        return Scored(self.plans.gather(1, place[..., None, None].expand(-1, -1, *self.plans.shape[2:])), score)


class Fitted(NamedTuple):
    """The belief about good plans, and the plans it comes from."""

    mean: Tensor  # (B, H, A) a centre: see Actions
    std: Tensor  # (B, H, A) of numbers; without meaning for choices
    elite: Scored  # best first
    weight: Tensor  # (B, K) of the elite; sums to 1
    carried: Tensor | None = None  # (B, S, H, A) what a gradient made of the plans
    memory: Any = None  # the refit's own, from one iteration to the next


class Reweigh(nn.Module):
    """Mean and spread of the ``elites`` best plans, each weighted by exp(temperature * (score - best)).

    Temperature 0 is CEM, one elite predictive sampling, TD-MPC2's MPPI has 64 elites and 0.5. ``momentum`` is
    the share of the last belief that stays. A plan with a score that is no finite number weighs nothing
    beside one that has one.
    """

    differentiates = False

    def __init__(
        self,
        actions: Actions,
        elites: int,
        temperature: float = 0.0,
        momentum: float = 0.0,
        std_low: float = 0.0,
        std_high: float = 2.0,
    ) -> None:
        super().__init__()
        self.actions, self.elites, self.temperature, self.momentum = actions, elites, temperature, momentum
        self.std_low, self.std_high = std_low, std_high

    def forward(self, mean: Tensor, std: Tensor, scored: Scored, memory: Any) -> Fitted:
        """Return the belief after ``scored``; ``mean`` and ``std`` (B, H, A) are the one before."""
        elite = scored.best(self.elites)
        logits = self.temperature * (elite.score - elite.score[:, :1])
        weight = torch.softmax(logits.masked_fill(elite.score == BAD, BAD), 1)
        share = weight[..., None, None]
        centre = (share * elite.plans).sum(1)
        spread = (share * (elite.plans - centre[:, None]).square()).sum(1).sqrt().clamp(self.std_low, self.std_high)
        if self.momentum:
            centre, spread = centre.lerp(mean, self.momentum), spread.lerp(std, self.momentum)
        return Fitted(self.actions.soften(centre), spread, elite, weight)


class Ascend(nn.Module):
    """Improves every plan by a step of Adam up the gradient of its score, back into the space of actions.

    Choices move on their simplices. The belief's mean is the best plan that was scored.
    """

    differentiates = True

    def __init__(self, actions: Actions, rate: float) -> None:
        super().__init__()
        self.actions, self.rate = actions, rate

    def forward(self, mean: Tensor, std: Tensor, scored: Scored, memory: Any) -> Fitted:
        """Return the belief after ``scored``, whose plans require gradients."""
        if not scored.score.requires_grad:
            raise ValueError(
                "no gradient leads from scores to plans; use a sampling planner such as CEM for this model"
            )
        (slope,) = torch.autograd.grad(scored.score, scored.plans, torch.ones_like(scored.score))
        scored = Scored(scored.plans.detach(), scored.score.detach())
        step, memory = self._step(self.actions.tangent(slope.nan_to_num(0, 0, 0)), memory)
        elite = scored.best(1)
        carried = self.actions.project(scored.plans + self.rate * step)
        return Fitted(elite.plans[:, 0], std, elite, torch.ones_like(elite.score), carried, memory)

    def _step(self, slope: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Return Adam's step (betas 0.9, 0.999) and its moments."""
        count, first, second = (0, torch.zeros_like(slope), torch.zeros_like(slope)) if memory is None else memory
        count = count + 1
        first = first.lerp(slope, 0.1)
        second = second.lerp(slope.square(), 0.001)
        scale = (second / (1 - 0.999**count)).sqrt() + 1e-8
        return first / (1 - 0.9**count) / scale, (count, first, second)
