"""Spaces for recordings that declare none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

WIDE = 2.0  # a range this many times that of 98 % of its numbers is made by outliers


def action_box(actions: np.ndarray) -> tuple[spaces.Box, str]:
    """Return a Box for recorded actions (N, A), and a note that says where its bounds come from.

    Bounds are -1 and 1 where every action lies between them. Else they are the recorded extremes, or,
    per component whose extremes are outliers, the 1 % and 99 % quantiles. Raises ValueError without a finite row.
    """
    rows = np.asarray(actions).reshape(len(actions), -1)
    rows = rows[np.isfinite(rows).all(1)]
    if not len(rows):
        raise ValueError("no finite action is recorded, so their bounds cannot be told")
    kind = np.float64 if rows.dtype == np.float64 else np.float32
    low, high = rows.min(0), rows.max(0)
    if low.min() >= -1 and high.max() <= 1:
        return spaces.Box(-1, 1, rows.shape[1:], kind), "actions lie in [-1, 1], which is taken as their bounds"
    first, last = np.quantile(rows, [0.01, 0.99], axis=0)
    wide = (high - low) > WIDE * (last - first)
    wide &= last > first
    low, high = np.where(wide, first, low).astype(kind), np.where(wide, last, high).astype(kind)
    outside = int(((rows < low) | (rows > high)).any(1).sum())
    note = "action bounds are the recorded extremes, as the format has none"
    if wide.any():
        note = (
            f"action bounds are recorded extremes, but 1 % and 99 % quantiles for components {np.flatnonzero(wide)} "
            f"whose extremes are outliers; {outside} of {len(rows)} actions lie outside and stay as recorded"
        )
    return spaces.Box(low, high, dtype=kind), note


def observation_box(values: np.ndarray) -> spaces.Box:
    """Return an unbounded Box for one recorded field (N, ...), for uint8 one of [0, 255]."""
    if values.dtype == np.uint8:
        return spaces.Box(0, 255, values.shape[1:], np.uint8)
    dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
    return spaces.Box(-np.inf, np.inf, values.shape[1:], dtype.type)


def bounded(space: spaces.Space, actions: Callable[[], np.ndarray]) -> tuple[spaces.Space, list[str]]:
    """Return an action space that can be scaled, and notes: an unbounded Box gets bounds from ``actions()`` (N, A)."""
    if not isinstance(space, spaces.Box) or (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return space, []
    box, note = action_box(actions())
    return spaces.Box(box.low.reshape(space.shape), box.high.reshape(space.shape), dtype=space.dtype.type), [note]
