"""A chunk policy: K actions a step, K observations back, of which an early end leaves fewer; rewards summed."""

from __future__ import annotations

import torch
from contract.actor import Actor as Policy  # noqa: F401
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.envs.adapt import Chunk
from dreamsim.envs.toy import Clock
from dreamsim.imagination.imagine import Believer

LENGTH = 3
actor = Believer


def make_env() -> Chunk:
    return Chunk(Clock(end=4, spread=9), LENGTH)


class Model(nn.Module):
    """State: ``{"chunk": (B, K, O), "frames": (B, 1)}``, the newest chunk and how much of it is real."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.shape = observation_space["observation"].shape
        seen, actions = self.shape[-1], action_space.shape[0]
        self.net = nn.Linear(seen + actions, self.shape[0] * seen + 2)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return {"chunk": obs["observation"], "frames": obs["frames"]}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        chunk, reward, logit = self._tell(state, action)
        full = torch.full_like(state["frames"], self.shape[0])
        return {"chunk": chunk, "frames": full}, reward, torch.sigmoid(logit + 1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return {"latent": self._newest(state)}

    def loss(self, batch: Segment) -> Learned:
        seen, frames = batch.obs["observation"], batch.obs["frames"]
        before = {"chunk": seen[:, :-1].flatten(0, 1), "frames": frames[:, :-1].flatten(0, 1)}
        told, reward, _ = self._tell(before, batch.action.flatten(0, 1))
        real = torch.arange(self.shape[0]) < frames[:, 1:]  # (B, T, K) what the episode's end left
        error = ((told.unflatten(0, batch.mask.shape) - seen[:, 1:]).square().mean(-1) * real).sum(-1)
        error = error + (reward.unflatten(0, batch.mask.shape) - batch.reward).square()
        return Learned({"chunk": (error * batch.mask).sum() / batch.mask.sum()}, {"chunk": seen, "frames": frames})

    def _tell(self, state: dict[str, Tensor], action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        newest = self._newest(state)
        told = self.net(torch.cat([newest, action], -1))
        return told[:, :-2].unflatten(-1, self.shape) + newest[:, None], told[:, -2], told[:, -1]

    def _newest(self, state: dict[str, Tensor]) -> Tensor:
        last = state["frames"].long().clamp(1, self.shape[0]) - 1
        return state["chunk"].gather(1, last[..., None].expand(-1, 1, self.shape[1]))[:, 0]
