"""One way to say what was expected, what was found and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor


class Broken(ValueError):
    """A part does not keep its contract."""


def expect(holds: Any, expected: str, found: Any, cure: str) -> None:
    if not holds:
        raise Broken(f"expected {expected}; found {found}. {cure[0].upper()}{cure[1:]}.")


def in_words(value: Any) -> str:
    if isinstance(value, (np.ndarray, Tensor)):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {in_words(part)}" for name, part in value.items()) + "}"
    return f"{type(value).__name__} {value!r}"[:200]


def misfit(space: spaces.Space, value: Any, name: str = "observation") -> str | None:
    """Say which part of a value does not lie in its space, and how; None: all of it does."""
    if space.contains(value):
        return None
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.keys():
            came = sorted(value) if isinstance(value, dict) else in_words(value)
            return f"{name} is {came}, not a dict of {sorted(space)}"
        return next((said for key in space if (said := misfit(space[key], value[key], f"{name}[{key!r}]"))), None)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space):
            return f"{name} is {in_words(value)}, not a tuple of {len(space)}"
        return next((said for i, part in enumerate(space) if (said := misfit(part, value[i], f"{name}[{i}]"))), None)
    return _outside(space, value, name)


def _outside(space: spaces.Space, value: Any, name: str) -> str:
    if not isinstance(space, spaces.Box):
        return f"{name} is {in_words(value)}, which is not in {space}"
    if not isinstance(value, (np.ndarray, np.generic)):
        return f"{name} is {in_words(value)}, not an array"
    if value.shape != space.shape or not np.can_cast(value.dtype, space.dtype or value.dtype):
        return f"{name} is {in_words(value)}, not {space.dtype} of shape {space.shape}"
    place = tuple(int(i) for i in np.argwhere(~((value >= space.low) & (value <= space.high)))[0])
    bounds = f"[{space.low[place]:g}, {space.high[place]:g}]"
    return f"{name} is {np.asarray(value)[place]:g}{f' at {list(place)}' if place else ''}, outside {bounds}"


def spaces_in_words(space: spaces.Dict) -> str:
    return ", ".join(f"{name} {part.dtype} {part.shape}" for name, part in space.spaces.items())
