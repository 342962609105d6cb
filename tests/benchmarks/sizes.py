"""Equal sizes and equal data for both sides of a comparison of TD-MPC2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Size(NamedTuple):
    """One TD-MPC2: widths, critics, bins and the batch it learns from."""

    name: str
    latent: int
    width: int
    encoder_width: int
    members: int  # critics
    bins: int
    observation: int
    actions: int
    batch: int
    horizon: int  # steps T of a training window


NANO = Size("nano", 64, 128, 128, 2, 101, 5, 1, 64, 3)
SMALL = Size("small", 128, 256, 256, 2, 101, 24, 6, 128, 3)
PEER = Size("the peer's own", 128, 384, 256, 5, 101, 24, 6, 256, 5)
PAPER = Size("the paper's 5M", 512, 512, 256, 5, 101, 24, 6, 256, 3)
SIZES = (NANO, SMALL, PEER, PAPER)


class Data(NamedTuple):
    """One batch of windows in plain tensors."""

    obs: Tensor  # (B, T+1, O)
    action: Tensor  # (B, T, A)
    reward: Tensor  # (B, T)


def data(size: Size) -> Data:
    """Return the batch that every side gets."""
    random = torch.Generator().manual_seed(1)
    b, t = size.batch, size.horizon
    obs = torch.randn(b, t + 1, size.observation, generator=random)
    action = torch.rand(b, t, size.actions, generator=random) * 2 - 1
    return Data(obs, action, torch.rand(b, t, generator=random))


class DreamerSize(NamedTuple):
    """One DreamerV3: widths as published, the batch it learns from and the length of its dreams."""

    name: str
    deter: int
    hidden: int
    classes: int
    units: int
    depth: int
    stoch: int
    observation: int
    actions: int
    batch: int
    length: int  # real steps of a window
    horizon: int  # dreamt steps


DREAMER_1M = DreamerSize("1M", 512, 64, 4, 64, 4, 32, 5, 1, 16, 64, 15)  # states of cartpole-swingup


def dreamer_data(size: DreamerSize) -> Data:
    """Return the batch that every side gets."""
    random = torch.Generator().manual_seed(1)
    b, t = size.batch, size.length
    obs = torch.randn(b, t + 1, size.observation, generator=random)
    action = torch.rand(b, t, size.actions, generator=random) * 2 - 1
    return Data(obs, action, torch.rand(b, t, generator=random))
