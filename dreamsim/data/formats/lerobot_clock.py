"""Recordings whose clock missed beats: what to do about frames that were dropped.

A clock is kept when each frame follows the one before by less than one and a half periods; smaller
deviations are jitter, which is reported and, unless frames are interpolated, kept with its real times.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from dreamsim.data.formats.recording import BadRecording

JITTER = 1e-4  # seconds a frame may be off before it is told (LeRobot's own tolerance)
GAP = 1.5  # periods between two frames from which one was dropped between them

Columns = dict[str, np.ndarray]
"""The columns (T, ...) of one recorded episode, one row a frame."""


class Beats(NamedTuple):
    """How well times (T,) keep a rate."""

    gaps: np.ndarray  # (G,) frames after which at least one is missing
    missing: int  # frames that were dropped
    back: np.ndarray  # (K,) frames after which the clock does not rise
    jitter: float  # largest deviation of a step that is no gap, seconds


class Mended(NamedTuple):
    """What a policy made of one episode: none, one or several pieces, and what was done, in words."""

    pieces: list[tuple[np.ndarray, Columns]]  # times (T,) and columns of each
    done: str  # empty: nothing


class Clock(Protocol):
    """A policy for episodes whose clock has gaps or runs back."""

    def mend(self, time: np.ndarray, columns: Columns, rate: float, flowing: frozenset[str]) -> Mended:
        """Return the pieces to keep of one episode. ``flowing``: columns whose numbers change steadily."""
        ...


class Drop:
    """Leave out an episode in which a frame is missing."""

    def mend(self, time: np.ndarray, columns: Columns, rate: float, flowing: frozenset[str]) -> Mended:
        """Return the episode, or nothing."""
        beats = listen(time, rate)
        if len(beats.gaps) or len(beats.back):
            return Mended([], f"dropped: {faults(beats)}")
        return Mended([(time, columns)], "")


class Mask:
    """Keep every frame, but let no step span a gap: the episode is cut there into pieces."""

    def mend(self, time: np.ndarray, columns: Columns, rate: float, flowing: frozenset[str]) -> Mended:
        """Return the pieces between the gaps."""
        beats = listen(time, rate)
        cuts = np.union1d(beats.gaps, beats.back).astype(int) + 1
        if not len(cuts):
            return Mended([(time, columns)], "")
        borders = [0, *cuts.tolist(), len(time)]
        pieces = [slice(first, last) for first, last in itertools.pairwise(borders)]
        rows = [(time[piece], {name: column[piece] for name, column in columns.items()}) for piece in pieces]
        return Mended(rows, f"masked: {faults(beats)}; cut there into {len(rows)} pieces")


class Interpolate:
    """Put every frame on the declared beat: flowing numbers by straight lines, the rest held from the frame before."""

    def mend(self, time: np.ndarray, columns: Columns, rate: float, flowing: frozenset[str]) -> Mended:
        """Return the episode on the regular clock, or nothing where time runs back."""
        beats = listen(time, rate)
        if len(beats.back):
            return Mended([], f"dropped: {faults(beats)}, which cannot be interpolated")
        if not len(beats.gaps) and beats.jitter <= JITTER:
            return Mended([(time, columns)], "")
        grid = time[0] + np.arange(round((time[-1] - time[0]) * rate) + 1) / rate
        held = np.maximum(np.searchsorted(time, grid + (GAP - 1) / rate, side="right") - 1, 0)
        made = {
            name: _along(time, column, grid) if name in flowing else column[held] for name, column in columns.items()
        }
        return Mended([(grid, made)], f"interpolated: {faults(beats)}, jitter of {1e3 * beats.jitter:.1f} ms")


CLOCKS: Mapping[str, Clock] = {"drop": Drop(), "mask": Mask(), "interpolate": Interpolate()}


def named_clock(name: str) -> Clock:
    """Return the policy a user names. Raises BadRecording."""
    if name not in CLOCKS:
        raise BadRecording(f"no clock called {name!r}; choose one of {', '.join(CLOCKS)}")
    return CLOCKS[name]


def listen(time: np.ndarray, rate: float) -> Beats:
    """Return how well times (T,) in seconds keep ``rate`` frames per second."""
    steps = np.diff(np.asarray(time, np.float64))
    gaps = np.flatnonzero(steps >= GAP / rate)
    back = np.flatnonzero(steps <= 0)
    missing = int((np.rint(steps[gaps] * rate) - 1).sum())
    regular = np.delete(steps, np.union1d(gaps, back).astype(int))
    jitter = float(np.abs(regular - 1 / rate).max()) if len(regular) else 0.0
    return Beats(gaps, missing, back, jitter)


def faults(beats: Beats) -> str:
    """Return in words where a clock missed."""
    words = []
    if len(beats.gaps):
        words.append(f"{beats.missing} frames missing after frame {_some(beats.gaps)}")
    if len(beats.back):
        words.append(f"time does not rise after frame {_some(beats.back)}")
    return " and ".join(words) or "no frame missing"


def _some(numbers: np.ndarray) -> str:
    shown = ", ".join(map(str, numbers[:5].tolist()))
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown


def _along(time: np.ndarray, column: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return a column (T, ...) read off at other times by straight lines."""
    after = np.clip(np.searchsorted(time, grid), 1, len(time) - 1)
    share = np.clip((grid - time[after - 1]) / (time[after] - time[after - 1]), 0, 1)
    share = share.reshape(-1, *[1] * (column.ndim - 1))
    return ((1 - share) * column[after - 1] + share * column[after]).astype(column.dtype)
