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


def spaces_in_words(space: spaces.Dict) -> str:
    return ", ".join(f"{name} {part.dtype} {part.shape}" for name, part in space.spaces.items())
