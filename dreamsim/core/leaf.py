"""One part of a nested space: its encoded form, and the functions there and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces

Coder = Callable[[Any], Any]

CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 8
SURELY_IMAGE = 16  # neighbouring sides from here on, in bytes of the whole range, are no grid of codes
EXACT = 2**24  # float32 holds every whole number up to here


class Bytes(spaces.Box):
    """Text in encoded form: uint8 (length,), padded with 255. A codec lets it pass as it is."""

    def __init__(self, length: int) -> None:
        super().__init__(0, 255, (length,), np.uint8)


def is_image(space: spaces.Space) -> TypeGuard[spaces.Box]:
    """Say whether a space holds uint8 images (H, W, C) or (C, H, W), or stacks of them.

    A side below 8 with the channels last means a grid of codes (MiniGrid's is 7 x 7 x 3), no image.
    What is encoded, channels first, is an image in any size.
    """
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and _has_image_shape(space)


def _has_image_shape(space: spaces.Box) -> bool:
    return len(space.shape) in (3, 4) and (_channels_last(space) or space.shape[-3] in CHANNELS)


def _channels_last(space: spaces.Box) -> bool:
    return space.shape[-1] in CHANNELS and min(space.shape[-3:-1]) >= SMALLEST_IMAGE


def encoded_space(name: str, space: spaces.Space) -> spaces.Box:
    if is_image(space):
        *stack, height, width, channels = space.shape
        shape = (*stack, channels, height, width) if _channels_last(space) else space.shape
        return spaces.Box(0, 255, shape, np.uint8)
    if isinstance(space, Bytes):
        return space
    if isinstance(space, spaces.Box):
        _refuse_float_image(name, space)
        _refuse_odd_image(name, space)
        low, high = (np.atleast_1d(side).astype(np.float32) for side in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.float32)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.Box(0, 1, (int(space.nvec.sum()),), np.float32)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.float32)
    if isinstance(space, spaces.Text):
        return Bytes(4 * space.max_length)
    raise ValueError(
        f"observation {name!r} has a space of type {type(space).__name__}; "
        "supported: Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict or Tuple of them"
    )


def encoder(space: spaces.Space) -> Coder:
    """Return the function from one value of a leaf space to its array."""
    if is_image(space):
        return _image_encoder(space)
    if isinstance(space, Bytes):
        return functools.partial(np.asarray, dtype=np.uint8)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return functools.partial(np.asarray, dtype=np.float32) if space.shape else _scalar
    if isinstance(space, spaces.Discrete):
        start, size = int(space.start), int(space.n)
        return lambda value: _one_hot(int(value) - start, size)
    if isinstance(space, spaces.MultiDiscrete):
        return _choices_encoder(space)
    if isinstance(space, spaces.Text):
        return functools.partial(_text_bytes, length=4 * space.max_length)
    raise ValueError(f"no encoding for a space of type {type(space).__name__}")


def decoder(space: spaces.Space) -> Coder:
    """Return the function from an array of a leaf space to one value inside that space."""
    if is_image(space):
        return _image_decoder(space)
    if isinstance(space, spaces.Box):
        return _box_decoder(space)
    if isinstance(space, spaces.MultiBinary):
        return lambda array: (np.asarray(array).reshape(space.shape) > 0.5).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        start, kind = int(space.start), space.dtype.type
        return lambda array: kind(int(np.argmax(array)) + start)
    if isinstance(space, spaces.MultiDiscrete):
        return _choices_decoder(space)
    if isinstance(space, spaces.Text):
        return functools.partial(_bytes_text, space=space)
    raise ValueError(f"no decoding for a space of type {type(space).__name__}")


def _image_encoder(space: spaces.Box) -> Coder:
    if _channels_last(space):
        return lambda value: np.ascontiguousarray(np.moveaxis(np.asarray(value, np.uint8), -1, -3))
    return functools.partial(np.asarray, dtype=np.uint8)


def _image_decoder(space: spaces.Box) -> Coder:
    last, whole = _channels_last(space), bool((space.low == 0).all() and (space.high == 255).all())

    def decode(array: np.ndarray) -> np.ndarray:
        value = np.asarray(array)
        value = np.ascontiguousarray(np.moveaxis(value, -3, -1)) if last else value
        return value if whole else np.clip(value, space.low, space.high)

    return decode


def _scalar(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32).reshape(1)


def _box_decoder(space: spaces.Box) -> Coder:
    low, high, shape, dtype = space.low, space.high, space.shape, space.dtype
    if dtype == np.float32:
        return lambda array: np.minimum(np.maximum(np.asarray(array).reshape(shape), low), high, out=np.empty_like(low))

    def decode(array: np.ndarray) -> np.ndarray:
        value = np.asarray(array, np.float64).reshape(shape)
        if dtype.kind == "f":
            return np.asarray(np.minimum(np.maximum(value, low), high), dtype)
        value = np.rint(value)
        inside = (value > low) & (value < high)  # the ends are taken as they are: float64 cannot hold those of int64
        return np.where(inside, np.where(inside, value, 0).astype(dtype), np.where(value >= high, high, low))

    return decode


def _choices_encoder(space: spaces.MultiDiscrete) -> Coder:
    starts, sizes = space.start.reshape(-1), space.nvec.reshape(-1).tolist()

    def encode(value: Any) -> np.ndarray:
        index = (np.asarray(value).reshape(-1) - starts).tolist()
        return np.concatenate([_one_hot(i, n) for i, n in zip(index, sizes, strict=True)])

    return encode


def _choices_decoder(space: spaces.MultiDiscrete) -> Coder:
    borders, starts = np.cumsum(space.nvec.reshape(-1))[:-1], space.start.reshape(-1)

    def decode(array: np.ndarray) -> np.ndarray:
        index = np.array([int(np.argmax(piece)) for piece in np.split(np.asarray(array), borders)]) + starts
        return index.reshape(space.shape).astype(space.dtype)

    return decode


def _text_bytes(value: str, length: int) -> np.ndarray:
    from dreamsim.core import text  # here, so that processes which hold only an environment need no torch

    return text.encode([value], length)[0].numpy()


def _bytes_text(array: np.ndarray, space: spaces.Text) -> str:
    """Return what can be read, without the characters that the space lacks; it may be shorter than the space allows."""
    from dreamsim.core import text

    said = text.decode(np.asarray(array)[None])[0]
    return "".join(c for c in said if c in space.character_set)[: space.max_length]


def action_bounds(name: str, space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        largest = np.finfo(np.float32).max if space.dtype.kind == "f" else EXACT + 1
        if not (np.abs([low, high]) < largest).all():  # float types' largest numbers mean "no bounds" as well
            raise ValueError(
                f"action {name!r} has no finite bounds (low {space.low}, high {space.high}, {space.dtype}; whole "
                f"numbers may reach {EXACT}), so it cannot be scaled "
                "to [-1, 1]; wrap the environment in gymnasium.wrappers.RescaleAction or declare its real limits"
            )
        return low, high
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        size = action_size(space)
        return np.zeros(size), np.ones(size)
    raise ValueError(
        f"action {name!r} has a space of type {type(space).__name__}; "
        "supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"
    )


def action_size(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape or ()))


def choices(space: spaces.Space, start: int) -> Iterator[slice]:
    """Yield the one-hot pieces of an action part whose vector begins at ``start``."""
    sizes = [space.n] if isinstance(space, spaces.Discrete) else []
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
    for size in sizes:
        yield slice(start, start + int(size))
        start += int(size)


def holds_integers(space: spaces.Space) -> bool:
    return isinstance(space, spaces.MultiBinary) or (isinstance(space, spaces.Box) and space.dtype.kind in "iub")


def _refuse_float_image(name: str, space: spaces.Box) -> None:
    """An image in another type would reach models in another layout and range than the same image as uint8."""
    large = len(space.shape) in (3, 4) and sorted(space.shape[-3:])[1] >= SMALLEST_IMAGE
    if space.dtype == np.uint8 or not large or not _has_image_shape(space):
        return
    colour, ends = 3 in (space.shape[-1], space.shape[-3]), (space.low.min(), space.high.max())
    # Grey planes in 0..1 are as likely masks or heights, which stay as they are.
    if ends == (0, 255) or (colour and space.dtype.kind == "f" and ends == (0, 1)):
        raise ValueError(
            f"observation {name!r} looks like a {'colour ' if colour else ''}image held as {space.dtype} in "
            f"[0, {space.high.max():g}]; "
            "give images as uint8 in [0, 255] (gymnasium.wrappers.TransformObservation can convert it)"
        )


def _refuse_odd_image(name: str, space: spaces.Box) -> None:
    """An image whose channels cannot be told would reach models as numbers up to 255, four times as large."""
    shape = space.shape
    pairs = [(-2, -1)] if len(shape) == 2 else [(-2, -1), (-3, -2)] if len(shape) in (3, 4) else []
    large = any(min(shape[one], shape[two]) >= SURELY_IMAGE for one, two in pairs)
    if space.dtype == np.uint8 and large and (space.low.min(), space.high.max()) == (0, 255):
        raise ValueError(
            f"observation {name!r} looks like an image, but its shape {shape} is not (H, W, C) or (C, H, W) with 1, 3 "
            "or 4 channels, nor a stack (K, H, W, C); add the channel axis, or stack frames on an axis of their own "
            "(gymnasium.wrappers.ReshapeObservation or TransformObservation)"
        )


def _one_hot(index: int, size: int) -> np.ndarray:
    if not 0 <= index < size:
        raise ValueError(f"value {index} lies outside 0..{size - 1} of its Discrete space")
    row = np.zeros(size, np.float32)
    row[index] = 1
    return row
