"""From any Gymnasium space to named arrays and one action vector, and back.

Observations: nested names are joined by "/"; images become (C, H, W) uint8, stacks of K
images (K, C, H, W) uint8; numbers keep their units as float32, unscaled; Discrete and
MultiDiscrete become one-hot float32.
Actions: every part is laid end to end in one float32 vector; Box parts keep their raw
units in the store and are scaled to [-1, 1] for models and policies; Discrete parts are
one-hot in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamsim.core.leaf import (
    Bytes,
    action_bounds,
    action_size,
    choices,
    decoder,
    encoded_space,
    encoder,
    holds_integers,
    is_image,
)

LARGEST = 2**27  # values of one part of a space that is read from a file


class Scale:
    """The affine map between raw units and [-1, 1], per component of an action vector (A,).

    ``centre`` and ``half`` are float32 (A,); one-hot components have centre 0 and half 1,
    so that a vector already in [-1, 1] passes through bit for bit.
    """

    def __init__(self, centre: np.ndarray, half: np.ndarray) -> None:
        self.centre = np.asarray(centre, np.float32)
        self.half = np.asarray(half, np.float32)
        self._divisor = np.where(self.half > 0, self.half, 1.0).astype(np.float32)

    def raw(self, unit: np.ndarray) -> np.ndarray:
        """Return raw units of (..., A) in [-1, 1]; values outside are clipped."""
        unit = np.minimum(np.maximum(np.asarray(unit, np.float32), -1.0), 1.0)
        return self.centre + unit * self.half

    def unit(self, raw: np.ndarray) -> np.ndarray:
        """Return [-1, 1] of raw units (..., A). A component that cannot vary reads 0."""
        return (np.asarray(raw, np.float32) - self.centre) / self._divisor


class Codec:
    """Translates between an environment's own spaces and what models and policies see.

    ``observation_space`` is a flat ``Dict`` and ``action_space`` what a policy is built
    for: ``Discrete(n)`` (its vector form is one-hot (n,)), else ``Box(-1, 1, (A,))``.
    Raises ValueError, naming the space, for what cannot be encoded.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.raw_observation_space = observation_space
        self.raw_action_space = action_space
        self._parts = _named(_walk(observation_space, ""))
        if not self._parts:
            raise ValueError(f"the observation space {observation_space} holds nothing; it needs 1 or more parts")
        self.observation_space = spaces.Dict({name: encoded_space(name, part) for name, part in self._parts.items()})
        self._encoders = [(name, path, encoder(self._parts[name])) for name, path in _walk_paths(observation_space)]
        self._action_parts = _named(_walk(action_space, "", alone="action"))
        self._action_slices = _slices(self._action_parts)
        nested = isinstance(action_space, (spaces.Dict, spaces.Tuple))
        bounds = [action_bounds(name, part) for name, part in self._action_parts.items()]
        if not sum(len(low) for low, _ in bounds):
            raise ValueError(f"the action space {action_space} holds nothing; an action has 1 or more components")
        self._decode_alone = None if nested else decoder(action_space)
        low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
        onehot = self._components(lambda part: not isinstance(part, spaces.Box))
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        whole = self._components(holds_integers)
        self._whole = whole if whole.any() else None
        self._pieces = action_layout(action_space)[1]
        self.action_size = len(low)
        self.scale = Scale(np.where(onehot, 0, (high + low) / 2), np.where(onehot, 1, (high - low) / 2))
        self.action_space: spaces.Space
        if isinstance(action_space, spaces.Discrete):
            self.action_space = spaces.Discrete(int(action_space.n))
        else:
            self.action_space = spaces.Box(-1.0, 1.0, (self.action_size,), np.float32)

    def __reduce__(self) -> tuple:
        return type(self), (self.raw_observation_space, self.raw_action_space), {"scale": self.scale}

    def encode_obs(self, raw: Any) -> dict[str, np.ndarray]:
        """Return one raw observation as named arrays."""
        obs = {}
        for name, path, encode in self._encoders:
            value = raw
            for key in path:
                value = value[key]
            obs[name] = encode(value)
        return obs

    def decode_obs(self, obs: dict[str, np.ndarray]) -> Any:
        """Return named arrays as one raw observation."""
        return _build(self.raw_observation_space, "", lambda name, part: decoder(part)(obs[name]))

    def flatten_action(self, raw: Any) -> np.ndarray:
        """Return one raw action as its vector (A,) in raw units."""
        values = _walk_value(self.raw_action_space, raw, "", alone="action")
        parts = [encoder(self._action_parts[name])(value).reshape(-1) for name, value in values]
        return np.concatenate(parts).astype(np.float32)

    def unflatten_action(self, vector: np.ndarray) -> Any:
        """Return one raw-unit vector (A,) as the environment's own action, inside its space."""
        if self._decode_alone is not None:
            return self._decode_alone(vector)
        slices = self._action_slices
        return _build(self.raw_action_space, "", lambda name, part: decoder(part)(vector[slices[name]]), alone="action")

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
        return np.concatenate([np.full(action_size(part), says(part)) for part in self._action_parts.values()])


def action_layout(space: spaces.Space) -> tuple[int, list[slice], list[int]]:
    """Return A of an action space's vector, its one-hot pieces, and the places of its binary components.

    Every other component is a number in [-1, 1].
    """
    parts = _named(_walk(space, "", alone="action"))
    places = _slices(parts)
    pieces = [piece for name, part in parts.items() for piece in choices(part, places[name].start)]
    flags = [name for name, part in parts.items() if isinstance(part, spaces.MultiBinary)]
    binary = [place for name in flags for place in range(places[name].start, places[name].stop)]
    return sum(action_size(part) for part in parts.values()), pieces, binary


def as_seen(stored: np.ndarray) -> np.ndarray:
    """Return stored observations in the types that models see: uint8 as it is, every other number as float32."""
    return stored if stored.dtype == np.uint8 else stored.astype(np.float32, copy=False)


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
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, spaces.Text):
        lengths = {"min_length": space.min_length, "max_length": space.max_length}
        return {"type": "Text", **lengths, "charset": "".join(space.character_list)}
    raise ValueError(
        f"cannot describe a space of type {type(space).__name__}; "
        "supported: Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple"
    )


def space_from_json(data: dict[str, Any]) -> spaces.Space:
    """Return the space that ``space_to_json`` described. Raises ValueError for anything else."""
    try:
        return _from_json(data)
    except (KeyError, TypeError, AttributeError, AssertionError, OverflowError, RecursionError) as error:
        raise ValueError(f"no description of a space ({error!r})") from error


def _from_json(data: dict[str, Any]) -> spaces.Space:
    kind, dtype = data["type"], np.dtype(data.get("dtype", np.int64))
    if kind == "Dict":  # a list of pairs keeps its order, which actions are laid out in
        return spaces.Dict([(name, _from_json(part)) for name, part in data["spaces"].items()])
    if kind == "Tuple":
        return spaces.Tuple([_from_json(part) for part in data["spaces"]])
    if kind == "Bytes":
        return Bytes(_counted(data["length"]))
    if kind == "Box":
        shape = tuple(data["shape"])
        _counted(*shape)
        low, high = (_bounds_from_json(data[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype)
    if kind == "Discrete":
        return spaces.Discrete(_counted(data["n"]), start=data["start"], dtype=dtype.type)
    if kind == "MultiDiscrete":
        _counted(int(np.sum(data["nvec"])))
        start = None if data["start"] is None else np.array(data["start"], dtype)
        return spaces.MultiDiscrete(np.array(data["nvec"], dtype), dtype.type, start=start)
    if kind == "MultiBinary":
        _counted(*np.atleast_1d(data["n"]).tolist())
        return spaces.MultiBinary(data["n"])
    if kind == "Text":
        _counted(data["max_length"])
        return spaces.Text(data["max_length"], min_length=data.get("min_length", 1), charset=data["charset"])
    raise ValueError(f"unknown kind of space {kind!r}")


def _counted(*sizes: int) -> int:
    """Return the product of sizes, refusing what a damaged file could name and no memory could hold."""
    product = math.prod(sizes)
    if min(sizes, default=0) < 0 or product > LARGEST:
        raise ValueError(f"a space of {sizes} values; expected 0 to {LARGEST}")
    return product


def _walk(space: spaces.Space, prefix: str, alone: str | None = None):
    """Yield (name, leaf space) of a nested space; a space that is not nested gets one name."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"the name {name!r} of a part of a Dict space is empty or no text; rename it")
            yield from _walk(part, f"{prefix}{name}/")
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _walk(part, f"{prefix}{number}/")
    else:
        yield prefix[:-1] or alone or _name_alone(space), space


def _named(leaves: Iterator[tuple[str, spaces.Space]]) -> dict[str, spaces.Space]:
    parts: dict[str, spaces.Space] = {}
    for name, part in leaves:
        if name in parts:
            raise ValueError(
                f'two parts of a space are called {name!r}, for "/" joins nested names; rename one of them'
            )
        parts[name] = part
    return parts


def _walk_paths(space: spaces.Space, prefix: str = "", path: tuple = ()) -> Iterator[tuple[str, tuple]]:
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
        slices[name] = slice(start, start + action_size(part))
        start += action_size(part)
    return slices


def _bounds_to_json(side: np.ndarray) -> Any:
    flat = side.reshape(-1)
    values = [str(v) if not np.isfinite(v) else v.item() for v in (flat[:1] if (flat == flat[:1]).all() else flat)]
    return values[0] if len(values) == 1 else values


def _bounds_from_json(side: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = [float(v) if isinstance(v, str) else v for v in (side if isinstance(side, list) else [side])]
    array = np.array(values, dtype if dtype.kind in "iu" else np.float64).astype(dtype)
    return np.full(shape, array[0], dtype) if len(values) == 1 else array.reshape(shape)
