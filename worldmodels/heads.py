"""Distributions at the end of networks: how a real number is predicted by classification."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) ln(1 + |x|)."""
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """Return the inverse of symlog."""
    return torch.sign(x) * torch.expm1(x.abs())


class DiscreteRegression(nn.Module):
    """Regression by classification over bins that are linear in symlog space.

    Logits (..., N) stand for numbers in [symexp(low), symexp(high)]; a target is spread
    over its two nearest bins. Source: TD-MPC2, section 3.1 and appendix (101 bins on [-10, 10]).
    """

    bins: Tensor

    def __init__(self, count: int = 101, low: float = -10.0, high: float = 10.0) -> None:
        super().__init__()
        if count < 2 or not low < high:
            raise ValueError(
                f"discrete regression needs at least 2 bins and low < high, got {count} on [{low}, {high}]"
            )
        self.count, self.low, self.high = count, low, high
        self.width = (high - low) / (count - 1)
        self.register_buffer("bins", torch.linspace(low, high, count), persistent=False)

    def decode(self, logits: Tensor) -> Tensor:
        """Return the numbers (...) that logits (..., N) stand for."""
        # Not a matrix product: mixed precision would round the bins.
        return symexp((torch.softmax(logits.float(), -1) * self.bins).sum(-1))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy (...) of logits (..., N) with targets (...), broadcast over leading axes."""
        logits = logits.float()
        place = (symlog(target).clamp(self.low, self.high) - self.low) / self.width
        lower = place.floor().clamp(max=self.count - 2)
        upper_weight = place - lower
        index = lower.long().unsqueeze(-1).expand(*logits.shape[:-1], 1)
        near = logits.gather(-1, torch.cat([index, index + 1], -1))
        picked = torch.lerp(near[..., 0], near[..., 1], upper_weight.expand(near.shape[:-1]))
        return torch.logsumexp(logits, -1) - picked


class TwoHot(nn.Module):
    """Regression by classification over bins that lie at symexp of equal steps, in the target's own units.

    Logits (..., N) stand for numbers in [symexp(low), symexp(high)]; a target is spread over its two nearest bins,
    in inverse proportion to its distance from them. Source: DreamerV3 (255 bins on symexp([-20, 20])).
    It is not ``DiscreteRegression``, whose targets are squashed before they are spread.
    """

    bins: Tensor

    def __init__(self, count: int = 255, low: float = -20.0, high: float = 20.0) -> None:
        super().__init__()
        if count < 2 or not low < high:
            raise ValueError(f"two-hot regression needs at least 2 bins and low < high, got {count} on [{low}, {high}]")
        self.count = count
        self.register_buffer("bins", symexp(torch.linspace(low, high, count, dtype=torch.float64)).float(), False)

    def decode(self, logits: Tensor) -> Tensor:
        """Return the numbers (...) that logits (..., N) stand for; equal logits give exactly 0 where bins mirror."""
        part = torch.softmax(logits.float(), -1) * self.bins
        half = self.count // 2
        # The two halves are summed in mirrored order: bins reach 5e8, and rounding would not cancel otherwise.
        mirrored = part[..., :half] + part[..., self.count - half :].flip(-1)
        return mirrored.sum(-1) + (part[..., half] if self.count % 2 else 0)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy (...) of logits (..., N) with targets (...), broadcast over leading axes."""
        logits = logits.float()
        target = target.detach().clamp(self.bins[0], self.bins[-1]).contiguous()
        lower = (torch.searchsorted(self.bins, target, right=True) - 1).clamp(0, self.count - 2)
        below, above = self.bins[lower], self.bins[lower + 1]
        weight = (target - below) / (above - below)
        index = torch.stack([lower, lower + 1], -1)
        lead = torch.broadcast_shapes(logits.shape[:-1], target.shape)
        near = logits.expand(*lead, -1).gather(-1, index.expand(*lead, 2))
        picked = torch.lerp(near[..., 0], near[..., 1], weight.expand(lead))
        return torch.logsumexp(logits, -1) - picked


def unimix(logits: Tensor, uniform: float = 0.01) -> Tensor:
    """Return probabilities (..., C) of logits (..., C), mixed with a share of the uniform ones (DreamerV3: 1 %)."""
    return torch.softmax(logits.float(), -1) * (1 - uniform) + uniform / logits.shape[-1]


def one_hot_sample(probs: Tensor) -> Tensor:
    """Draw one-hot samples (..., C); gradients pass straight to the probabilities (..., C)."""
    race = probs.detach() / torch.empty_like(probs).exponential_()
    sample = torch.zeros_like(race).scatter_(-1, race.argmax(-1, keepdim=True), 1.0)
    return sample + (probs - probs.detach()) if probs.requires_grad else sample


def categorical_kl(one: Tensor, other: Tensor) -> Tensor:
    """Return KL(one || other) (...) of probabilities (..., C), which must be above 0."""
    return (one * (one.log() - other.log())).sum(-1)


def binary_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy (...) of logits (...)."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")
