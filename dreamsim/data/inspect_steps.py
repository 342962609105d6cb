"""How observed numbers move from step to step: what never moves, and where one step is no step.

Sizes of steps are told in multiples of what is usual: each component's change is divided by its mean change, and
the median over components is the step's size, so that one angle that wraps round is no jump.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dreamsim.core.types import Episode

JUMP = 5.0  # times a large step (the 95 % quantile) from which a step is a jump
NATURE = 0.01  # share of steps from which jumps are in the nature of what was recorded
CHANCE = 0.1  # share of unrelated episodes that may meet by chance for a meeting to mean something
MIXED = 1e4  # ratio of ranges in one vector from which its units look mixed


class Range(NamedTuple):
    """What one vector of numbers did in all episodes, per component (F,)."""

    low: np.ndarray
    high: np.ndarray
    moved: np.ndarray  # sum of absolute changes
    steps: int


class Numbers:
    """Ranges of observed numbers and of actions."""

    def __init__(self) -> None:
        self._found: dict[str, Range] = {}
        self._pictures: dict[str, tuple[int, ...]] = {}

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        for name, rows in (*episode.obs.items(), ("action", episode.action)):
            if rows.dtype.kind == "f":
                self._add(name, np.where(np.isfinite(rows), rows, 0).reshape(len(rows), -1))
            elif rows.ndim > 3:
                self._pictures[name] = rows.shape[1:]

    def scales(self) -> dict[str, np.ndarray]:
        """Return the mean absolute change a step of each observed component (F,); 0 where it never moves."""
        return {name: found.moved / max(found.steps, 1) for name, found in self._found.items() if name != "action"}

    def facts(self) -> list[str]:
        """Return what was observed: cameras and their layout, numbers and their ranges."""
        words = [f"camera {name!r}: channels, height, width {shape}" for name, shape in self._pictures.items()]
        for name, found in self._found.items():
            what = "actions" if name == "action" else f"observation {name!r}"
            words.append(f"{what}: {len(found.low)} numbers from {found.low.min():.4g} to {found.high.max():.4g}")
        return words

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        words = []
        for name, found in self._found.items():
            what = "the actions" if name == "action" else f"observation {name!r}"
            spread = found.high - found.low
            if len(still := np.flatnonzero(spread == 0)):
                words.append((f"components {_some(still)} of {what} never change", "kept; they read 0", False))
            moving = spread[spread > 0]
            if len(moving) > 1 and moving.max() / moving.min() > MIXED:
                words.append(
                    (
                        f"{what} holds ranges from {moving.min():.3g} to {moving.max():.3g}: units may be mixed",
                        "kept in the units recorded",
                        False,
                    )
                )
        return words

    def _add(self, name: str, rows: np.ndarray) -> None:
        low, high, moved = rows.min(0), rows.max(0), np.abs(np.diff(rows, axis=0)).sum(0, dtype=np.float64)
        steps = len(rows) - 1
        if name in self._found:
            old = self._found[name]
            low, high = np.minimum(low, old.low), np.maximum(high, old.high)
            moved, steps = moved + old.moved, steps + old.steps
        self._found[name] = Range(low, high, moved, steps)


class Seams:
    """Where one episode seems to be two, or two to be one."""

    def __init__(self, scales: dict[str, np.ndarray]) -> None:
        self._scales = {name: scale for name, scale in scales.items() if (scale > 0).any()}
        self._sizes: list[np.ndarray] = []
        self._numbers: list[int] = []
        self._first: list[np.ndarray] = []
        self._last: list[np.ndarray] = []
        self._terminated: list[bool] = []
        self._source: list[object] = []

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        if not self._scales:
            return
        rows = self._scaled(episode)
        self._numbers.append(number)
        self._sizes.append(_size(np.diff(rows, axis=0)))
        self._first.append(rows[0])
        self._last.append(rows[-1])
        self._terminated.append(episode.terminated)
        self._source.append((episode.meta.get("episode"), "part" in episode.meta))

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        return [*self._jumps(), *self._meetings()] if self._numbers else []

    def _jumps(self) -> list[tuple[str, str, bool]]:
        sizes = np.concatenate(self._sizes)
        usual = float(np.quantile(sizes, 0.95))
        limit = JUMP * usual
        if usual <= 0 or ((sizes > limit).mean() > NATURE and (sizes > limit).sum() > len(self._numbers)):
            return []
        words = []
        for number, mine in zip(self._numbers, self._sizes, strict=True):
            if len(at := np.flatnonzero(mine > limit)):
                times = mine[at].max() / usual
                what = f"episode {number}: observations jump at step {_some(at)}, {times:.0f} times a large step"
                done = "kept; if episodes were merged there, split them at the source"
                words.append((what, done, True))
        return words

    def _meetings(self) -> list[tuple[str, str, bool]]:
        """Say which episodes begin where the one before stopped, unless unrelated ones do so as well."""
        if len(self._numbers) < 3:
            return []
        usual = float(np.quantile(np.concatenate(self._sizes), 0.95))
        first, last = np.stack(self._first), np.stack(self._last)
        apart = _size(np.concatenate([np.roll(first, -shift, 0) - last for shift in (2, 3)]))
        if (apart <= usual).mean() > CHANCE:
            return []
        words = []
        for at, size in enumerate(_size(first[1:] - last[:-1])):
            parts = self._source[at] == self._source[at + 1] and self._source[at][1]  # type: ignore[index]
            if size <= usual and not self._terminated[at] and not parts:
                what = f"episode {self._numbers[at + 1]} goes on where episode {self._numbers[at]} stops: split in two"
                words.append((what, "kept apart; no step joins them", False))
        return words

    def _scaled(self, episode: Episode) -> np.ndarray:
        """Return the numbers (T+1, F) that move, in units of their usual change."""
        columns = []
        for name, scale in self._scales.items():
            rows = episode.obs[name].reshape(len(episode.obs[name]), -1)
            rows = np.where(np.isfinite(rows), rows, 0)
            columns.append(rows[:, scale > 0] / scale[scale > 0])
        return np.concatenate(columns, 1)


def _size(changes: np.ndarray) -> np.ndarray:
    return np.median(np.abs(changes), axis=1)


def _some(numbers: np.ndarray) -> str:
    shown = ", ".join(map(str, numbers[:5].tolist()))
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown
