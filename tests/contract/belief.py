"""A belief with write-back: a recurrent state that is stored beside what was seen, and gone on from."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from contract.actor import Actor as Policy  # noqa: F401
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.envs.toy import Clock
from dreamsim.imagination.imagine import Believer

actor = Believer
make_env = functools.partial(Clock, end=2, spread=5)


class Belief(NamedTuple):
    deter: Tensor  # (B, 8)
    stoch: Tensor  # (B, 4) drawn


class Model(nn.Module):
    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        seen = observation_space["observation"].shape[0]
        self.cell = nn.GRUCell(4 + action_space.shape[0], 8)
        self.prior, self.posterior = nn.Linear(8, 4), nn.Linear(8 + seen, 4)
        self.head = nn.Linear(12, seen + 2)  # observation, reward, logit of going on

    def start(self, obs: Obs) -> Belief:
        return self._see(torch.zeros(len(obs["observation"]), 8), obs)

    def update(self, state: Belief, action: Tensor, obs: Obs) -> Belief:
        return self._see(self._move(state, action), obs)

    def step(self, state: Belief, action: Tensor) -> tuple[Belief, Tensor, Tensor]:
        deter = self._move(state, action)
        state = Belief(deter, self.prior(deter) + 0.1 * torch.randn(len(deter), 4))
        told = self.head(torch.cat(state, -1))
        return state, told[:, -2], torch.sigmoid(told[:, -1] + 1)

    def view(self, state: Belief) -> Obs:
        return {"latent": torch.cat(state, -1)}

    def loss(self, batch: Segment) -> Learned:
        steps = [self.start({name: value[:, 0] for name, value in batch.obs.items()})]
        if batch.before is not None:
            steps = [batch.before.over(steps[0])]
        for t in range(batch.action.shape[1]):
            obs = {name: value[:, t + 1] for name, value in batch.obs.items()}
            steps.append(self.update(steps[-1], batch.action[:, t], obs))
        states = tree.stack(steps, 1)
        told, later = self.head(torch.cat(states, -1)[:, 1:]), tree.map(lambda leaf: leaf[:, 1:], states)
        errors = {
            "observation": (told[..., :-2] - batch.obs["observation"][:, 1:]).square().mean(-1),
            "reward": (told[..., -2] - batch.reward).square(),
            "prior": (self.prior(later.deter) - later.stoch).square().mean(-1),
            "end": nn.functional.binary_cross_entropy_with_logits(
                told[..., -1] + 1, (~batch.terminated).float(), reduction="none"
            ),
        }
        return Learned({name: (e * batch.mask).sum() / batch.mask.sum() for name, e in errors.items()}, states)

    def _move(self, state: Belief, action: Tensor) -> Tensor:
        return self.cell(torch.cat([state.stoch, action], -1), state.deter)

    def _see(self, deter: Tensor, obs: Obs) -> Belief:
        mean = self.posterior(torch.cat([deter, obs["observation"]], -1))
        return Belief(deter, mean + 0.1 * torch.randn_like(mean))
