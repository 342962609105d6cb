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


def binary_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy (...) of logits (...)."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")
