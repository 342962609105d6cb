"""TD-MPC2 at its published sizes: for each a model, its critics and its policy, named bare in a config.

Source: the released code's table of sizes (encoder, width, latent, hidden layers of the encoder, critics). Its names
count millions of parameters for 80 tasks: 1.4, 5.4, 19.0, 48.8 and 317.4. A single task of DeepMind Control has
1.2, 5.0, 18.1, 47.2 and 312.6.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Obs
from worldmodels.actors import QEnsemble, SquashedGaussian
from worldmodels.decoder_free import DecoderFree
from worldmodels.nets import shifted, simnorm


class Size(NamedTuple):
    """Widths of a published size."""

    encoder: int
    width: int
    latent: int
    encoder_layers: int
    critics: int


NANO = Size(128, 128, 64, 1, 2)  # ours, for two cores
SIZE1M = Size(256, 384, 128, 1, 2)
SIZE5M = Size(256, 512, 512, 1, 5)
SIZE19M = Size(1024, 1024, 768, 2, 5)
SIZE48M = Size(1792, 1792, 768, 3, 5)
SIZE317M = Size(4096, 4096, 1376, 4, 8)


def model_nano(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """Ours: 0.2 million parameters with critics and policy."""
    return _model(NANO, observation_space, action_space)


def critics_nano(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """Two critics."""
    return _critics(NANO, view_space, action_size)


def policy_nano(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """The policy beside them."""
    return _policy(NANO, view_space, action_space)


def model1m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """1M."""
    return _model(SIZE1M, observation_space, action_space)


def critics1m(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """1M: two critics."""
    return _critics(SIZE1M, view_space, action_size)


def policy1m(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """1M."""
    return _policy(SIZE1M, view_space, action_space)


def model5m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """5M, the paper's own choice for single tasks."""
    return _model(SIZE5M, observation_space, action_space)


def critics5m(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """5M: five critics."""
    return _critics(SIZE5M, view_space, action_size)


def policy5m(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """5M."""
    return _policy(SIZE5M, view_space, action_space)


def model19m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """19M."""
    return _model(SIZE19M, observation_space, action_space)


def critics19m(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """19M: five critics."""
    return _critics(SIZE19M, view_space, action_size)


def policy19m(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """19M."""
    return _policy(SIZE19M, view_space, action_space)


def model48m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """48M."""
    return _model(SIZE48M, observation_space, action_space)


def critics48m(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """48M: five critics."""
    return _critics(SIZE48M, view_space, action_size)


def policy48m(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """48M."""
    return _policy(SIZE48M, view_space, action_space)


def model317m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """317M."""
    return _model(SIZE317M, observation_space, action_space)


def critics317m(view_space: spaces.Dict, action_size: int) -> QEnsemble:
    """317M: eight critics."""
    return _critics(SIZE317M, view_space, action_size)


def policy317m(view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    """317M."""
    return _policy(SIZE317M, view_space, action_space)


def pixel_model5m(observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    """5M from images of 64 x 64, stacks of three as published; its encoder's 512 features are the latent."""
    return DecoderFree(observation_space, action_space, encoder=PixelEncoder)


class PixelEncoder(nn.Module):
    """TD-MPC2's encoder of one image (..., C, 64, 64), or of a stack of them: four convolutions, straight to simplices.

    Images are moved by up to ``shift`` pixels at random; the released code does so while acting, too, here only
    training does (see ``worldmodels.nets.shifted``). Gives (..., 16 * channels).
    """

    def __init__(self, observation_space: spaces.Dict, channels: int = 32, group: int = 8, shift: int = 3) -> None:
        super().__init__()
        parts = list(observation_space.spaces.items())
        shape = parts[0][1].shape or ()
        if len(parts) != 1 or len(shape) not in (3, 4) or tuple(shape[-2:]) != (64, 64):
            raise ValueError(
                f"this encoder sees one image of 64 x 64 or a stack of them, got {observation_space}; draw them so, or "
                "let worldmodels.decoder_free.DecoderFree choose its own encoder (encoder: null)"
            )
        self.name, self.axes, self.group, self.shift = parts[0][0], len(shape), group, shift
        kernels, inputs = [(7, 2), (5, 2), (3, 2), (3, 1)], int(torch.Size(shape[:-2]).numel())
        sizes = [inputs, *[channels] * len(kernels)]
        layers: list[nn.Module] = []
        for before, after, (kernel, stride) in zip(sizes[:-1], sizes[1:], kernels, strict=True):
            layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1], nn.Flatten())

    def forward(self, obs: Obs) -> Tensor:
        """Encode images with any leading axes."""
        image = obs[self.name]
        lead = image.shape[: image.dim() - self.axes]
        image = image.reshape(-1, int(torch.Size(image.shape[len(lead) : -2]).numel()), 64, 64)
        image = shifted(image, self.shift) if self.shift and self.training else image
        return simnorm(self.net(image.float() / 255 - 0.5), self.group).reshape(*lead, -1)


def _model(size: Size, observation_space: spaces.Dict, action_space: spaces.Space) -> DecoderFree:
    made = functools.partial(DecoderFree, latent=size.latent, width=size.width, encoder_width=size.encoder)
    return made(observation_space, action_space, encoder_layers=size.encoder_layers)


def _critics(size: Size, view_space: spaces.Dict, action_size: int) -> QEnsemble:
    return QEnsemble(view_space, action_size, members=size.critics, width=size.width)


def _policy(size: Size, view_space: spaces.Dict, action_space: spaces.Space) -> SquashedGaussian:
    return SquashedGaussian(view_space, action_space, width=size.width, squashed=False)
