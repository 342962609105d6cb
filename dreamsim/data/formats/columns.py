"""Whole columns of a recording, encoded and decoded at once: what a codec does, without a loop over steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamsim.core import text
from dreamsim.core.leaf import Bytes, decoder, encoded_space, encoder, is_image
from dreamsim.core.spaces import _walk

Columns = Any
"""A tree of dicts and tuples like the space it belongs to; its leaves are arrays (N, ...) or lists of N strings."""


def encode(space: spaces.Space, columns: Columns) -> list[np.ndarray]:
    """Return every leaf's column (N, ...) in encoded form, in the order of the space.

    Numbers keep a wider type than float32 only where float32 cannot hold them exactly.
    Raises ValueError, KeyError or TypeError for columns that do not fit the space.
    """
    if isinstance(space, spaces.Dict):
        return [column for name, part in space.spaces.items() for column in encode(part, columns[name])]
    if isinstance(space, spaces.Tuple):
        if len(columns) != len(space.spaces):
            raise ValueError(f"{len(columns)} columns for a Tuple of {len(space.spaces)} spaces")
        return [column for part, inner in zip(space.spaces, columns, strict=True) for column in encode(part, inner)]
    return [_encode_leaf(space, columns)]


def observations(space: spaces.Space, names: list[str], columns: Columns) -> dict[str, np.ndarray]:
    """Return observations (T+1, ...) under the codec's ``names``: ``list(codec.observation_space.spaces)``."""
    found = dict(zip(_order(space), encode(space, columns), strict=True))
    return {name: found[name] for name in names}


def actions(space: spaces.Space, columns: Columns) -> np.ndarray:
    """Return actions (T, A) as vectors in raw units."""
    vectors = np.concatenate([column.reshape(len(column), -1) for column in encode(space, columns)], 1)
    return vectors if vectors.dtype.kind == "f" and vectors.dtype.itemsize > 4 else vectors.astype(np.float32)


def decode(space: spaces.Space, encoded: list[np.ndarray]) -> Columns:
    """Return the tree of columns whose encoded leaves are given; the inverse of ``encode``."""
    left = list(encoded)
    tree = _decode(space, left)
    if left:
        raise ValueError(f"{len(left)} columns more than the space has leaves")
    return tree


def decode_observations(space: spaces.Space, names: list[str], obs: Mapping[str, np.ndarray]) -> Columns:
    """Return the raw observations (T+1, ...) of an episode's ``obs``; the inverse of ``observations``."""
    return decode(space, [obs[name] for name in sorted(names, key=_order(space).index)])


def _order(space: spaces.Space) -> list[str]:
    """Return the codec's names in the order of the space; a Dict of them is sorted by name, "10" before "2"."""
    return [name for name, _ in _walk(space, "")]


def decode_actions(space: spaces.Space, vectors: np.ndarray) -> Columns:
    """Return the raw actions of vectors (T, A)."""
    sizes = [int(np.prod(shape)) for shape in _encoded_shapes(space)]
    pieces = np.split(vectors, np.cumsum(sizes)[:-1], axis=1)
    return decode(space, list(pieces))


def _encode_leaf(space: spaces.Space, column: Any) -> np.ndarray:
    if isinstance(space, spaces.Text):
        return text.encode(list(column), 4 * space.max_length).numpy()
    array = np.asarray(column)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"values of type {array.dtype} where numbers were expected")
    if isinstance(space, spaces.Discrete):
        return _one_hot(array.reshape(len(array), -1) - int(space.start), [int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(array.reshape(len(array), -1) - space.start.reshape(-1), space.nvec.reshape(-1).tolist())
    if array.shape[1:] != space.shape:
        raise ValueError(f"rows of shape {array.shape[1:]} where {space.shape} was expected")
    if is_image(space) or isinstance(space, Bytes):
        return encoder(space)(array) if array.dtype == np.uint8 else _refuse(array)
    if not space.shape:
        array = array[:, None]
    return exact(array)


def _refuse(array: np.ndarray) -> np.ndarray:
    raise ValueError(f"values of type {array.dtype} where uint8 was expected")


def exact(array: np.ndarray) -> np.ndarray:
    """Return float32 where it holds every number, else the array as it is."""
    with np.errstate(over="ignore", invalid="ignore"):
        small = array.astype(np.float32)
        same = np.array_equal(small.astype(array.dtype), array, equal_nan=array.dtype.kind == "f")
    return small if same else array


def _one_hot(index: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Return (N, sum of sizes) float32 of choices (N, number of sizes)."""
    if index.shape[1] != len(sizes):
        raise ValueError(f"{index.shape[1]} choices where {len(sizes)} were expected")
    if index.dtype.kind == "f" and not (np.rint(index) == index).all():
        raise ValueError("choices that are no whole numbers")
    index = index.astype(np.int64)
    if (index < 0).any() or (index >= np.array(sizes)).any():
        raise ValueError(f"choices from {index.min()} to {index.max()} where 0..{max(sizes) - 1} was expected")
    rows = np.zeros((len(index), sum(sizes)), np.float32)
    starts = np.cumsum([0, *sizes[:-1]])
    np.put_along_axis(rows, index + starts, 1, 1)
    return rows


def _decode(space: spaces.Space, left: list[np.ndarray]) -> Columns:
    if isinstance(space, spaces.Dict):
        return {name: _decode(part, left) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_decode(part, left) for part in space.spaces)
    return _decode_leaf(space, left.pop(0))


def _decode_leaf(space: spaces.Space, array: np.ndarray) -> Any:
    if isinstance(space, spaces.Text):
        return text.decode(array)
    if isinstance(space, spaces.Discrete):
        return (array.argmax(1) + int(space.start)).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        pieces = np.split(array, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
        chosen = np.stack([piece.argmax(1) for piece in pieces], 1).reshape(len(array), *space.shape)
        return (chosen + space.start).astype(space.dtype)
    if is_image(space):
        return decoder(space)(array)
    return np.asarray(array).reshape(len(array), *(space.shape or ())).astype(space.dtype)


def _encoded_shapes(space: spaces.Space) -> list[tuple[int, ...]]:
    if isinstance(space, spaces.Dict):
        return [shape for part in space.spaces.values() for shape in _encoded_shapes(part)]
    if isinstance(space, spaces.Tuple):
        return [shape for part in space.spaces for shape in _encoded_shapes(part)]
    return [encoded_space("", space).shape]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts under their names joined by "/"."""
    found: dict[str, Any] = {}
    for name, part in tree.items():
        found |= flat(part, f"{prefix}{name}/") if isinstance(part, dict) else {f"{prefix}{name}": part}
    return found


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts of names joined by "/"; the inverse of ``flat``."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return tree
