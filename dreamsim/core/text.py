"""Strings on the inside of a program, bytes on its border.

Text travels in observations as UTF-8 bytes, uint8 (..., L), padded with 255, a byte
that never occurs in UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PAD = 255


def encode(texts: Sequence[str], length: int | None = None) -> Tensor:
    """Return texts as bytes (B, L). ``length`` L, None: that of the longest, at least 1.

    Lone surrogates become "?", for UTF-8 has no bytes for them. A text longer than
    ``length`` bytes is an error, never cut.
    """
    rows = [np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8) for text in texts]
    longest = max((len(row) for row in rows), default=0)
    size = max(1, longest) if length is None else length
    if longest > size:
        raise ValueError(f"a text of {longest} bytes does not fit into the declared {size}; raise the length")
    out = np.full((len(rows), size), PAD, np.uint8)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(out)


def decode(array: Tensor | np.ndarray) -> list[str]:
    """Return the strings of bytes (B, L)."""
    rows = array.cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
    return [bytes(row[row != PAD]).decode("utf-8", errors="replace") for row in rows]
