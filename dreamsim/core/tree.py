"""Trees of dicts, tuples (NamedTuples too) and lists, whose leaves are tensors or arrays.

``None`` is an empty tree. Nothing here modifies its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def map(function: Callable, tree: Any, *others: Any) -> Any:
    """Apply ``function`` to every leaf (and the leaves at the same place in ``others``)."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        _check_same_names(tree, others)
        return {name: map(function, value, *(other[name] for other in others)) for name, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        if any(len(other) != len(tree) for other in others):
            raise ValueError(f"trees of different lengths: {[len(tree), *(len(o) for o in others)]}")
        values = [map(function, *row) for row in zip(tree, *others, strict=True)]
        return type(tree)(*values) if _is_named(tree) else type(tree)(values)
    return function(tree, *others)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield every leaf, in the order of the tree."""
    if tree is None:
        return
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """Stack trees of the same shape along a new axis."""
    return map(lambda *values: torch.stack(values, axis), *trees)


def cat(trees: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate trees along an axis."""
    return map(lambda *values: torch.cat(values, axis), *trees)


def where(mask: Tensor, yes: Any, no: Any) -> Any:
    """Take rows of ``yes`` where ``mask`` (B,) is true, rows of ``no`` elsewhere."""
    return map(lambda a, b: torch.where(mask.reshape(mask.shape + (1,) * (a.dim() - 1)), a, b), yes, no)


def select(tree: Any, index: Any) -> Any:
    """Index the leading axis of every leaf."""
    return map(lambda leaf: leaf[index], tree)


def put(tree: Any, index: Any, rows: Any) -> Any:
    """Return ``tree`` with the given rows of its leading axis replaced."""

    def replace(leaf: Tensor, new: Tensor) -> Tensor:
        copy = leaf.clone()
        copy[index] = new
        return copy

    return map(replace, tree, rows)


def detach(tree: Any) -> Any:
    """Cut every leaf from its graph."""
    return map(lambda leaf: leaf.detach(), tree)


def to(tree: Any, device: torch.device | str) -> Any:
    """Move every tensor leaf to a device."""
    return map(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, tree)


def batch_size(tree: Any) -> int:
    """Return the length of the leading axis of the first leaf."""
    for leaf in leaves(tree):
        return leaf.shape[0]
    raise ValueError("an empty tree has no batch size")


def _is_named(tree: Any) -> bool:
    return isinstance(tree, tuple) and type(tree) is not tuple


def _check_same_names(tree: dict, others: tuple) -> None:
    for other in others:
        if other.keys() != tree.keys():
            raise ValueError(f"trees with different names: {sorted(tree)} and {sorted(other)}")
