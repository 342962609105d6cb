"""Network blocks that several families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Obs


class _Mish(torch.autograd.Function):
    """Mish that keeps its derivative, so that going back is one product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        power = x.clamp(max=20).exp_()
        tangent = 1 - 2 / torch.addcmul(power + 2, power + 1, power)
        slope = torch.addcmul(power, power, power).mul_((1 - tangent).square_()).mul_(x).add_(tangent)
        ctx.save_for_backward(slope)
        return tangent.mul_(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return gradient * slope


def mish(x: Tensor) -> Tensor:
    """Return x tanh(softplus(x)) = x - 2 x / ((1 + exp(x))^2 + 1), an activation (...) to (...).

    On a CPU torch's own costs more than the matrix product before it, and its gradient twice
    that: with this form a dream of wide networks is 1.3 times as fast and a gradient step
    a tenth faster. Small tensors and other devices take torch's own.
    """
    if x.device.type != "cpu" or x.numel() < 2**14:
        return F.mish(x)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Mish.apply(x)
    return torch.addcdiv(x, x, torch.exp(x).add_(1).square_().add_(1), value=-2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"mish": mish, "relu": F.relu, "silu": F.silu, "elu": F.elu}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation, or raise ValueError with the names there are."""
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r}; choose {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def check_sizes(**sizes: int) -> None:
    """Raise ValueError, naming it, for a size of a network below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} of a network must be 1 or more, got {size}")


def simnorm(x: Tensor, group: int) -> Tensor:
    """Softmax over groups of ``group`` features: (..., F) to a point on F / group simplices.

    Source: TD-MPC2 (Hansen et al. 2024), equation 5, with temperature 1. A group's members
    lie F / group apart instead of side by side: the same function up to the order of
    features, which no layer knows, and 20 times faster on a CPU, which can then vectorise.
    """
    return torch.softmax(x.unflatten(-1, (group, -1)), -2).flatten(-2)


class NormedLinear(nn.Module):
    """Linear, LayerNorm, activation; the unit of TD-MPC2's networks. (..., in) to (..., out)."""

    def __init__(self, inputs: int, outputs: int, activation: str = "mish") -> None:
        super().__init__()
        self.linear = _linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)
        self.activation = activation_named(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the unit."""
        return self.activation(self.norm(self.linear(x)))


class SimNormed(nn.Module):
    """Linear, LayerNorm, SimNorm: ends an encoder or the dynamics on the simplex."""

    def __init__(self, inputs: int, outputs: int, group: int = 8) -> None:
        super().__init__()
        if outputs % group:
            raise ValueError(
                f"a latent of {outputs} features cannot be cut into simplices of {group}; choose a multiple"
            )
        self.linear = _linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Apply the unit."""
        return simnorm(self.norm(self.linear(x)), self.group)


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str = "mish", zero: bool = False
) -> nn.Sequential:
    """Return NormedLinear layers of the given widths and a plain linear end (zero: starts at 0)."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(NormedLinear(inputs, width, activation))
        inputs = width
    end = _linear(inputs, outputs)
    if zero:
        nn.init.zeros_(end.weight)
    return nn.Sequential(*layers, end)


class StackedMLP(nn.Module):
    """N equal MLPs run as one: (..., in) to (N, ..., out).

    All members read the same input, so that the first layer is a single matrix product
    and the others one batched product each.
    """

    def __init__(
        self, members: int, inputs: int, hidden: int, outputs: int, activation: str = "mish", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(members=members, inputs=inputs, hidden=hidden, outputs=outputs)
        self.members = members
        self.hidden = hidden
        self.dropout = dropout
        self.activation = activation_named(activation)
        self.weight1 = nn.Parameter(truncated_normal(torch.empty(members, inputs, hidden)))
        self.weight2 = nn.Parameter(truncated_normal(torch.empty(members, hidden, hidden)))
        self.weight3 = nn.Parameter(torch.zeros(members, hidden, outputs))
        self.bias1 = nn.Parameter(torch.zeros(members, 1, hidden))
        self.bias2 = nn.Parameter(torch.zeros(members, 1, hidden))
        self.bias3 = nn.Parameter(torch.zeros(members, 1, outputs))
        self.gain1 = nn.Parameter(torch.ones(members, 1, hidden))
        self.gain2 = nn.Parameter(torch.ones(members, 1, hidden))
        self.shift1 = nn.Parameter(torch.zeros(members, 1, hidden))
        self.shift2 = nn.Parameter(torch.zeros(members, 1, hidden))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Run all members, or those numbered by ``members`` (N,): (..., in) to (N, ..., out)."""
        names = ("weight1", "bias1", "gain1", "shift1", "weight2", "bias2", "gain2", "shift2", "weight3", "bias3")
        parts = [getattr(self, name) for name in names]
        if members is not None:
            parts = [part.index_select(0, members) for part in parts]
        weight1, bias1, gain1, shift1, weight2, bias2, gain2, shift2, weight3, bias3 = parts
        flat = x.reshape(1, -1, x.shape[-1]).expand(weight1.shape[0], -1, -1)
        h = torch.baddbmm(bias1, flat, weight1)
        if self.dropout and self.training:
            h = F.dropout(h, self.dropout)
        h = self.activation(torch.addcmul(shift1, F.layer_norm(h, (self.hidden,)), gain1))
        h = torch.baddbmm(bias2, h, weight2)
        h = self.activation(torch.addcmul(shift2, F.layer_norm(h, (self.hidden,)), gain2))
        return torch.baddbmm(bias3, h, weight3).reshape(-1, *x.shape[:-1], weight3.shape[-1])


class Encoder(nn.Module):
    """Named observations (..., *shape) to features (..., F).

    Vectors are joined in the order of the space's names; images (C, H, W) and stacks of them
    (K, C, H, W) go through the convolutions of TD-MPC2's pixel encoder, scaled from uint8 once,
    here. While training, each image is shifted at random by up to ``shift`` pixels.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        outputs: nn.Module,
        width: int,
        channels: int,
        activation: str,
        shift: int = 0,
    ) -> None:
        super().__init__()
        self.shift = shift
        self.vectors = [name for name, part in observation_space.spaces.items() if not _image(part)]
        self.images = [name for name, part in observation_space.spaces.items() if _image(part)]
        self.axes = {name: len(part.shape) for name, part in observation_space.spaces.items()}
        self.towers = nn.ModuleDict({name: _convolutions(observation_space[name], channels) for name in self.images})
        self.vector_size = sum(math.prod(observation_space[name].shape) for name in self.vectors)
        size = self.vector_size + sum(_tower_size(self.towers[name], observation_space[name]) for name in self.images)
        self.hidden = NormedLinear(size, width, activation)
        self.end = outputs

    def vector(self, obs: Obs) -> Tensor:
        """Return the non-image observations as one float vector (..., V)."""
        return torch.cat(
            [
                obs[name].flatten(obs[name].dim() - self.axes[name]) if self.axes[name] != 1 else obs[name]
                for name in self.vectors
            ],
            -1,
        )

    def forward(self, obs: Obs) -> Tensor:
        """Encode observations with any leading axes."""
        parts = [self.vector(obs)] if self.vectors else []
        for name in self.images:
            image = obs[name]
            lead = image.shape[: image.dim() - self.axes[name]]
            image = image.reshape(-1, *_channels(image.shape[len(lead) :]))
            image = shifted(image, self.shift) if self.shift and self.training else image
            features = self.towers[name](image.float() / 255 - 0.5)
            parts.append(features.reshape(*lead, -1))
        return self.end(self.hidden(torch.cat(parts, -1) if len(parts) > 1 else parts[0]))


def shifted(image: Tensor, pixels: int) -> Tensor:
    """Move each image (N, C, H, W) by up to ``pixels`` in both directions at random; its border is repeated.

    Source: the augmentation of DrQ-v2 (Yarats et al. 2021), which TD-MPC2's pixel encoder uses with 3 pixels
    (its released code while acting, too; here, as in DrQ-v2, only while training).
    """
    count, _, height, width = image.shape
    down, right = torch.randint(-pixels, pixels + 1, (2, count, 1), device=image.device)
    rows = (torch.arange(height, device=image.device) + down).clamp(0, height - 1)
    columns = (torch.arange(width, device=image.device) + right).clamp(0, width - 1)
    moved = image.gather(2, rows[:, None, :, None].expand_as(image))
    return moved.gather(3, columns[:, None, None, :].expand_as(image))


def truncated_normal(weight: Tensor, std: float = 0.02) -> Tensor:
    """Fill in place with the initial weights of TD-MPC2: normal, std 0.02, cut at two units."""
    return nn.init.trunc_normal_(weight, std=std)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    check_sizes(inputs=inputs, outputs=outputs)
    layer = nn.Linear(inputs, outputs)
    truncated_normal(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _image(space: spaces.Space) -> bool:
    return space.dtype == "uint8" and len(space.shape or ()) in (3, 4)


def _channels(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an image, or of a stack of them as one image of all their channels."""
    return (math.prod(shape[:-2]), *shape[-2:])


def _convolutions(space: spaces.Space, channels: int) -> nn.Sequential:
    c, height, _ = _channels(space.shape)
    layers: list[nn.Module] = []
    for number, (kernel, stride) in enumerate([(7, 2), (5, 2), (3, 2), (3, 1)]):
        if height < kernel:
            break
        layers += [nn.Conv2d(c, channels, kernel, stride), nn.ReLU()]
        height, c = (height - kernel) // stride + 1, channels
        del number
    return nn.Sequential(*layers, nn.Flatten())


def _tower_size(tower: nn.Module, space: spaces.Space) -> int:
    with torch.no_grad():
        return tower(torch.zeros(1, *_channels(space.shape))).shape[-1]
