"""From any Gymnasium space to named arrays and one action vector, and back.

Observations: nested names are joined by "/"; images become (C, H, W) uint8, stacks of K
images (K, C, H, W) uint8; numbers keep their units as float32, unscaled; Discrete and
MultiDiscrete become one-hot float32.
Actions: every part is laid end to end in one float32 vector; Box parts keep their raw
units in the store and are scaled to [-1, 1] for models and policies; Discrete parts are
one-hot in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 8


class Bytes(spaces.Box):
    """Text in encoded form: uint8 (length,), padded with 255. A codec lets it pass as it is."""

    def __init__(self, length: int) -> None:
        super().__init__(0, 255, (length,), np.uint8)


class Scale:
    """The affine map between raw units and [-1, 1], per component of an action vector (A,).

    ``centre`` and ``half`` are float32 (A,); one-hot components have centre 0 and half 1,
    so that a vector already in [-1, 1] passes through bit for bit.
    """

    def __init__(self, centre: np.ndarray, half: np.ndarray) -> None:
        self.centre = np.asarray(centre, np.float32)
        self.half = np.asarray(half, np.float32)

    def raw(self, unit: np.ndarray) -> np.ndarray:
        """Return raw units of (..., A) in [-1, 1]; values outside are clipped."""
        unit = np.minimum(np.maximum(np.asarray(unit, np.float32), -1.0), 1.0)
        return self.centre + unit * self.half

    def unit(self, raw: np.ndarray) -> np.ndarray:
        """Return [-1, 1] of raw units (..., A). A component that cannot vary reads 0."""
        half = np.where(self.half > 0, self.half, 1.0).astype(np.float32)
        return (np.asarray(raw, np.float32) - self.centre) / half


class Codec:
    """Translates between an environment's own spaces and what models and policies see.

    ``observation_space`` is a flat ``Dict`` and ``action_space`` what a policy is built
    for: ``Discrete(n)`` (its vector form is one-hot (n,)), else ``Box(-1, 1, (A,))``.
    Raises ValueError, naming the space, for what cannot be encoded.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.raw_observation_space = observation_space
        self.raw_action_space = action_space
        self._parts = dict(_walk(observation_space, ""))
        self._paths = dict(_walk_paths(observation_space, "", ()))
        self.observation_space = spaces.Dict({name: _encoded_space(name, part) for name, part in self._parts.items()})
        self._action_parts = dict(_walk(action_space, "", alone="action"))
        self._action_slices = _slices(self._action_parts)
        bounds = [_action_bounds(name, part) for name, part in self._action_parts.items()]
        low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
        onehot = self._components(lambda part: not isinstance(part, spaces.Box))
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        whole = self._components(_holds_integers)
        self._whole = whole if whole.any() else None
        starts = {name: piece.start for name, piece in self._action_slices.items()}
        self._pieces = [p for name, part in self._action_parts.items() for p in _choices(part, starts[name])]
        self.action_size = len(low)
        self.scale = Scale(np.where(onehot, 0, (high + low) / 2), np.where(onehot, 1, (high - low) / 2))
        self.action_space: spaces.Space
        if isinstance(action_space, spaces.Discrete):
            self.action_space = spaces.Discrete(int(action_space.n))
        else:
            self.action_space = spaces.Box(-1.0, 1.0, (self.action_size,), np.float32)

    def encode_obs(self, raw: Any) -> dict[str, np.ndarray]:
        """Return one raw observation as named arrays."""
        obs = {}
        for name, path in self._paths.items():
            value = raw
            for key in path:
                value = value[key]
            obs[name] = _encode(self._parts[name], value)
        return obs

    def decode_obs(self, obs: dict[str, np.ndarray]) -> Any:
        """Return named arrays as one raw observation."""
        return _build(self.raw_observation_space, "", lambda name, part: _decode(part, obs[name]))

    def flatten_action(self, raw: Any) -> np.ndarray:
        """Return one raw action as its vector (A,) in raw units."""
        values = _walk_value(self.raw_action_space, raw, "", alone="action")
        parts = [_encode(self._action_parts[name], value).reshape(-1) for name, value in values]
        return np.concatenate(parts).astype(np.float32)

    def unflatten_action(self, vector: np.ndarray) -> Any:
        """Return one raw-unit vector (A,) as the environment's own action, inside its space."""
        return _build(
            self.raw_action_space,
            "",
            lambda name, part: _decode(part, vector[self._action_slices[name]]),
            alone="action",
        )

    def encode_action(self, raw: Any) -> np.ndarray:
        """Return one raw action as the vector (A,) in [-1, 1] that models and policies use."""
        return self.scale.unit(self.flatten_action(raw))

    def decode_action(self, unit: np.ndarray) -> Any:
        """Return a policy's vector (A,) as the environment's own action, always inside its space."""
        return self.unflatten_action(self.settle(unit))

    def settle(self, unit: np.ndarray) -> np.ndarray:
        """Return in raw units (..., A) what an environment really gets for a policy's (..., A).

        Numbers are clipped to their bounds, integers rounded, and each Discrete part becomes
        the one-hot vector of its largest component.
        """
        vector = np.minimum(np.maximum(self.scale.raw(unit), self._low), self._high)
        if self._whole is not None:
            vector = np.where(self._whole, np.rint(vector), vector)
        for piece in self._pieces:
            chosen = vector[..., piece].argmax(-1)
            vector[..., piece] = np.eye(piece.stop - piece.start, dtype=np.float32)[chosen]
        return vector

    def _components(self, says: Callable[[spaces.Space], bool]) -> np.ndarray:
        return np.concatenate([np.full(_action_size(part), says(part)) for part in self._action_parts.values()])


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """Describe a space in plain JSON."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {name: space_to_json(part) for name, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, Bytes):
        return {"type": "Bytes", "length": space.shape[0]}
    if isinstance(space, spaces.Box):
        low, high = (_bounds_to_json(side) for side in (space.low, space.high))
        return {"type": "Box", "low": low, "high": high, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, spaces.Text):
        return {"type": "Text", "max_length": space.max_length, "charset": "".join(sorted(space.character_set))}
    raise ValueError(
        f"cannot describe a space of type {type(space).__name__}; "
        "supported: Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple"
    )


def space_from_json(data: dict[str, Any]) -> spaces.Space:
    """Return the space that ``space_to_json`` described."""
    kind = data["type"]
    if kind == "Dict":
        return spaces.Dict({name: space_from_json(part) for name, part in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in data["spaces"]])
    if kind == "Bytes":
        return Bytes(data["length"])
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (_bounds_from_json(data[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Text":
        return spaces.Text(data["max_length"], charset=data["charset"])
    raise ValueError(f"unknown kind of space {kind!r}")


def is_image(space: spaces.Space) -> bool:
    """Say whether a space holds uint8 images (H, W, C) or (C, H, W), or stacks of them.

    A side below 8 with the channels last means a grid of codes (MiniGrid's is 7 x 7 x 3), no image.
    What is encoded, channels first, is an image in any size.
    """
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and _has_image_shape(space)


def _has_image_shape(space: spaces.Box) -> bool:
    return len(space.shape) in (3, 4) and (_channels_last(space) or space.shape[-3] in CHANNELS)


def _channels_last(space: spaces.Box) -> bool:
    return space.shape[-1] in CHANNELS and min(space.shape[-3:-1]) >= SMALLEST_IMAGE


def _moved(array: np.ndarray, source: int, target: int) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, source, target))


def _walk(space: spaces.Space, prefix: str, alone: str | None = None):
    """Yield (name, leaf space) of a nested space; a space that is not nested gets one name."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            if "/" in name:
                raise ValueError(f'observation name {name!r} contains "/", which joins nested names; rename it')
            yield from _walk(part, f"{prefix}{name}/")
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _walk(part, f"{prefix}{number}/")
    else:
        yield prefix[:-1] or alone or _name_alone(space), space


def _walk_paths(space: spaces.Space, prefix: str, path: tuple) -> Iterator[tuple[str, tuple]]:
    """Yield (name, keys that lead to the leaf) of a nested space."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _walk_paths(part, f"{prefix}{name}/", (*path, name))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _walk_paths(part, f"{prefix}{number}/", (*path, number))
    else:
        yield prefix[:-1] or _name_alone(space), path


def _walk_value(space: spaces.Space, value: Any, prefix: str, alone: str | None = None):
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _walk_value(part, value[name], f"{prefix}{name}/")
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _walk_value(part, value[number], f"{prefix}{number}/")
    else:
        yield prefix[:-1] or alone or _name_alone(space), value


def _build(space: spaces.Space, prefix: str, leaf, alone: str | None = None) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _build(part, f"{prefix}{name}/", leaf) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build(part, f"{prefix}{number}/", leaf) for number, part in enumerate(space.spaces))
    return leaf(prefix[:-1] or alone or _name_alone(space), space)


def _name_alone(space: spaces.Space) -> str:
    if is_image(space):
        return "image"
    return "text" if isinstance(space, spaces.Text) else "observation"


def _slices(parts: dict[str, spaces.Space]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, part in parts.items():
        slices[name] = slice(start, start + _action_size(part))
        start += _action_size(part)
    return slices


def _choices(space: spaces.Space, start: int) -> Iterator[slice]:
    """Yield the one-hot pieces of an action part whose vector begins at ``start``."""
    sizes = [space.n] if isinstance(space, spaces.Discrete) else []
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
    for size in sizes:
        yield slice(start, start + int(size))
        start += int(size)


def _holds_integers(space: spaces.Space) -> bool:
    return isinstance(space, spaces.MultiBinary) or (
        isinstance(space, spaces.Box) and bool(np.issubdtype(space.dtype, np.integer))
    )


def _encoded_space(name: str, space: spaces.Space) -> spaces.Box:
    if is_image(space):
        assert isinstance(space, spaces.Box)
        *stack, height, width, channels = space.shape
        shape = (*stack, channels, height, width) if _channels_last(space) else space.shape
        return spaces.Box(0, 255, shape, np.uint8)
    if isinstance(space, Bytes):
        return space
    if isinstance(space, spaces.Box):
        _refuse_float_image(name, space)
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


def _refuse_float_image(name: str, space: spaces.Box) -> None:
    """A colour image as float would reach models in another layout and range than the same image as uint8."""
    large = len(space.shape) in (3, 4) and sorted(space.shape[-3:])[1] >= SMALLEST_IMAGE
    colour = large and _has_image_shape(space) and 3 in (space.shape[-1], space.shape[-3])
    if space.dtype.kind == "f" and colour and (space.low.min(), space.high.max()) in ((0, 1), (0, 255)):
        raise ValueError(
            f"observation {name!r} looks like a colour image held as {space.dtype} in [0, {space.high.max():g}]; "
            "give images as uint8 in [0, 255] (gymnasium.wrappers.TransformObservation can convert it)"
        )


def _action_bounds(name: str, space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(
                f"action {name!r} has no finite bounds (low {space.low}, high {space.high}), so it cannot be scaled "
                "to [-1, 1]; wrap the environment in gymnasium.wrappers.RescaleAction or declare its real limits"
            )
        return low, high
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        size = _action_size(space)
        return np.zeros(size), np.ones(size)
    raise ValueError(
        f"action {name!r} has a space of type {type(space).__name__}; "
        "supported: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"
    )


def _action_size(space: spaces.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape or ()))


def _encode(space: spaces.Space, value: Any) -> np.ndarray:
    if is_image(space):
        assert isinstance(space, spaces.Box)
        array = np.asarray(value, np.uint8)
        return _moved(array, -1, -3) if _channels_last(space) else array
    if isinstance(space, Bytes):
        return np.asarray(value, np.uint8)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        array = np.asarray(value, np.float32)
        return array if array.ndim else array.reshape(1)
    if isinstance(space, spaces.Discrete):
        return _one_hot(int(value) - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        index = np.asarray(value).reshape(-1) - space.start.reshape(-1)
        return np.concatenate([_one_hot(int(i), int(n)) for i, n in zip(index, space.nvec.reshape(-1), strict=True)])
    assert isinstance(space, spaces.Text)
    from dreamsim.core import text  # here, so that processes which hold only an environment need no torch

    return text.encode([value], 4 * space.max_length)[0].numpy()


def _decode(space: spaces.Space, array: np.ndarray) -> Any:
    if is_image(space):
        assert isinstance(space, spaces.Box)
        return _moved(np.asarray(array), -3, -1) if _channels_last(space) else np.asarray(array)
    if isinstance(space, spaces.Box):
        value = np.asarray(array, np.float64).reshape(space.shape)
        if space.dtype.kind in "iu":
            value = np.rint(value)
        return np.asarray(np.minimum(np.maximum(value, space.low), space.high), space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (np.asarray(array).reshape(space.shape) > 0.5).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(int(np.argmax(array)) + int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        pieces = np.split(np.asarray(array), np.cumsum(space.nvec.reshape(-1))[:-1])
        index = np.array([int(np.argmax(piece)) for piece in pieces]) + space.start.reshape(-1)
        return index.reshape(space.shape).astype(space.dtype)
    assert isinstance(space, spaces.Text)
    from dreamsim.core import text

    return text.decode(np.asarray(array)[None])[0]


def _one_hot(index: int, size: int) -> np.ndarray:
    if not 0 <= index < size:
        raise ValueError(f"value {index} lies outside 0..{size - 1} of its Discrete space")
    row = np.zeros(size, np.float32)
    row[index] = 1
    return row


def _bounds_to_json(side: np.ndarray) -> Any:
    flat = side.reshape(-1)
    values = [str(v) if not np.isfinite(v) else v.item() for v in (flat[:1] if (flat == flat[:1]).all() else flat)]
    return values[0] if len(values) == 1 else values


def _bounds_from_json(side: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = [float(v) if isinstance(v, str) else v for v in (side if isinstance(side, list) else [side])]
    array = np.array(values, None if dtype.kind in "iu" else np.float64).astype(dtype)
    return np.full(shape, array[0], dtype) if len(values) == 1 else array.reshape(shape)
