"""Distributions at the end of networks: how a real number is predicted by classification."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
        steps = torch.linspace(low, high, count, dtype=torch.float64).round(decimals=9)  # the middle one exactly 0
        self.register_buffer("bins", symexp(steps).float(), persistent=False)

    def decode(self, logits: Tensor) -> Tensor:
        """Return the numbers (...) that logits (..., N) stand for; equal logits give exactly 0 where bins mirror."""
        return self._mean(torch.softmax(logits.float(), -1))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy (...) of logits (..., N) with targets (...), broadcast over leading axes."""
        return self._cross_entropy(F.log_softmax(logits.float(), -1), target)

    def judge(self, logits: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the numbers (...), without graph, and what gives losses (...) against targets: one softmax for all."""
        log = F.log_softmax(logits.float(), -1)
        return self._mean(log.detach().exp()), functools.partial(self._cross_entropy, log)

    def _mean(self, probs: Tensor) -> Tensor:
        part = probs * self.bins
        half = self.count // 2
        # The two halves are summed in mirrored order: bins reach 5e8, and rounding would not cancel otherwise.
        mirrored = part[..., :half] + part[..., self.count - half :].flip(-1)
        return mirrored.sum(-1) + (part[..., half] if self.count % 2 else 0)

    def _cross_entropy(self, log: Tensor, target: Tensor) -> Tensor:
        target = target.detach().clamp(self.bins[0], self.bins[-1]).contiguous()
        lower = (torch.searchsorted(self.bins, target, right=True) - 1).clamp(0, self.count - 2)
        below, above = self.bins[lower], self.bins[lower + 1]
        weight = (target - below) / (above - below)
        index = torch.stack([lower, lower + 1], -1)
        lead = torch.broadcast_shapes(log.shape[:-1], target.shape)
        near = log.expand(*lead, -1).gather(-1, index.expand(*lead, 2))
        return -torch.lerp(near[..., 0], near[..., 1], weight.expand(lead))


def unimix(logits: Tensor, uniform: float = 0.01, dim: int = -1) -> Tensor:
    """Return the probabilities of logits along an axis, mixed with a share of the uniform ones (DreamerV3: 1 %)."""
    return torch.softmax(logits.float(), dim).mul(1 - uniform).add(uniform / logits.shape[dim])


class _Straight(torch.autograd.Function):
    """A sample forward, its probabilities backward."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, sample: Tensor) -> Tensor:
        return sample

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def one_hot_sample(probs: Tensor, dim: int = -1) -> Tensor:
    """Draw one-hot samples along an axis of probabilities (...); gradients pass straight to the probabilities.

    One uniform number is drawn for each sample and placed among the summed probabilities, a sixth of what a race
    of exponentials costs on a CPU.
    """
    with torch.no_grad():
        last = probs.shape[dim] - 1
        below = probs.narrow(dim, 0, last).cumsum(dim)
        place = (torch.rand_like(probs.narrow(dim, 0, 1)) >= below).sum(dim, keepdim=True)
        sample = torch.zeros_like(probs).scatter_(dim, place, 1.0)
    return _Straight.apply(probs, sample) if probs.requires_grad else sample


def categorical_kl(one: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """Return KL(one || other) along an axis of probabilities, which must be above 0."""
    return (one * (one.log() - other.log())).sum(dim)


def binary_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy (...) of logits (...)."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")
