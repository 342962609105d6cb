"""What ties the state of a recurrent world model to observations: reconstruction, or losses without a decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Obs
from worldmodels.blocks import Hands, linear


class Sizes(NamedTuple):
    """Features that a ground is built for."""

    deter: int
    stoch: int  # all classes of all categoricals
    tokens: int  # of the encoder
    units: int
    depth: int
    blocks: int


class Reconstruction(nn.Module):
    """DreamerV3's decoder: squared errors of symlog of vectors and of images in [0, 1], summed over components."""

    def __init__(self, observation_space: spaces.Dict, sizes: Sizes, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.decoder = Hands(observation_space, sizes.deter, sizes.stoch, sizes.units, sizes.depth, sizes.blocks)

    def loss(self, deter: Tensor, stoch: Tensor, tokens: Tensor, obs: Obs, weight: Tensor) -> Tensor:
        """Return the loss of states (B, T, D) and (B, T, S), weighted by (B, T), which sums to 1."""
        return self.scale * (self.decoder.error(deter, stoch, obs) * weight).sum()

    def decode(self, deter: Tensor, stoch: Tensor) -> Obs:
        """Return observations (..., *shape)."""
        return self.decoder(deter, stoch)


class RedundancyReduction(nn.Module):
    """R2-Dreamer: the state, projected, correlates with the encoder's tokens component by component, and only so.

    The correlations C (E, E) over all real steps give sum_i (C_ii - 1)^2 + ``redundancy`` sum_{i != j} C_ij^2, as in
    Barlow Twins; no gradient flows into the tokens, so that the encoder learns through the posterior alone.
    Source: the released code of R2-Dreamer (scale 0.05, redundancy 5e-4).
    """

    def __init__(
        self, observation_space: spaces.Dict, sizes: Sizes, scale: float = 0.05, redundancy: float = 5e-4
    ) -> None:
        super().__init__()
        self.scale, self.redundancy = scale, redundancy
        self.project = linear(sizes.deter + sizes.stoch, sizes.tokens)

    def loss(self, deter: Tensor, stoch: Tensor, tokens: Tensor, obs: Obs, weight: Tensor) -> Tensor:
        """Return the loss of states (B, T, D) and (B, T, S) with tokens (B, T, E) where ``weight`` (B, T) is not 0."""
        said, seen = _real(self.project(torch.cat([deter, stoch], -1)), tokens, weight)
        correlation = _standard(said).T @ _standard(seen) / len(said)
        same = correlation.diagonal()
        others = correlation.square().sum() - same.square().sum()
        return self.scale * ((same - 1).square().sum() + self.redundancy * others)


class Contrast(nn.Module):
    """InfoNCE: the state, projected, picks the tokens of its own step out of those of all real steps of the batch.

    No gradient flows into the tokens, as in the released code of R2-Dreamer, which has it for comparison.
    """

    def __init__(self, observation_space: spaces.Dict, sizes: Sizes, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.project = linear(sizes.deter + sizes.stoch, sizes.tokens)

    def loss(self, deter: Tensor, stoch: Tensor, tokens: Tensor, obs: Obs, weight: Tensor) -> Tensor:
        """Return the loss of states (B, T, D) and (B, T, S) with tokens (B, T, E) where ``weight`` (B, T) is not 0."""
        said, seen = _real(self.project(torch.cat([deter, stoch], -1)), tokens, weight)
        return self.scale * F.cross_entropy(said @ seen.T, torch.arange(len(said), device=said.device))


def _real(said: Tensor, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real steps (N, E) of both, the second without graph."""
    real = weight > 0
    return said[real], tokens.detach()[real]


def _standard(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-8)
