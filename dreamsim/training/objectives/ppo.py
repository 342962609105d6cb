"""PPO: a policy that moves a little along what its newest steps were worth, and a critic of states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import Weighs, power
from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.imagination.returns import gae
from dreamsim.training.objectives.protocol import Judged


class Tried(NamedTuple):
    """Steps that a policy took a little while ago, real or dreamt, and what became of them."""

    view: Obs  # (N, ...)
    sample: Tensor  # (N, A) what the policy drew; the action itself where nothing was cut
    log_prob: Tensor  # (N,) of the sample, when it was drawn
    advantage: Tensor  # (N,)
    target: Tensor  # (N,) of the critic: the return


class ProximalPolicy(nn.Module):
    """Learns from exactly the steps just lived, in ``epochs`` passes over minibatches of ``batch`` of them.

    Its data is ``dreamsim.data.module.OnPolicy``. Advantages are computed once a round, with the critic
    before it learns from them, over each whole piece of an episode; the end of a piece that did not terminate counts
    on the value of its last observation, be it a time limit or the end of the round. ``critic`` makes what judges
    a view: ``value(view)`` and ``fit(view, target)``, both (N,). The policy traces ``log_prob`` and has the power
    ``Weighs``.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), equations 7 and 9 and algorithm 1, with
    the advantages normalised in each minibatch as its codes do. Deviations: policy and critic share no layers
    and are clipped apart, so the critic's loss needs no weight; neither observations nor rewards are
    normalised (``worldmodels.actors.PlainV`` has a unit); the critic's loss is not clipped.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        critic: Callable[[spaces.Dict], nn.Module],
        discount: float = 0.99,
        lam: float = 0.95,
        limit: float = 0.2,
        entropy: float = 0.0,
        epochs: int = 10,
        batch: int = 64,
        rate: float = 3e-4,
        model_rate: float = 1e-3,
        clip: float = 0.5,
    ) -> None:
        super().__init__()
        if epochs < 1 or batch < 2:
            raise ValueError(f"PPO needs 1 epoch and a batch of 2 steps or more, got {epochs} and {batch}")
        self.critic = critic(view_space)
        self.discount, self.lam, self.limit, self.entropy = discount, lam, limit, entropy
        self.epochs, self.batch = epochs, batch
        self.rate, self.model_rate, self.clip = rate, model_rate, clip

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """Model, critic and policy, each clipped on its own."""
        parts = {"model": model, "critic": self.critic, "policy": policy}
        return [
            {
                "name": name,
                "params": list(part.parameters()),
                "lr": self.model_rate if part is model else self.rate,
                "clip": self.clip,
            }
            for name, part in parts.items()
        ]

    def unfold(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Iterator[Segment]:
        """Yield minibatches of single steps, each step of a round (B, T) once in every epoch."""
        steps = self._judged(model.view(learned.observed), batch)
        count = len(steps.action)
        for _ in range(self.epochs):
            for rows in torch.randperm(count, device=steps.action.device).tensor_split(max(1, count // self.batch)):
                yield tree.select(steps, rows)

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Return the losses of policy and critic on steps that ``unfold`` judged."""
        if "advantage" not in batch.trace:
            raise ValueError("PPO learns from the steps that its unfold(...) yields, as Learner.parts does")
        view = {name: value[:, 0] for name, value in model.view(learned.observed).items()}
        trace = {name: value[:, 0] for name, value in batch.trace.items()}
        sample = trace.get("sample", batch.action[:, 0])
        return self.judge(policy, Tried(view, sample, trace["log_prob"], trace["advantage"], trace["return"]))

    def judge(self, policy: Any, tried: Tried) -> Judged:
        """Return the losses of policy and critic on steps (N,), real or dreamt."""
        log_prob, entropy = power(policy, Weighs)(tried.view, tried.sample)
        change = log_prob - tried.log_prob
        spread = tried.advantage.std(unbiased=False)
        improved = surrogate(change.exp(), (tried.advantage - tried.advantage.mean()) / (spread + 1e-8), self.limit)
        losses = {"value": self.critic.fit(tried.view, tried.target).mean(), "policy": -improved.mean()}
        if self.entropy:
            losses["bonus"] = -self.entropy * entropy.mean()
        with torch.no_grad():
            metrics = {
                "target": tried.target.mean(),
                "entropy": entropy.mean(),
                "divergence": (change.exp() - 1 - change).mean(),
                "clipped": ((change.exp() - 1).abs() > self.limit).float().mean(),
            }
        return Judged(losses, metrics, 0)

    def settle(self) -> None:
        """Follow an optimiser step: nothing has to."""

    @torch.no_grad()
    def _judged(self, view: Obs, batch: Segment) -> Segment:
        """Return the real steps of a round (B, T) as windows (N, 1) that trace their advantage and return."""
        if batch.reward is None or "log_prob" not in batch.trace:
            missing = "rewards" if batch.reward is None else "log_prob in the policy's trace"
            raise ValueError(f"PPO learns from steps that record {missing}; these do not")
        value = self.critic.value(view)
        real = batch.mask.bool()
        ended = torch.cat([~real[:, 1:], torch.ones_like(real[:, :1])], 1)
        advantage = gae(batch.reward, batch.terminated, ended, value[:, :-1], value[:, 1:], self.discount, self.lam)
        trace = {**batch.trace, "advantage": advantage, "return": advantage + value[:, :-1]}
        time = torch.arange(real.shape[1], device=real.device)
        place = torch.stack(torch.broadcast_tensors(batch.index[:, :1], batch.index[:, 1:] + time), -1)
        return Segment(
            {name: torch.stack([part[:, :-1][real], part[:, 1:][real]], 1) for name, part in batch.obs.items()},
            batch.action[real][:, None],
            batch.reward[real][:, None],
            batch.terminated[real][:, None],
            batch.mask[real][:, None],
            {name: part[real][:, None] for name, part in trace.items()},
            None,
            place[real],
        )


def surrogate(ratio: Tensor, advantage: Tensor, limit: float) -> Tensor:
    """Return min(r A, clip(r, 1 - limit, 1 + limit) A), which no longer pays for moving further than the limit."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - limit, 1 + limit) * advantage)
