"""A world in the patch features of an encoder that somebody else trained and that stays as it is.

Source: DINO-WM (Zhou, Pan, LeCun, Pinto 2024) and its released code: patch tokens of a frozen DINOv2, a predictor that
is causal from frame to frame and sees all tokens within one, mean squared error, actions joined to every token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from worldmodels import history
from worldmodels.history import State
from worldmodels.joint_embedding import pieces
from worldmodels.nets import check_sizes
from worldmodels.transformer import Block, causal

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, in whose units such encoders see


class FrozenEncoder(nn.Module):
    """Foretells the tokens (L, F) of an image; state is a ``history``, view the newest ``{"latent": (B, L, F)}``.

    ``encoder`` makes a module from images (N, 3, H, W), float in ImageNet's units, to tokens (N, L, F), or to an
    object whose ``last_hidden_state`` these are, as transformers' models return it: ``dinov2`` of this file or any
    import path. It is never trained. ``skip`` tokens at the front (CLS) are left out. The predictor reads each
    token beside its action as ``action_size`` numbers; vectors among the observations become as many numbers beside
    these and are foretold, too, as the released code has it.

    Rewards are not learned: ``step`` tells 0 and goes on for ever. Deviations: one image, no decoder; tokens are
    predicted in the encoder's own units, and an observation's vectors in units of their spread.
    """

    mask: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        encoder: Callable[[], nn.Module],
        action_size: int = 10,
        skip: int = 1,
        depth: int = 6,
        heads: int = 16,
        head_size: int = 64,
        hidden: int = 2048,
        dropout: float = 0.1,
        history: int = 3,
    ) -> None:
        super().__init__()
        check_sizes(action_size=action_size, history=history)
        parts = observation_space.spaces
        images = [name for name, part in parts.items() if part.dtype == "uint8" and len(part.shape or ()) == 3]
        if len(images) != 1 or parts[images[0]].shape[0] != 3:
            raise ValueError(f"FrozenEncoder sees one RGB image (3, H, W), got {observation_space}")
        self.image, self.history, self.skip = images[0], history, skip
        self.vectors = [name for name in parts if name != self.image]
        self.axes = {name: len(parts[name].shape or ()) for name in self.vectors}
        raw = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self.raw_action_size = raw
        self.encoder = encoder().eval().requires_grad_(False)
        with torch.no_grad():
            tokens, features = self._tokens(torch.zeros(1, *parts[self.image].shape, dtype=torch.uint8)).shape[1:]
        size = sum(math.prod(parts[name].shape or ()) for name in self.vectors)
        self.extra = action_size if self.vectors else 0
        self.body = nn.Linear(size, self.extra) if self.vectors else None
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.action = nn.Linear(raw, action_size)
        width = features + self.extra + action_size
        self.foretold = features + self.extra
        self.place = nn.Parameter(torch.randn(1, history * tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, head_size, hidden, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.aim = nn.Linear(width, self.foretold)
        self.register_buffer("mask", causal(history, tokens), persistent=False)
        self.view_space = spaces.Dict({"latent": spaces.Box(-math.inf, math.inf, (tokens, self.foretold))})

    def train(self, mode: bool = True) -> FrozenEncoder:
        """Set the mode of all but the encoder, which drops nothing out."""
        super().train(mode)
        self.encoder.eval()
        return self

    def start(self, obs: Obs) -> State:
        """Return the belief after first observations (B, ...)."""
        return history.begin(self._encode(obs), self.history, self.raw_action_size)

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after seeing ``obs`` follow ``action``."""
        return history.follow(history.act(state, action), self._encode(obs))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step: the foretold tokens join the history."""
        state = history.act(state, action)
        latent = history.newest(self._foretell(state["latents"], state["actions"]), state)
        nothing = latent.new_zeros(len(latent))
        return history.follow(state, latent), nothing, nothing + 1

    def view(self, state: State) -> Obs:
        """Show the newest tokens."""
        return {"latent": history.newest(state["latents"], state)}

    def loss(self, batch: Segment) -> Learned:
        """Return the mean squared error of the next tokens over windows (B, T), without rewards."""
        rows, steps = batch.action.shape[:2]
        flat = {name: value.flatten(0, 1) for name, value in batch.obs.items()}
        latents = self._encode(flat).unflatten(0, (rows, steps + 1))
        length = min(self.history, steps)
        now, following, actions = (pieces(x, length) for x in (latents[:, :-1], latents[:, 1:], batch.action))
        real = pieces(batch.mask, length)
        wrong = (self._foretell(now, actions) - following.detach()).square().mean((-2, -1))
        return Learned({"prediction": (wrong * real).sum() / real.sum().clamp(min=1)}, None)

    @torch.no_grad()
    def fit_statistics(self, batch: Segment) -> None:
        """Set the units of vector observations."""
        if self.vectors:
            real = torch.cat([torch.ones_like(batch.mask[:, :1]), batch.mask], 1) > 0
            rows = self._vector(batch.obs)[real]
            std = rows.std(0, unbiased=False)
            self.mean.copy_(rows.mean(0))
            self.std.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))

    def _encode(self, obs: Obs) -> Tensor:
        """Return the tokens (N, L, F) of observations (N, ...)."""
        with torch.no_grad():
            tokens = self._tokens(obs[self.image])
        if self.body is None:
            return tokens
        body = self.body((self._vector(obs) - self.mean) / self.std)
        return torch.cat([tokens, body[:, None].expand(-1, tokens.shape[1], -1)], -1)

    def _tokens(self, image: Tensor) -> Tensor:
        mean, std = (image.new_tensor(values, dtype=torch.float32)[:, None, None] for values in (MEAN, STD))
        seen: Any = self.encoder((image.float() / 255 - mean) / std)
        tokens = getattr(seen, "last_hidden_state", seen)
        if not isinstance(tokens, Tensor) or tokens.dim() != 3:
            raise ValueError(f"the encoder must give tokens (N, L, F), got {type(seen).__name__}")
        return tokens[:, self.skip :]

    def _foretell(self, latents: Tensor, actions: Tensor) -> Tensor:
        """Return at each of K places what is told of the next tokens (N, K, L, F)."""
        frames, tokens = latents.shape[1:3]
        beside = self.action(actions)[:, :, None].expand(-1, -1, tokens, -1)
        x = torch.cat([latents, beside], -1).flatten(1, 2) + self.place[:, : frames * tokens]
        for block in self.blocks:
            x = block(x, self.mask[: frames * tokens, : frames * tokens])
        return self.aim(self.norm(x)).unflatten(1, (frames, tokens))

    def _vector(self, obs: Obs) -> Tensor:
        parts = [obs[name] for name in self.vectors]
        return torch.cat(
            [x.reshape(*x.shape[: x.dim() - self.axes[n]], -1) for n, x in zip(self.vectors, parts, strict=True)], -1
        )


def dinov2(folder: str) -> nn.Module:
    """DINOv2 by transformers, from a ``folder`` that holds its config.json and its weights as safetensors."""
    from transformers import Dinov2Model

    return Dinov2Model.from_pretrained(folder, local_files_only=True, use_safetensors=True)
