"""TD-MPC2's critics and policy prior, and the policy trained by imagined value gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.parts import portable
from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.imagination.imagine import imagine
from dreamsim.imagination.judging import Judging, judging
from dreamsim.imagination.returns import discounts, lambda_returns
from dreamsim.training.objectives.protocol import Judged


class PolicyPrior(nn.Module):
    """Temporal-difference critics on the model's latents and a policy that ascends them.

    With ``imagined`` = 0 this is TD-MPC2: the policy maximises Q(z, pi(z)) / scale plus
    entropy on the latents of the batch. With ``imagined`` = H > 0 it maximises
    sum_{k<H} d^k r(z_k, a_k) + d^H Q(z_H, a_H) along H steps dreamt by the frozen model
    from real latents, gradients flowing through the dynamics (stochastic value gradients,
    Heess et al. 2015; Dreamer, Hafner et al. 2020). Nothing plans while learning.

    ``blend`` < 1 weighs shorter dreams in, as lambda-returns do: what is ascended is (1 - blend) Q(z_0, a_0) +
    blend (r_0 + d ((1 - blend) Q(z_1, a_1) + blend (r_1 + ...))). Critics alone know best where contacts make the
    model's slope wrong, long dreams where the critics are not yet right.

    Critic targets are lambda-returns along the window, on values min over two random target
    critics of Q(z', pi(z')); ``lam`` = 0, the default, gives TD-MPC2's one-step target, 1 sums
    rewards to the window's end.
    ``absorbing`` is the value of what follows a termination: 0, the default, makes an early end
    the best that costs can hope for; a task whose rewards are negative wants the worst return here.
    A view that has its own ``discount`` (several tasks) is judged by that; ``discount`` is for all others. The
    released code sets it by an episode's length, and 0.99 is what it takes for 500 decisions: see
    ``worldmodels.tasks.discount``, and give the planner the same.

    Source: TD-MPC2, equations 3 to 6 and the released code. Deviations: one backward pass and
    one optimiser step serve model, critics and policy together, where the released code
    steps the policy after the model, so that the policy sees model and critics of one step before; with several
    tasks the policy's loss does not move their vectors, as it does there unintended; an end is weighed by its
    probability, where the released planner takes one above a half for certain. Its Adam has ``epsilon`` 1e-5 for
    the policy alone.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        critic: Callable[[spaces.Dict, int], nn.Module],
        discount: float = 0.99,
        rate: float = 3e-4,
        encoder_rate: float = 0.3,
        clip: float = 20.0,
        target_rate: float = 0.01,
        decay: float = 0.5,
        value: float = 0.1,
        entropy: float = 1e-4,
        imagined: int = 0,
        blend: float = 1.0,
        lam: float = 0.0,
        absorbing: float = 0.0,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__()
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self._make_critic = portable(critic)  # whose copies cost nothing
        self.critic = critic(view_space, action_size)
        self.target = deepcopy(self.critic).requires_grad_(False).eval()
        self.scale = RunningScale(target_rate)
        self.discount, self.rate, self.encoder_rate, self.clip = discount, rate, encoder_rate, clip
        self.target_rate, self.decay, self.value, self.entropy = target_rate, decay, value, entropy
        self.imagined, self.blend = imagined, blend
        self.lam, self.absorbing, self.epsilon = lam, absorbing, epsilon

    def train(self, mode: bool = True) -> PolicyPrior:
        """Set the mode of all but the target critics, which drop nothing out."""
        super().train(mode)
        self.target.eval()
        return self

    def equip(self, policy: nn.Module, make: Callable) -> tuple[nn.Module, Callable]:
        """Return ``policy`` with the critics as its power to value, and a maker of such a policy from ``make``."""
        return Judging(policy, self.critic), functools.partial(judging, policy=make, critic=self._make_critic)

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """A model's ``encoder``, where it has one, at a fraction of the rate; the rest with the critics; the policy."""
        parts = dict(model.named_children())
        encoder = list(parts["encoder"].parameters()) if "encoder" in parts else []
        known = {id(p) for p in encoder}
        rest = [p for p in model.parameters() if id(p) not in known]
        shared = {"clip": self.clip, "clip_name": "model"}
        return [
            {"name": "encoder", "params": encoder, "lr": self.rate * self.encoder_rate, **shared},
            {"name": "model", "params": rest, "lr": self.rate, **shared},
            {"name": "critic", "params": list(self.critic.parameters()), "lr": self.rate, **shared},
            {
                "name": "policy",
                "params": list(policy.parameters()),
                "lr": self.rate,
                "clip": self.clip,
                "clip_name": "policy",
                "eps": self.epsilon,
            },
        ]

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Return the critics' and the policy's losses on windows (B, T)."""
        value, target = self._criticise(model, policy, batch, learned)
        with frozen(model, self.critic):
            improved, metrics = self._improve(model, policy, batch, learned)
        losses = {"value": self.value * value, "policy": improved}
        return Judged(losses, {"target": target, **metrics}, batch.action.shape[0] * self.imagined)

    @torch.no_grad()
    def settle(self) -> None:
        """Move the target critics towards the critics."""
        torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), self.target_rate)

    def _criticise(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> tuple[Tensor, Tensor]:
        """Return the critics' loss and the mean target."""
        now = model.view(tree.map(lambda leaf: leaf[:, :-1], learned.states))
        real = model.view(tree.map(lambda leaf: leaf[:, 1:], learned.observed))
        target = self._targets(policy, batch, real)
        value = (self.critic.fit(now, batch.action, target).mean(0) * self._weights(batch.mask)).sum()
        return value, target.mean()

    def _targets(self, policy: Any, batch: Segment, following: Obs) -> Tensor:
        """Return lambda-returns (B, T) of the real steps; a sum stops before padding as at the window's end."""
        with torch.no_grad():
            value = self._few(self.target, following, policy.act(following).action).amin(0)
            goes_on = torch.cat([batch.mask[:, 1:], torch.zeros_like(batch.mask[:, :1])], 1)
            proceed = (~batch.terminated).float()
            discount = discounts(following, self.discount)
            reward = batch.reward + discount * self.absorbing * (1 - proceed)
            return lambda_returns(reward, proceed, value, discount, self.lam * goes_on)

    def _few(self, critic: Any, view: Obs, action: Tensor) -> Tensor:
        """Return the values (2, ...) of two random critics."""
        pair = torch.randperm(critic.members, device=action.device)[:2] if critic.members > 2 else None
        return critic.value(view, action, pair)

    def _improve(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's loss and what to show; the caller has frozen all but the policy."""
        state, weight = self._starts(batch, learned)
        gain, entropy = self._dream(model, policy, state) if self.imagined else self._judge(policy, model.view(state))
        first = slice(None) if self.imagined else slice(None, None, batch.mask.shape[1] + 1)
        self.scale.update(gain.detach()[first])
        loss = -((gain / self.scale.value + self.entropy * entropy) * weight).sum()
        metrics = {"gain": gain.detach().mean(), "entropy": entropy.detach().mean(), "scale": self.scale.value.clone()}
        return loss, metrics

    def _judge(self, policy: Any, view: Obs) -> tuple[Tensor, Tensor]:
        """Return the critics' value (N,) of what the policy does in a view, and its entropy (N,)."""
        act = policy.act(view)
        return self._few(self.critic, view, act.action).mean(0), act.trace["entropy"]

    def _dream(self, model: Any, policy: Any, state: Any) -> tuple[Tensor, Tensor]:
        """Return discounted reward and value, and the discounted entropy, of dreams (N,)."""
        dreamt = imagine(model, policy, state, self.imagined)
        later = {name: part[:, 1:] for name, part in dreamt.view.items()}
        discount = discounts(later, self.discount)
        reward = dreamt.reward + discount * self.absorbing * (1 - dreamt.proceed)
        value, surprise = self._judge(policy, {name: part[:, -1] for name, part in later.items()})
        alive = torch.cumprod(discount * dreamt.proceed, 1)
        before = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)
        entropy = (before * dreamt.trace["entropy"]).sum(1) + alive[:, -1] * surprise
        if self.blend == 1:
            return (before * reward).sum(1) + alive[:, -1] * value, entropy
        seen = {name: part[:, :-1] for name, part in dreamt.view.items()}
        values = torch.cat([self._few(self.critic, seen, dreamt.action).mean(0), value[:, None]], 1)
        returns = lambda_returns(reward, dreamt.proceed, values[:, 1:], discount, self.blend)
        return torch.lerp(values[:, 0], returns[:, 0], self.blend), entropy

    def _starts(self, batch: Segment, learned: Learned) -> tuple[Any, Tensor]:
        """Return latents (N, ...) to improve the policy in, and their weights (N,).

        Without imagination all predicted latents of the windows, as TD-MPC2 does; with it
        the first, real one, since later ones are near what is imagined from it.
        """
        if self.imagined:
            state = tree.map(lambda leaf: leaf[:, 0], learned.observed)
            return state, batch.mask[:, 0] / batch.mask[:, 0].sum().clamp(min=1)
        state = tree.map(lambda leaf: leaf.detach().flatten(0, 1), learned.states)
        return state, self._weights(torch.cat([batch.mask[:, :1], batch.mask], 1)).flatten()

    def _weights(self, mask: Tensor) -> Tensor:
        powers = self.decay ** torch.arange(mask.shape[1], device=mask.device, dtype=mask.dtype)
        return mask * powers / mask.sum().clamp(min=1)


class RunningScale(nn.Module):
    """A running spread of values: the range from the 5th to the 95th percentile, at least 1.

    Source: TD-MPC2's released code (rate 0.01); DreamerV3 has the same with another rate.
    """

    value: Tensor

    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("value", torch.ones(()))

    @torch.no_grad()
    def update(self, sample: Tensor) -> None:
        """Move towards the spread of a sample (any shape)."""
        flat = sample.flatten().sort().values
        spread = _percentile(flat, 0.95) - _percentile(flat, 0.05)
        self.value.lerp_(spread.clamp(min=1.0), self.rate)


def _percentile(ordered: Tensor, share: float) -> Tensor:
    """Return the number below which ``share`` of an ordered sample (N,) lies, between its neighbours linearly."""
    place = share * (len(ordered) - 1)
    lower = int(place)
    return torch.lerp(ordered[lower], ordered[min(lower + 1, len(ordered) - 1)], place - lower)


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Let gradients flow through modules, but not into their parameters."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
