"""DreamerV3's network blocks: RMS norm and SiLU, block-diagonal layers, convolutions, encoder and decoder.

Source: Hafner et al., "Mastering diverse control tasks through world models" (Nature 2025) and the released code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Obs
from worldmodels.heads import symexp, symlog
from worldmodels.nets import check_sizes

EPSILON = 1e-4  # of the RMS norm
SPREAD = 1.1368  # a normal cut at two units has a smaller spread than 1; this makes up for it


def fan_in_normal(weight: Tensor, inputs: int, scale: float = 1.0) -> Tensor:
    """Fill in place with a normal of variance 1 / ``inputs``, cut at two units, times ``scale``."""
    with torch.no_grad():
        return nn.init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0).mul_(SPREAD * scale / math.sqrt(inputs))


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    """Return a linear layer with the initial weights of DreamerV3; ``scale`` 0 starts it at 0."""
    check_sizes(inputs=inputs, outputs=outputs)
    layer = nn.Linear(inputs, outputs)
    fan_in_normal(layer.weight, inputs, scale)
    nn.init.zeros_(layer.bias)
    return layer


class _NormedSiLU(torch.autograd.Function):
    """SiLU of x / rms(x) * gain in as few passes over memory as eager operations allow, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        scale, normed = _normed(x)
        raised = normed * gain
        ctx.save_for_backward(scale, normed, raised, gain)
        return F.silu(raised)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        scale, normed, raised, gain = ctx.saved_tensors
        slope = torch.ops.aten.silu_backward(gradient, raised)
        both = slope * normed
        share = (both @ gain).unsqueeze(-1) / gain.numel()
        return slope.mul_(gain).addcmul_(normed, share, value=-1).mul_(scale), both.flatten(0, -2).sum(0)


def normed_silu(x: Tensor, gain: Tensor) -> Tensor:
    """Return SiLU of x (..., F) over its root mean square, times ``gain`` (F,).

    On a CPU that is twice as fast as torch's own; small tensors and other devices take torch's own.
    """
    if x.device.type != "cpu" or x.numel() < 2**14:
        return F.silu(F.rms_norm(x, gain.shape, gain, EPSILON))
    if torch.is_grad_enabled() and (x.requires_grad or gain.requires_grad):
        return _NormedSiLU.apply(x, gain)
    return F.silu(_normed(x)[1].mul_(gain), inplace=True)


def _normed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 / rms (..., 1) and what it makes of x (..., F)."""
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = size.square_().mul_(1 / x.shape[-1]).add_(EPSILON).rsqrt_()
    return scale, x * scale


class Active(nn.Module):
    """RMS norm over the last axis and SiLU: (..., F) to (..., F)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the unit."""
        return normed_silu(x, self.gain)


def layers(inputs: int, width: int, count: int) -> nn.Sequential:
    """Return ``count`` layers of linear, RMS norm and SiLU: (..., inputs) to (..., width)."""
    made: list[nn.Module] = []
    for _ in range(count):
        made += [linear(inputs, width), Active(width)]
        inputs = width
    return nn.Sequential(*made)


class BlockLinear(nn.Module):
    """A block-diagonal linear layer: (N, G * I) to (N, G, O), block g of the output seeing block g of the input only.

    As released, the initial weights count the inputs of all blocks.
    """

    def __init__(self, blocks: int, inputs: int, outputs: int, fan_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(fan_in_normal(torch.empty(blocks, inputs, outputs), fan_in))
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        blocks, inputs, _ = self.weight.shape
        return torch.baddbmm(self.bias[:, None], x.view(-1, blocks, inputs).transpose(0, 1), self.weight).transpose(
            0, 1
        )


class Eyes(nn.Module):
    """Named observations (..., *shape) to one vector of features (..., E).

    Vectors are squashed by symlog and pass ``count`` layers; images (C, H, W) and stacks of them, uint8, pass
    convolutions of kernel 5, each halving the size by its largest values, down to 4 to 7 pixels.
    """

    def __init__(self, observation_space: spaces.Dict, width: int, depth: int, count: int = 3) -> None:
        super().__init__()
        self.parts = Parts(observation_space)
        self.vectors = layers(self.parts.size, width, count) if self.parts.size else None
        self.images = nn.ModuleDict({name: Halving(shape, depth) for name, shape in self.parts.images.items()})
        self.outputs = (width if self.parts.size else 0) + sum(tower.outputs for tower in self.images.values())

    def forward(self, obs: Obs) -> Tensor:
        """Encode observations with any leading axes."""
        found = [] if self.vectors is None else [self.vectors(symlog(self.parts.vector(obs)))]
        for name, tower in self.images.items():
            image = self.parts.image(obs, name)
            lead = image.shape[:-3]
            found.append(tower(image.flatten(0, -4).float() / 255 - 0.5).reshape(*lead, -1))
        return torch.cat(found, -1) if len(found) > 1 else found[0]


class Parts:
    """Which observations are images and which are vectors, and how they are joined and cut apart again."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        self.shapes = {name: tuple(part.shape or ()) for name, part in observation_space.spaces.items()}
        seen = [
            n for n, part in observation_space.spaces.items() if part.dtype == "uint8" and len(part.shape) in (3, 4)
        ]
        self.images = {name: (math.prod(self.shapes[name][:-2]), *self.shapes[name][-2:]) for name in seen}
        self.vectors = {name: math.prod(shape) for name, shape in self.shapes.items() if name not in self.images}
        self.size = sum(self.vectors.values())

    def vector(self, obs: Obs) -> Tensor:
        """Return all observations that are no images as one vector (..., V)."""
        flat = [obs[name].reshape(*self.lead(obs, name), size) for name, size in self.vectors.items()]
        return torch.cat(flat, -1).float() if len(flat) > 1 else flat[0].float()

    def image(self, obs: Obs, name: str) -> Tensor:
        """Return an image or a stack of them as one image (..., C, H, W) of all their channels."""
        return obs[name].reshape(*self.lead(obs, name), *self.images[name])

    def lead(self, obs: Obs, name: str) -> torch.Size:
        """Return the leading axes of an observation."""
        value = obs[name]
        return value.shape[: value.dim() - len(self.shapes[name])]

    def cut(self, vector: Tensor) -> Obs:
        """Return a vector (..., V) as the observations it was joined from."""
        pieces = torch.split(vector, list(self.vectors.values()), -1)
        return {
            name: piece.reshape(*piece.shape[:-1], *self.shapes[name])
            for name, piece in zip(self.vectors, pieces, strict=True)
        }


class ChannelNorm(nn.Module):
    """RMS norm over the channels of an image and SiLU: (N, C, H, W) to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the unit."""
        return F.silu(x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPSILON) * self.gain)


class Halving(nn.Module):
    """Images (N, C, H, W) to features (N, E) by convolutions that each halve the size."""

    def __init__(self, shape: Sequence[int], depth: int) -> None:
        super().__init__()
        channels, depths = shape[0], stages(shape, depth)
        made: list[nn.Module] = []
        for wide in depths:
            made += [convolution(channels, wide), nn.MaxPool2d(2), ChannelNorm(wide)]
            channels = wide
        self.net = nn.Sequential(*made, nn.Flatten())
        self.outputs = depths[-1] * math.prod(size // 2 ** len(depths) for size in shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Encode."""
        return self.net(x)


class Doubling(nn.Module):
    """Deterministic (N, D) and stochastic features (N, S) to an image (N, C, H, W) in [0, 1].

    The deterministic part enters through a block-diagonal layer, whose block g fills its share of the channels.
    """

    def __init__(self, deter: int, stoch: int, shape: Sequence[int], width: int, depth: int, blocks: int) -> None:
        super().__init__()
        depths = stages(shape, depth)
        self.least = (depths[-1], *(size // 2 ** len(depths) for size in shape[1:]))
        if depths[-1] % blocks:
            raise ValueError(f"{depths[-1]} channels cannot be cut into {blocks} blocks; choose another depth")
        self.wide = BlockLinear(blocks, deter // blocks, math.prod(self.least) // blocks, deter)
        self.narrow = nn.Sequential(
            linear(stoch, 2 * width), Active(2 * width), linear(2 * width, math.prod(self.least))
        )
        self.first = ChannelNorm(depths[-1])
        made: list[nn.Module] = []
        for less, more in zip(depths[-2::-1], depths[:0:-1], strict=True):
            made += [nn.Upsample(scale_factor=2), convolution(more, less), ChannelNorm(less)]
        self.net = nn.Sequential(*made, nn.Upsample(scale_factor=2), convolution(depths[0], shape[0]), nn.Sigmoid())

    def forward(self, deter: Tensor, stoch: Tensor) -> Tensor:
        """Decode."""
        x = self.wide(deter).reshape(-1, *self.least) + self.narrow(stoch).reshape(-1, *self.least)
        return self.net(self.first(x))


class Hands(nn.Module):
    """Deterministic (..., D) and stochastic features (..., S) back to named observations."""

    def __init__(
        self, observation_space: spaces.Dict, deter: int, stoch: int, width: int, depth: int, blocks: int
    ) -> None:
        super().__init__()
        self.parts = Parts(observation_space)
        self.vectors = (
            nn.Sequential(layers(deter + stoch, width, 3), linear(width, self.parts.size)) if self.parts.size else None
        )
        self.images = nn.ModuleDict(
            {name: Doubling(deter, stoch, shape, width, depth, blocks) for name, shape in self.parts.images.items()}
        )

    def error(self, deter: Tensor, stoch: Tensor, obs: Obs) -> Tensor:
        """Return squared errors (...) summed over all components: of symlog of vectors, of images in [0, 1]."""
        error = deter.new_zeros(deter.shape[:-1])
        if self.vectors is not None:
            said = self.vectors(torch.cat([deter, stoch], -1))
            error = error + (said - symlog(self.parts.vector(obs))).square().sum(-1)
        for name in self.images:
            image = self.parts.image(obs, name).float() / 255
            error = error + (self._draw(name, deter, stoch) - image).square().sum((-3, -2, -1))
        return error

    def forward(self, deter: Tensor, stoch: Tensor) -> Obs:
        """Return observations (..., *shape) in the environment's units; images uint8."""
        obs = {} if self.vectors is None else self.parts.cut(symexp(self.vectors(torch.cat([deter, stoch], -1))))
        for name in self.images:
            image = (self._draw(name, deter, stoch) * 255).round().to(torch.uint8)
            obs[name] = image.reshape(*deter.shape[:-1], *self.parts.shapes[name])
        return {name: obs[name] for name in self.parts.shapes}

    def _draw(self, name: str, deter: Tensor, stoch: Tensor) -> Tensor:
        image = self.images[name](deter.flatten(0, -2), stoch.flatten(0, -2))
        return image.unflatten(0, deter.shape[:-1])


def stages(shape: Sequence[int], depth: int) -> list[int]:
    """Return the channels of each halving of an image (C, H, W): ``depth`` times 2, 3, 4 and 4, until 4 to 7 pixels."""
    least = min(shape[1:])
    count = min(4, int(math.log2(least // 4))) if least >= 8 else 0
    if count < 1 or any(size % 2**count for size in shape[1:]):
        raise ValueError(
            f"an image of {shape[1]} x {shape[2]} pixels cannot be halved down to 4 or more; "
            "use sides such as 32, 48, 64 or 96"
        )
    return [depth * times for times in (2, 3, 4, 4)[:count]]


def convolution(channels: int, wide: int) -> nn.Conv2d:
    """Return a convolution of kernel 5 that keeps the size."""
    layer = nn.Conv2d(channels, wide, 5, padding=2)
    fan_in_normal(layer.weight, channels * 25)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
