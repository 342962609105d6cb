"""TD-MPC2's world model: a latent that is trained to predict itself, rewards and ends, never pixels.

Source: Hansen, Su, Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control"
(ICLR 2024), equations 2 to 5 and the released code. The critics and the policy prior that
complete the system live in ``dreamsim.training.objectives.policy_prior`` and
``worldmodels.actors``; the presets of ``configs/`` put the three together.
"""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from worldmodels.heads import DiscreteRegression, binary_loss
from worldmodels.nets import Encoder, NormedLinear, SimNormed, mlp


class DecoderFree(nn.Module):
    """A deterministic latent world model. State is ``{"latent": (B, F)}``, and so is its view.

    ``episodic`` adds the termination head (the released code's option for tasks that end
    early). ``decoder`` > 0 adds a network of that width which turns a latent back into
    observations; it is trained on a cut-off copy of the latent and never shapes it.
    ``shift`` > 0 moves images at random by up to so many pixels while training (the paper's 3).
    Rewards and observations stay in the environment's units.
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
    ) -> None:
        super().__init__()
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self.decay, self.consistency, self.reward_weight = decay, consistency, reward
        self.termination_weight = termination
        self.encoder = Encoder(
            observation_space, SimNormed(encoder_width, latent, group), encoder_width, channels, activation, shift
        )
        self.dynamics = nn.Sequential(
            NormedLinear(latent + action_size, width, activation),
            NormedLinear(width, width, activation),
            SimNormed(width, latent, group),
        )
        self.regression = DiscreteRegression(bins, low, high)
        self.reward = mlp(latent + action_size, [width, width], bins, activation, zero=True)
        self.termination = mlp(latent, [width, width], 1, activation) if episodic else None
        self.decoder = Decoder(observation_space, latent, decoder, activation) if decoder else None
        if self.decoder is None:
            # No power to decode (see dreamsim.core.protocols.find_power), rather than one that fails when asked.
            self.decode = None  # type: ignore[method-assign, assignment]
        self.view_space = spaces.Dict({"latent": spaces.Box(0.0, 1.0, (latent,))})

    def start(self, obs: Obs) -> dict[str, Tensor]:
        """Return the belief after observations (B, ...): their latent."""
        return {"latent": self.encoder(obs)}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        """Return the belief after seeing ``obs``; this model has no memory beyond it."""
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Dream one step from latents (B, F) under actions (B, A)."""
        both = torch.cat([state["latent"], action], -1)
        latent = self.dynamics(both)
        reward = self.regression.decode(self.reward(both))
        return {"latent": latent}, reward, self._proceed(latent)

    def view(self, state: dict[str, Tensor]) -> Obs:
        """Show the latent."""
        return state

    def decode(self, state: dict[str, Tensor]) -> Obs:
        """Return vector observations (B, ...) as the filming decoder sees them."""
        if self.decoder is None:
            raise ValueError("this model has no decoder; train it with decoder > 0 to film its dreams")
        return self.decoder(state["latent"])

    def fit_statistics(self, batch: Segment) -> None:
        """Set the units in which the decoder's errors are measured, from real windows."""
        if self.decoder is not None:
            self.decoder.fit_statistics(batch)

    def loss(self, batch: Segment) -> Learned:
        """Return consistency, reward (and termination, decoder) losses over windows (B, T)."""
        horizon = batch.action.shape[1]
        latent = self.encoder({name: value[:, 0] for name, value in batch.obs.items()})
        with torch.no_grad():
            target = self.encoder({name: value[:, 1:] for name, value in batch.obs.items()})
        latents, inputs = [latent], []
        for t in range(horizon):
            inputs.append(torch.cat([latents[-1], batch.action[:, t]], -1))
            latents.append(self.dynamics(inputs[-1]))
        states = torch.stack(latents, 1)
        weight = step_weights(batch.mask, self.decay)
        difference = (states[:, 1:] - target).square().mean(-1)
        losses = {"consistency": self.consistency * (difference * weight).sum()}
        if batch.reward is not None:
            reward = self.regression.loss(self.reward(torch.stack(inputs, 1)), batch.reward)
            losses["reward"] = self.reward_weight * (reward * weight).sum()
        if self.termination is not None:
            ends = binary_loss(self.termination(states[:, 1:]).squeeze(-1), batch.terminated.float())
            losses["termination"] = self.termination_weight * (ends * weight).sum()
        observed = torch.cat([latent.detach()[:, None], target], 1)
        if self.decoder is not None:
            losses["decoder"] = (self.decoder.error(observed, batch.obs)[:, 1:] * step_weights(batch.mask, 1.0)).sum()
        return Learned(losses, {"latent": states}, {"latent": observed})

    def _proceed(self, latent: Tensor) -> Tensor:
        if self.termination is None:
            return latent.new_ones(latent.shape[:-1])
        return torch.sigmoid(-self.termination(latent).squeeze(-1))


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


def size1m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """The paper's 1M: latent 128, width 384; with two critics and a policy of that width."""
    return DecoderFree(observation_space, action_space, latent=128, width=384)


def size5m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """The paper's 5M, its default: latent 512, width 512; with five critics and a policy of that width."""
    return DecoderFree(observation_space, action_space)


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
