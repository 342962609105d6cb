"""Any tree as what a weights-only checkpoint may hold: tensors, numbers, strings, lists and dicts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

Plain = dict[str, Any]


def to_plain(tree: Any) -> Plain:
    """Describe a tree of dicts, lists, tuples, NamedTuples, tensors, arrays, numbers, strings and None.

    Tensors are detached copies on the CPU. Raises TypeError for any other leaf.
    """
    if isinstance(tree, dict):
        return {"kind": "dict", "names": list(tree), "values": [to_plain(value) for value in tree.values()]}
    if isinstance(tree, (tuple, list)):
        kind = type(tree)
        plain: Plain = {"kind": "list" if kind is list else "tuple", "values": [to_plain(value) for value in tree]}
        if kind not in (tuple, list):
            plain |= {"kind": "named", "type": [kind.__module__, kind.__qualname__]}
        return plain
    if isinstance(tree, Tensor):
        return {"kind": "tensor", "value": tree.detach().cpu().clone()}
    if isinstance(tree, (np.ndarray, np.generic)):
        return {"kind": "array", "value": torch.tensor(np.asarray(tree))}
    if tree is None or isinstance(tree, (bool, int, float, str, bytes)):
        return {"kind": "value", "value": tree}
    raise TypeError(
        f"cannot keep a {type(tree).__name__} in a checkpoint; use tensors, numbers, strings and trees of them"
    )


def from_plain(plain: Plain, device: torch.device | str = "cpu") -> Any:
    """Return the tree that ``to_plain`` described, its tensors on ``device``.

    A NamedTuple's module must already be imported; nothing is imported on behalf of a file.
    """
    kind = plain["kind"]
    if kind == "dict":
        return dict(zip(plain["names"], (from_plain(v, device) for v in plain["values"]), strict=True))
    if kind in ("list", "tuple", "named"):
        values = [from_plain(value, device) for value in plain["values"]]
        if kind == "named":
            return _named_type(*plain["type"])(*values)
        return values if kind == "list" else tuple(values)
    if kind == "tensor":
        return plain["value"].clone().to(device)
    return plain["value"].numpy().copy() if kind == "array" else plain["value"]


def _named_type(module: str, name: str) -> type:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple)):
        raise TypeError(f"this checkpoint holds a {module}.{name}; make the part of the run that defines it first")
    return found
