"""TD-MPC2's world model: a latent that is trained to predict itself, rewards and ends, never pixels.

Source: Hansen, Su, Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control"
(ICLR 2024), equations 2 to 5 and the released code. The critics and the policy prior that
complete the system live in ``dreamsim.training.objectives.policy_prior`` and
``worldmodels.actors``; ``worldmodels.tdmpc2`` has the published sizes of all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from worldmodels import tasks
from worldmodels.heads import DiscreteRegression, binary_loss
from worldmodels.nets import Encoder, NormedLinear, SimNormed, check_sizes, mlp


class DecoderFree(nn.Module):
    """A deterministic latent world model. State is ``{"latent": (B, F)}``, and so is its view.

    ``encoder_layers`` hidden layers encode vectors; ``encoder`` makes another encoder of all observations, such as
    ``worldmodels.tdmpc2.PixelEncoder``, whose outputs (..., F) are points on the simplices. ``episodic`` adds the
    termination head (the released code's option for tasks that end early). ``decoder`` > 0 adds a
    network of that width which turns a latent back into observations; it is trained on a cut-off copy
    of the latent and never shapes it. ``shift`` > 0 moves images at random by up to so many pixels
    while training (the paper's 3). Rewards and observations stay in the environment's units.

    Where observations name a task (see ``worldmodels.tasks``), all networks also read its learned vector of
    ``embedding`` numbers, components of an action that do not count are read as 0, the state carries the
    task's observations, and the view is ``latent``, ``task`` (B, E), ``acts`` (B, A) and ``discount`` (B, 1).
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        latent: int = 512,
        width: int = 512,
        encoder_width: int = 256,
        channels: int = 32,
        group: int = 8,
        activation: str = "mish",
        bins: int = 101,
        low: float = -10.0,
        high: float = 10.0,
        decay: float = 0.5,
        consistency: float = 20.0,
        reward: float = 0.1,
        termination: float = 1.0,
        episodic: bool = False,
        decoder: int = 0,
        shift: int = 0,
        encoder_layers: int = 1,
        encoder: Callable[[spaces.Dict], nn.Module] | None = None,
        embedding: int = 96,
    ) -> None:
        super().__init__()
        check_sizes(encoder_layers=encoder_layers, embedding=embedding)
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self.decay, self.consistency, self.reward_weight = decay, consistency, reward
        self.termination_weight = termination
        seen, extra = observation_space, 0
        self.tasks: tasks.TaskEmbedding | None = None
        if tasks.named(observation_space):
            self.tasks, extra = tasks.TaskEmbedding(observation_space[tasks.NAME].shape[0], embedding), embedding
            seen = tasks.without(observation_space)
            observation_space = spaces.Dict({**seen.spaces, "task": spaces.Box(-1.0, 1.0, (embedding,))})
        self.encoder: nn.Module
        if encoder is None:
            end = [NormedLinear(encoder_width, encoder_width, activation) for _ in range(encoder_layers - 1)]
            last = SimNormed(encoder_width, latent, group)
            outputs = nn.Sequential(*end, last) if end else last
            self.encoder = Encoder(observation_space, outputs, encoder_width, channels, activation, shift)
        else:
            self.encoder = encoder(observation_space)
        self.dynamics = nn.Sequential(
            NormedLinear(latent + extra + action_size, width, activation),
            NormedLinear(width, width, activation),
            SimNormed(width, latent, group),
        )
        self.regression = DiscreteRegression(bins, low, high)
        self.reward = mlp(latent + extra + action_size, [width, width], bins, activation, zero=True)
        self.termination = mlp(latent + extra, [width, width], 1, activation) if episodic else None
        self.decoder = Decoder(seen, latent, decoder, activation) if decoder else None
        if self.decoder is None:
            # No power to decode (see dreamsim.core.protocols.find_power), rather than one that fails when asked.
            self.decode = None  # type: ignore[method-assign, assignment]
        parts = {"latent": spaces.Box(0.0, 1.0, (latent,))}
        if self.tasks is not None:
            parts["task"] = spaces.Box(-1.0, 1.0, (embedding,))
            parts |= {"acts": spaces.Box(0.0, 1.0, (action_size,)), "discount": spaces.Box(0.0, 1.0, (1,))}
        self.view_space = spaces.Dict(parts)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        """Return the belief after observations (B, ...): their latent."""
        state = {"latent": self._encode(obs)}
        return state if self.tasks is None else state | tasks.told(obs)

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        """Return the belief after seeing ``obs``; this model has no memory beyond it."""
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Dream one step from latents (B, F) under actions (B, A)."""
        both = self._both(state, action)
        after = {**state, "latent": self.dynamics(both)}
        return after, self.regression.decode(self.reward(both)), self._proceed(after)

    def view(self, state: dict[str, Tensor]) -> Obs:
        """Show the latent, and what a policy must know of its task."""
        if self.tasks is None:
            return state
        known = {"task": self.tasks(state[tasks.NAME]), "acts": state[tasks.ACTS]}
        return {"latent": state["latent"], **known, "discount": tasks.discount(state[tasks.STEPS])}

    def decode(self, state: dict[str, Tensor]) -> Obs:
        """Return vector observations (B, ...) as the filming decoder sees them."""
        if self.decoder is None:
            raise ValueError("this model has no decoder; train it with decoder > 0 to film its dreams")
        obs = self.decoder(state["latent"])
        return obs if self.tasks is None else obs | tasks.told(state)

    def fit_statistics(self, batch: Segment) -> None:
        """Set the units in which the decoder's errors are measured, from real windows."""
        if self.decoder is not None:
            self.decoder.fit_statistics(batch)

    def loss(self, batch: Segment) -> Learned:
        """Return consistency, reward (and termination, decoder) losses over windows (B, T)."""
        latent = self._encode({name: value[:, 0] for name, value in batch.obs.items()})
        with torch.no_grad():
            target = self._encode({name: value[:, 1:] for name, value in batch.obs.items()})
        known = {} if self.tasks is None else tasks.told(batch.obs)  # (B, T+1, ...)
        first = {name: value[:, 0] for name, value in known.items()}
        latents, inputs = [latent], []
        for action in batch.action.unbind(1):
            inputs.append(self._both({"latent": latents[-1], **first}, action))
            latents.append(self.dynamics(inputs[-1]))
        states = {"latent": torch.stack(latents, 1), **known}
        weight = step_weights(batch.mask, self.decay)
        difference = (states["latent"][:, 1:] - target).square().mean(-1)
        losses = {"consistency": self.consistency * (difference * weight).sum()}
        if batch.reward is not None:
            reward = self.regression.loss(self.reward(torch.stack(inputs, 1)), batch.reward)
            losses["reward"] = self.reward_weight * (reward * weight).sum()
        if self.termination is not None:
            # As released: every step of the window counts alike.
            ends = self._ends({name: value[:, 1:] for name, value in states.items()})
            terminated = binary_loss(ends, batch.terminated.float())
            losses["termination"] = self.termination_weight * (terminated * step_weights(batch.mask, 1.0)).sum()
        observed = torch.cat([latent.detach()[:, None], target], 1)
        if self.decoder is not None:
            losses["decoder"] = (self.decoder.error(observed, batch.obs)[:, 1:] * step_weights(batch.mask, 1.0)).sum()
        return Learned(losses, states, {"latent": observed, **known})

    def _encode(self, obs: Obs) -> Tensor:
        return self.encoder(obs if self.tasks is None else {**obs, "task": self.tasks(obs[tasks.NAME])})

    def _both(self, state: dict[str, Tensor], action: Tensor) -> Tensor:
        """Return what dynamics and reward read."""
        if self.tasks is None:
            return torch.cat([state["latent"], action], -1)
        return torch.cat([state["latent"], self.tasks(state[tasks.NAME]), action * state[tasks.ACTS]], -1)

    def _ends(self, state: dict[str, Tensor]) -> Tensor:
        """Return the logit (...) of having ended for good with this state."""
        known = [] if self.tasks is None else [self.tasks(state[tasks.NAME])]
        return self.termination(torch.cat([state["latent"], *known], -1)).squeeze(-1)

    def _proceed(self, state: dict[str, Tensor]) -> Tensor:
        if self.termination is None:
            return state["latent"].new_ones(state["latent"].shape[:-1])
        return torch.sigmoid(-self._ends(state))


def nano(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """A size that two cores train in minutes: 0.1M parameters, ReLU, the paper's bins cut to [-2, 8] at equal spacing.

    Its critic and policy are ``QEnsemble`` (2 members) and ``SquashedGaussian`` of width 128.
    """
    return DecoderFree(
        observation_space,
        action_space,
        latent=64,
        width=128,
        encoder_width=128,
        activation="relu",
        bins=51,
        low=-2,
        high=8,
        decoder=64,
    )


class Decoder(nn.Module):
    """Latents (..., F) to vector observations, for filming only; images are not decoded."""

    mean: Tensor
    std: Tensor

    def __init__(self, observation_space: spaces.Dict, latent: int, width: int, activation: str) -> None:
        super().__init__()
        parts = {name: part for name, part in observation_space.spaces.items() if part.dtype != "uint8"}
        self.shapes = {name: tuple(part.shape or ()) for name, part in parts.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.net = mlp(latent, [width], sum(self.sizes), activation)
        self.register_buffer("mean", torch.zeros(sum(self.sizes)))
        self.register_buffer("std", torch.ones(sum(self.sizes)))

    def forward(self, latent: Tensor) -> Obs:
        """Return observations (..., *shape) in the environment's units."""
        flat = self.net(latent) * self.std + self.mean
        pieces = torch.split(flat, self.sizes, -1)
        return {
            name: piece.unflatten(-1, shape) if len(shape) != 1 else piece
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def error(self, latent: Tensor, obs: Obs) -> Tensor:
        """Return the mean squared error (...) in units of each component's standard deviation."""
        return (self.net(latent) - (self._flat(obs, latent.dim() - 1) - self.mean) / self.std).square().mean(-1)

    def fit_statistics(self, batch: Segment) -> None:
        """Set mean and standard deviation; a component that does not vary keeps a unit of 1."""
        rows = self._flat(batch.obs, 2)[:, 1:][batch.mask > 0]
        self.mean.copy_(rows.mean(0))
        std = rows.std(0, unbiased=False)
        self.std.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))

    def _flat(self, obs: Obs, lead: int) -> Tensor:
        return torch.cat([obs[name].flatten(lead) for name in self.shapes], -1)


def step_weights(mask: Tensor, decay: float) -> Tensor:
    """Return the weight (B, T) of each step: decay ** t, padding 0, summing real steps to their mean."""
    powers = decay ** torch.arange(mask.shape[1], device=mask.device, dtype=mask.dtype)
    return mask * powers / mask.sum().clamp(min=1)
