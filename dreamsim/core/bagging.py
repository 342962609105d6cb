"""Which member of an ensemble learns from which window: a bootstrap that needs no memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64, as signed


def bagged(index: Tensor, members: int, seed: int = 0) -> Tensor:
    """Return how often each of ``members`` M sees each window, (M, B) float32, from ``Segment.index`` (B, 2).

    The numbers are Poisson(1), the limit of drawing with replacement (Oza and Russell 2001), and
    depend on nothing but episode, offset, member and seed: they stay the same whenever a window
    is drawn and however much data comes in.
    """
    value = _mixed(torch.tensor(seed, device=index.device) + _GOLDEN)
    for part in (index[:, 0], index[:, 1], torch.arange(members, device=index.device)[:, None]):
        value = _mixed(value ^ (part + _GOLDEN))
    uniform = ((value >> 11) & ((1 << 53) - 1)).double() / 2**53
    chances = [math.exp(-1) / math.factorial(count) for count in range(12)]
    limits = torch.tensor(chances, dtype=torch.double, device=index.device).cumsum(0)
    return torch.bucketize(uniform, limits, right=True).float()


def _mixed(value: Tensor) -> Tensor:
    """Spread the bits of int64 numbers, which wrap around on overflow."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _FIRST
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _SECOND
    return value ^ ((value >> 31) & ((1 << 33) - 1))
