"""DreamerV3's actor-critic: a policy that learns from dreams by its likelihood, a critic from dreams and replay."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import Weighs, power
from dreamsim.core.types import Learned, Obs, Rollout, Segment
from dreamsim.imagination.imagine import imagine
from dreamsim.imagination.returns import lambda_returns
from dreamsim.training.objectives.protocol import Judged


class ActorCritic(nn.Module):
    """Dreams ``imagined`` steps from every real belief of a batch and learns from their lambda-returns R.

    The policy ascends sg((R - v) / max(1, S)) log pi(a) plus ``entropy`` times its entropy, S being the running
    range of returns (``ReturnRange``); no gradient passes through the dream. The critic regresses R and, for
    steadiness, the value of its own slow copy; the same along the window's real rewards, R then resting on the
    dreamt returns of the beliefs reached, weighted by ``replay`` and with its gradient into the world model.
    Every dreamt step counts with the probability that the dream came so far, discounted.

    ``critic`` makes what judges a view: ``judge(view)`` gives values and a function from targets to losses (see
    ``worldmodels.recurrent_actors.Value``). The policy needs the power ``Weighs``.

    Source: DreamerV3 (Hafner et al. 2025), equations 6 to 11 and the released code: critic targets on the critic
    itself (``slowtar`` off), the slow copy moved by 0.02, one optimiser for everything. Deviation: whether a dream's
    first state goes on is known from the recording and not asked of the model.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        critic: Callable[[spaces.Dict], nn.Module],
        horizon: float = 333.0,
        imagined: int = 15,
        lam: float = 0.95,
        entropy: float = 3e-4,
        replay: float = 0.3,
        slow_rate: float = 0.02,
        range_rate: float = 0.01,
        rate: float = 4e-5,
        clip: float = 0.3,
    ) -> None:
        super().__init__()
        self.critic = critic(view_space)
        self.slow = deepcopy(self.critic).requires_grad_(False)
        self.range = ReturnRange(range_rate)
        self.discount, self.imagined, self.lam, self.entropy = 1 - 1 / horizon, imagined, lam, entropy
        self.replay, self.slow_rate, self.rate, self.clip = replay, slow_rate, rate, clip

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """One group of all parameters, each tensor of which is clipped by its own norm."""
        everything = [*model.parameters(), *self.critic.parameters(), *policy.parameters()]
        return [{"name": "all", "params": everything, "lr": self.rate, "adaptive_clip": self.clip}]

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Return the losses of policy and critic on windows (B, T)."""
        rows = batch.mask.shape[0]
        starts = tree.map(lambda leaf: leaf[:, 1:].flatten(0, 1), learned.observed)
        with torch.no_grad():
            dreamt = imagine(model, policy, starts, self.imagined)
        going = (batch.mask * (~batch.terminated)).flatten()
        losses, returns, metrics = self._dreamt(policy, dreamt, going, batch.mask.sum().clamp(min=1))
        if batch.reward is not None and batch.mask.shape[1] > 1:
            losses["replay"] = self.replay * self._replayed(
                model, batch, learned, returns[:, 0].unflatten(0, (rows, -1))
            )
        return Judged(losses, metrics, dreamt.reward.numel())

    @torch.no_grad()
    def settle(self) -> None:
        """Move the slow critic towards the critic."""
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.critic.parameters()), self.slow_rate)

    def _dreamt(
        self, policy: Any, dreamt: Rollout, going: Tensor, count: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Return losses, lambda-returns (N, H) and what to show; ``going`` (N,) is 1 where a dream counts at all."""
        acted = {name: view[:, :-1] for name, view in dreamt.view.items()}
        value, fit = self.critic.judge(acted)
        with torch.no_grad():
            last = self.critic.value({name: view[:, -1:] for name, view in dreamt.view.items()})
            following = torch.cat([value[:, 1:], last], 1)
            returns = lambda_returns(dreamt.reward, dreamt.proceed, following, self.discount, self.lam)
            self.range.update(returns[going > 0])
            advantage = (returns - value) / self.range.value
            come = torch.cumprod(self.discount * dreamt.proceed, 1)[:, :-1]
            weight = going[:, None] * torch.cat([torch.ones_like(come[:, :1]), come], 1) / (count * self.imagined)
            slow = self.slow.value(acted)
        log_prob, entropy = power(policy, Weighs)(acted, dreamt.trace.get("sample", dreamt.action))
        losses = {
            "policy": -((log_prob * advantage + self.entropy * entropy) * weight).sum(),
            "value": ((fit(returns) + fit(slow)) * weight).sum(),
        }
        share = weight / weight.sum().clamp(min=1e-8)
        metrics = {
            "gain": (returns * share).sum(),
            "entropy": (entropy.detach() * share).sum(),
            "range": self.range.value.clone(),
        }
        return losses, returns, metrics

    def _replayed(self, model: Any, batch: Segment, learned: Learned, boot: Tensor) -> Tensor:
        """Return the critic's loss along real steps; ``boot`` (B, T) are the dreamt returns of the beliefs reached."""
        view: Obs = model.view(tree.map(lambda leaf: leaf[:, 1:-1], learned.states))
        _, fit = self.critic.judge(view)
        with torch.no_grad():
            mask = batch.mask[:, 1:]
            goes_on = torch.cat([mask[:, 1:], torch.ones_like(mask[:, :1])], 1)
            assert batch.reward is not None
            proceed = (~batch.terminated[:, 1:]).float()
            target = lambda_returns(batch.reward[:, 1:], proceed, boot[:, 1:], self.discount, self.lam * goes_on)
            slow = self.slow.value(view)
        return ((fit(target) + fit(slow)) * mask).sum() / mask.sum().clamp(min=1)


class ReturnRange(nn.Module):
    """A running range of returns: the 95th less the 5th percentile, each a running mean from 0, and at least 1.

    Source: DreamerV3's released code (rate 0.01, no debiasing).
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @property
    def value(self) -> Tensor:
        """The range."""
        return (self.high - self.low).clamp(min=1.0)

    @torch.no_grad()
    def update(self, sample: Tensor) -> None:
        """Move towards the percentiles of a sample (any shape); an empty one changes nothing."""
        if sample.numel():
            ordered = sample.flatten().sort().values
            for mean, share in ((self.low, 0.05), (self.high, 0.95)):
                place = share * (len(ordered) - 1)
                below = int(place)
                above = min(below + 1, len(ordered) - 1)
                mean.lerp_(torch.lerp(ordered[below], ordered[above], place - below), self.rate)
