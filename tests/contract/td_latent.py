"""A TD latent: encoded at every step, dreamt open loop in the loss, planned in; it has no memory of its own."""

from __future__ import annotations

import functools

import torch
from contract.actor import Actor as Policy
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.envs.toy import Line
from dreamsim.imagination.plan import MPPI, Deliberate

make_env = functools.partial(Line, end=5)


class Model(nn.Module):
    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        actions = action_space.shape[0]
        self.encoder = nn.Linear(observation_space["observation"].shape[0], 6)
        self.dynamics, self.reward, self.goes_on = nn.Linear(6 + actions, 6), nn.Linear(6 + actions, 1), nn.Linear(6, 1)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return {"latent": torch.tanh(self.encoder(obs["observation"]))}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        both = torch.cat([state["latent"], action], -1)
        latent = torch.tanh(self.dynamics(both))
        return {"latent": latent}, self.reward(both)[:, 0], torch.sigmoid(self.goes_on(latent)[:, 0] + 1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return state

    def loss(self, batch: Segment) -> Learned:
        with torch.no_grad():
            observed = self.start(batch.obs)["latent"]
        state = self.start({name: value[:, 0] for name, value in batch.obs.items()})
        latents, rewards = [state["latent"]], []
        for t in range(batch.action.shape[1]):
            state, reward, _ = self.step(state, batch.action[:, t])
            latents.append(state["latent"])
            rewards.append(reward)
        states, weight = torch.stack(latents, 1), batch.mask / batch.mask.sum()
        consistency = ((states - observed)[:, 1:].square().mean(-1) * weight).sum()
        reward = ((torch.stack(rewards, 1) - batch.reward).square() * weight).sum()
        return Learned({"consistency": consistency, "reward": reward}, {"latent": states}, {"latent": observed})


def actor(model: Model, policy: Policy) -> Deliberate:
    small = {"horizon": 3, "samples": 16, "elites": 4, "proposals": 4, "iterations": 2}
    return Deliberate(model, MPPI(model, policy, 1, **small))
