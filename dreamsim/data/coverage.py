"""Which windows of a fixed length there are over episodes of any length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Coverage(NamedTuple):
    """What windows of one length reach of some episodes; nothing is left out without being counted."""

    episodes: int  # that give windows
    steps: int  # in those episodes
    windows: int
    short: int  # episodes shorter than the window, which are padded
    padded: float  # share of padding among the steps of windows drawn uniformly, 0 to 1
    dropped: dict[str, int]  # reason -> number of episodes left out

    def __str__(self) -> str:
        left_out = ", ".join(f"{count} left out ({reason})" for reason, count in self.dropped.items())
        return (
            f"{self.episodes} episodes, {self.steps} steps, {self.windows} windows; {self.short} episodes shorter "
            f"than a window, padding {self.padded:.1%} of the drawn steps; {left_out or 'no episode left out'}"
        )


class WindowIndex:
    """Numbers all windows of ``length`` steps over episodes of ``steps`` (E,) steps, in order.

    An episode of T steps has max(1, T - length + 1) windows: a short one has a single,
    padded window.
    """

    def __init__(self, steps: np.ndarray, length: int) -> None:
        if length < 1:
            raise ValueError(f"a window needs at least 1 step, came length {length}")
        self.length = length
        self.steps = steps
        counts = np.maximum(1, steps - (length - 1))
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        self.some_short = bool((steps < length).any())  # an episode shorter than a window, which is padded
        self.total = int(self._ends[-1]) if len(steps) else 0

    def locate(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return episode position (N,) and offset (N,) of windows ``number`` (N,) in [0, total)."""
        episode = self._ends.searchsorted(number, side="right")
        return episode, number - self._starts[episode]

    def coverage(self, dropped: dict[str, int] | None = None) -> Coverage:
        """Report what these windows reach."""
        missing = np.maximum(0, self.length - self.steps)
        share = float(missing.sum() / (self.total * self.length)) if self.total else 0.0
        return Coverage(
            len(self.steps), int(self.steps.sum()), self.total, int((missing > 0).sum()), share, dict(dropped or {})
        )
