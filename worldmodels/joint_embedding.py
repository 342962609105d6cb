"""LeWM (LeWorldModel): an encoder and a predictor in its latent, trained together end to end and without rewards.

Nothing is reconstructed, nothing is detached, there is no target network: what keeps the latent from collapsing to a
point is SIGReg alone, which asks of it to be a standard normal. Sources: LeWorldModel and LeJEPA (Balestriero and
LeCun 2025) and the released code; the latter's values are those of ``published``. Goals are reached by planning on
the distance between latents: ``dreamsim.imagination.seek``.
"""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Learned, Obs, Segment
from worldmodels import history
from worldmodels.history import State
from worldmodels.nets import NormedLinear, check_sizes
from worldmodels.sigreg import SIGReg, breadth
from worldmodels.transformer import Modulated, Vision, causal


class LeWM(nn.Module):
    """A deterministic latent world. State is a ``history`` of latents and actions, view the newest ``{"latent"}``.

    Images go through a vision transformer each, whose CLS token counts; vectors, in units of their own spread, through
    an MLP. The predictor is a causal transformer over ``history`` latents, each modulated by its action.
    ``loss`` needs no rewards: mean squared error of the next latent plus ``weight`` * SIGReg, over windows of
    ``history`` steps (longer ones are cut into all their pieces). ``step`` tells reward 0 and goes on for
    ever; ``reward`` > 0 adds a head of that width, which is trained on cut-off latents and never shapes them.
    ``patch``, ``encoder_depth``, ``encoder_heads`` are the vision transformer's; ``hidden`` is the width inside every
    MLP, ``depth``, ``heads``, ``head_size`` and ``dropout`` are the predictor's.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        latent: int = 64,
        hidden: int = 256,
        patch: int = 8,
        encoder_depth: int = 4,
        encoder_heads: int = 4,
        depth: int = 3,
        heads: int = 4,
        head_size: int = 32,
        dropout: float = 0.0,
        history: int = 3,
        weight: float = 0.09,
        projections: int = 1024,
        knots: int = 17,
        reward: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(latent=latent, history=history)
        self.action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self.history, self.weight = history, weight
        parts = observation_space.spaces
        self.images = [name for name, part in parts.items() if part.dtype == "uint8" and len(part.shape) in (3, 4)]
        self.vectors = [name for name in parts if name not in self.images]
        self.axes = {name: len(part.shape) for name, part in parts.items()}
        shapes = {name: (math.prod(parts[name].shape[:-2]), *parts[name].shape[-2:]) for name in self.images}
        self.eyes = nn.ModuleDict(
            {name: Vision(shape, patch, latent, encoder_depth, encoder_heads) for name, shape in shapes.items()}
        )
        size = sum(math.prod(parts[name].shape) for name in self.vectors)
        self.body = nn.Sequential(NormedLinear(size, hidden), NormedLinear(hidden, hidden)) if self.vectors else None
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.projector = Projector(len(self.images) * latent + hidden * bool(self.vectors), hidden, latent)
        self.action = ActionEncoder(self.action_size, latent)
        self.predictor = Predictor(latent, hidden, depth, heads, head_size, dropout, history)
        self.aim = Projector(latent, hidden, latent)
        self.sigreg = SIGReg(projections, knots)
        self.reward = nn.Sequential(NormedLinear(2 * latent, reward), nn.Linear(reward, 1)) if reward else None
        self.view_space = spaces.Dict({"latent": spaces.Box(-math.inf, math.inf, (latent,))})

    def start(self, obs: Obs) -> State:
        """Return the belief after first observations (B, ...)."""
        return history.begin(self.projector(self._features(obs)), self.history, self.action_size)

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after seeing ``obs`` follow ``action``."""
        return history.follow(history.act(state, action), self.projector(self._features(obs)))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step: the predictor's own latent joins the history."""
        state = history.act(state, action)
        told = self.predictor(state["latents"], self.action(state["actions"]))
        latent = self.aim(history.newest(told, state))
        reward = self._reward(history.newest(state["latents"], state), latent)
        return history.follow(state, latent), reward, torch.ones_like(reward)

    def view(self, state: State) -> Obs:
        """Show the newest latent."""
        return {"latent": history.newest(state["latents"], state)}

    def loss(self, batch: Segment) -> Learned:
        """Return the prediction error and SIGReg (and a reward head's error), beside breadth and spread of the latent.

        Batch norm takes its statistics from the real rows of the batch while training, else those that were set.
        """
        latents, real = self.encode(batch)
        told, following, actual = self._predicted(latents, batch)
        errors = (self.aim(told[actual], self.training) - following[actual]).square().mean()
        losses = {
            "prediction": errors,
            "sigreg": self.weight * self.sigreg(latents.transpose(0, 1), real.T),
        }
        if self.reward is not None and batch.reward is not None:
            kept = latents.detach()
            wrong = (self._reward(kept[:, :-1], kept[:, 1:]) - batch.reward).square() * batch.mask
            losses["reward"] = wrong.sum() / batch.mask.sum()
        return Learned(losses, None, metrics=breadth(latents[real]))

    def encode(self, batch: Segment) -> tuple[Tensor, Tensor]:
        """Return the latents (B, T+1, F) of real observations, and where those are (B, T+1) bool; others are zero."""
        real = torch.cat([torch.ones_like(batch.mask[:, :1]), batch.mask], 1) > 0
        features = self._features({name: value[real] for name, value in batch.obs.items()})
        latent = self.projector(features, self.training)
        return latent.new_zeros(*real.shape, latent.shape[-1]).masked_scatter(real[..., None], latent), real

    @torch.no_grad()
    def fit_statistics(self, batch: Segment) -> None:
        """Set the units of vector observations, then those of the batch norms."""
        if self.vectors:
            real = torch.cat([torch.ones_like(batch.mask[:, :1]), batch.mask], 1) > 0
            rows = self._vector(batch.obs)[real]
            std = rows.std(0, unbiased=False)
            self.mean.copy_(rows.mean(0))
            self.std.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))
        self.revise(batch)

    @torch.no_grad()
    def revise(self, batch: Segment) -> None:
        """Set the batch norms' statistics by a large batch of real windows, without dropout."""
        training = self.training
        self.eval()
        real = torch.cat([torch.ones_like(batch.mask[:, :1]), batch.mask], 1) > 0
        self.projector.settle(self._features({name: value[real] for name, value in batch.obs.items()}))
        latents, _ = self.encode(batch)
        told, _, actual = self._predicted(latents, batch)
        self.aim.settle(told[actual])
        self.train(training)

    def _predicted(self, latents: Tensor, batch: Segment) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is told of the next latents, these latents, (N, K, F), and which steps are real (N, K)."""
        length = min(self.history, batch.action.shape[1])
        now, following, actions = (
            pieces(x, length) for x in (latents[:, :-1], latents[:, 1:], self.action(batch.action))
        )
        return self.predictor(now, actions), following, pieces(batch.mask, length) > 0

    def _features(self, obs: Obs) -> Tensor:
        """Return what the encoders make of observations (N, ...): (N, E)."""
        parts = [self.eyes[name](obs[name].flatten(1, -3))[:, 0] for name in self.images]
        if self.body is not None:
            parts.append(self.body((self._vector(obs) - self.mean) / self.std))
        return torch.cat(parts, -1)

    def _vector(self, obs: Obs) -> Tensor:
        parts = [obs[name] for name in self.vectors]
        return torch.cat(
            [x.reshape(*x.shape[: x.dim() - self.axes[n]], -1) for n, x in zip(self.vectors, parts, strict=True)], -1
        )

    def _reward(self, latent: Tensor, after: Tensor) -> Tensor:
        if self.reward is None:
            return latent.new_zeros(latent.shape[:-1])
        return self.reward(torch.cat([latent, after], -1)).squeeze(-1)


class Projector(nn.Module):
    """Linear, batch norm, GELU, linear: rows (N, in) to (N, out).

    ``batch`` takes mean and variance from these rows, as a loss does; otherwise they are those that
    ``settle`` set, so that rows know nothing of each other. The released code keeps a running average instead.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.gain, self.shift = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.register_buffer("mean", torch.zeros(hidden))
        self.register_buffer("variance", torch.ones(hidden))

    def forward(self, x: Tensor, batch: bool = False) -> Tensor:
        """Project rows."""
        mean, variance = (None, None) if batch else (self.mean, self.variance)
        rows = F.batch_norm(self.inwards(x), mean, variance, self.gain, self.shift, training=batch)
        return self.outwards(F.gelu(rows))

    @torch.no_grad()
    def settle(self, x: Tensor) -> None:
        """Set mean and variance to those of the rows."""
        rows = self.inwards(x)
        self.mean.copy_(rows.mean(0))
        self.variance.copy_(rows.var(0, unbiased=False))


class ActionEncoder(nn.Sequential):
    """Actions (..., A) to conditions (..., F): a linear map and an MLP of four times the width."""

    def __init__(self, action_size: int, size: int) -> None:
        super().__init__(
            nn.Linear(action_size, action_size),
            nn.Linear(action_size, 4 * size),
            nn.SiLU(),
            nn.Linear(4 * size, size),
        )


class Predictor(nn.Module):
    """A causal transformer over at most K = ``history`` latents (N, L, F), each modulated by its action's (N, L, F)."""

    mask: Tensor

    def __init__(
        self, size: int, hidden: int, depth: int, heads: int, head_size: int, dropout: float, history: int
    ) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, history, size))
        self.blocks = nn.ModuleList(Modulated(size, heads, head_size, hidden, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(size)
        self.register_buffer("mask", causal(history), persistent=False)

    def forward(self, latents: Tensor, actions: Tensor) -> Tensor:
        """Return at each place what is told of the next latent (N, L, F)."""
        length = latents.shape[1]
        x = latents + self.place[:, :length]
        for block in self.blocks:
            x = block(x, actions, self.mask[:length, :length])
        return self.norm(x)


def pieces(x: Tensor, length: int) -> Tensor:
    """Return all pieces (N, K, ...) of K = ``length`` steps that windows (B, T, ...) contain."""
    return x.unfold(1, length, 1).movedim(-1, 2).flatten(0, 1)


def published(observation_space: spaces.Dict, action_space: spaces.Space) -> LeWM:
    """The released size, for images of 224 x 224 in patches of 14: some 18 million parameters."""
    return LeWM(
        observation_space,
        action_space,
        latent=192,
        hidden=2048,
        patch=14,
        encoder_depth=12,
        encoder_heads=3,
        depth=6,
        heads=16,
        head_size=64,
        dropout=0.1,
    )
