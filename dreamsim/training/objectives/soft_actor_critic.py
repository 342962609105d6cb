"""SAC: critics that count entropy as reward, and a policy whose temperature is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Act, Learned, Segment
from dreamsim.training.objectives.policy_prior import frozen
from dreamsim.training.objectives.protocol import Judged


class SoftActorCritic(nn.Module):
    """Soft value regression and a policy that ascends the lower critic plus its own entropy.

    Learns from the real steps of a batch and dreams nothing: over a model whose view is the
    observation this is plain model-free SAC, inside ``dreamsim.training.branched.Branched``
    it is MBPO's policy optimisation. ``critic`` makes critics with ``value(view, action)`` and
    ``fit(view, action, target)``, both (N, ...); the policy traces ``log_prob``. A truncated
    step counts on its future, a terminated one has none.

    Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), equations
    5 to 18, with the entropy target -A. Deviations: one backward pass and one optimiser step serve critics,
    policy and temperature together, so the policy sees the critics of one step before; gradients are clipped.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        critic: Callable[[spaces.Dict, int], nn.Module],
        discount: float = 0.99,
        rate: float = 3e-4,
        model_rate: float = 1e-3,
        clip: float = 100.0,
        target_rate: float = 5e-3,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Box):
            raise ValueError(f"SAC acts in a Box, got {action_space}; use objectives.policy_prior.PolicyPrior")
        size = action_space.shape[0]
        self.critic = critic(view_space, size)
        self.target = deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.entropy = -float(size)
        self.discount, self.rate, self.model_rate, self.clip = discount, rate, model_rate, clip
        self.target_rate = target_rate

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """Model, critics, policy and temperature, each clipped on its own."""
        parts = {
            "critic": self.critic.parameters(),
            "policy": policy.parameters(),
            "temperature": [self.log_temperature],
        }
        rates = {name: self.rate for name in parts} | {"model": self.model_rate}
        parts["model"] = model.parameters()
        return [{"name": n, "params": list(p), "lr": rates[n], "clip": self.clip} for n, p in parts.items()]

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Return the losses of critics, policy and temperature on windows (B, T)."""
        if batch.reward is None:
            raise ValueError("SAC learns from rewards, and these recordings have none")
        view = model.view(learned.observed)
        act = policy.act(view)
        now = {name: value[:, :-1] for name, value in view.items()}
        weight = batch.mask / batch.mask.sum().clamp(min=1)
        temperature = self.log_temperature.detach().exp()
        target = self._target(batch, view, act, temperature)
        value = (self.critic.fit(now, batch.action, target).sum(0) * weight).sum()
        log_prob = act.trace["log_prob"][:, :-1]
        with frozen(self.critic):
            worth = self.critic.value(now, act.action[:, :-1]).amin(0)
        improved = ((temperature * log_prob - worth) * weight).sum()
        entropy = -(log_prob.detach() * weight).sum()
        heat = self.log_temperature * (entropy - self.entropy)
        losses = {"value": value, "policy": improved, "temperature": heat}
        metrics = {"target": (target * weight).sum(), "entropy": entropy, "heat": temperature}
        return Judged(losses, metrics, 0)

    @torch.no_grad()
    def settle(self) -> None:
        """Move the target critics towards the critics."""
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), self.target_rate)

    @torch.no_grad()
    def _target(self, batch: Segment, view: dict[str, Tensor], act: Act, temperature: Tensor) -> Tensor:
        """Return soft one-step targets (B, T)."""
        after = {name: value[:, 1:] for name, value in view.items()}
        value = self.target.value(after, act.action[:, 1:]).amin(0) - temperature * act.trace["log_prob"][:, 1:]
        return batch.reward + self.discount * (~batch.terminated).float() * value
