"""An ensemble: its members lie side by side in the state, and their disagreement is a power."""

from __future__ import annotations

import functools

import torch
from contract.actor import Actor as Policy
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.bagging import bagged
from dreamsim.core.protocols import Uncertain, power
from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.envs.toy import Clock
from dreamsim.imagination.plan import MPPI, Deliberate

make_env = functools.partial(Clock, end=2, spread=5)
MEMBERS = 3


class Model(nn.Module):
    """State: ``{"members": (B, E, O)}``, what each member takes for the observation."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        seen, actions = observation_space["observation"].shape[0], action_space.shape[0]
        self.weight = nn.Parameter(0.3 * torch.randn(MEMBERS, seen + actions, seen + 2))
        self.noise = 0.05

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return {"members": obs["observation"][:, None].repeat(1, MEMBERS, 1)}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        told = self._tell(state["members"], action)
        members = told[..., :-2] + self.noise * torch.randn_like(told[..., :-2])
        return {"members": members}, told[..., -2].mean(-1), torch.sigmoid(told[..., -1] + 1).mean(-1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return {"latent": state["members"].mean(1)}

    def loss(self, batch: Segment) -> Learned:
        seen = batch.obs["observation"]
        states = seen[:, :, None].repeat(1, 1, MEMBERS, 1)
        told = self._tell(states[:, :-1].flatten(0, 1), batch.action.flatten(0, 1)).unflatten(0, batch.mask.shape)
        weight = (batch.mask / batch.mask.sum())[..., None] * bagged(batch.index, MEMBERS).T[:, None]
        losses = {
            "observation": ((told[..., :-2] - states[:, 1:]).square().sum(-1) * weight).sum(),
            "reward": ((told[..., -2] - batch.reward[..., None]).square() * weight).sum(),
        }
        return Learned(losses, {"members": states})

    def uncertainty(self, state: dict[str, Tensor], action: Tensor) -> Tensor:
        return self._tell(state["members"], action)[..., :-2].var(1).sum(-1)

    def _tell(self, members: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([members, action[:, None].expand(-1, MEMBERS, -1)], -1)
        moved = torch.einsum("bei,eio->beo", both, self.weight)
        return torch.cat([members + moved[..., :-2], moved[..., -2:]], -1)


class Cautious(nn.Module):
    """The same world, where doubt costs reward: what a planner dreams in."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.view, self._step, self._doubt = model.view, model.step, power(model, Uncertain)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        after, reward, proceed = self._step(state, action)
        return after, reward - self._doubt(state, action), proceed


def actor(model: Model, policy: Policy) -> Deliberate:
    small = {"horizon": 3, "samples": 16, "elites": 4, "proposals": 4, "iterations": 2}
    return Deliberate(model, MPPI(Cautious(model), policy, 1, **small))
