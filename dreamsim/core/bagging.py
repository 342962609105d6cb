"""Which member of an ensemble learns from which window, and what none learns from: a bootstrap that needs no memory."""

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
    uniform = _uniform(index, torch.arange(members, device=index.device)[:, None], seed)
    chances = [math.exp(-1) / math.factorial(count) for count in range(12)]
    limits = torch.tensor(chances, dtype=torch.double, device=index.device).cumsum(0)
    return torch.bucketize(uniform, limits, right=True).float()


def held_out(index: Tensor, share: float, seed: int = 0) -> Tensor:
    """Return which windows (B,) bool of ``Segment.index`` (B, 2) nobody is to learn from: about ``share`` of them.

    Like ``bagged`` it depends on nothing but episode, offset and seed.
    """
    return _uniform(index, torch.full((1, 1), -1, device=index.device), seed)[0] < share


def _uniform(index: Tensor, members: Tensor, seed: int) -> Tensor:
    """Return a number in [0, 1) for each member (M, 1) and window (B, 2): (M, B) double."""
    value = _mixed(torch.tensor(seed, device=index.device) + _GOLDEN)
    for part in (index[:, 0], index[:, 1], members):
        value = _mixed(value ^ (part + _GOLDEN))
    return ((value >> 11) & ((1 << 53) - 1)).double() / 2**53


def _mixed(value: Tensor) -> Tensor:
    """Spread the bits of int64 numbers, which wrap around on overflow."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _FIRST
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _SECOND
    return value ^ ((value >> 31) & ((1 << 33) - 1))
