"""Where whole episodes lie in a ring of rows, and how windows are read from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dreamsim.data.coverage import WindowIndex


class Ring:
    """Places episodes one after another in ``rows`` rows, T + 1 of them for T steps.

    An episode that does not fit before the end is placed at row 0. Episodes in the way
    are removed, oldest first. Episodes are named by their number: 0 for the first ever
    placed; those held are always ``first`` to ``added - 1``.
    """

    def __init__(self, rows: int, first: int = 0, next_row: int = 0) -> None:
        self.rows = rows
        self.first = first
        self.next_row = next_row
        self.steps_held = 0
        self._begin = self._end = 0
        self._table = np.empty((2, 64), np.int64)
        self._indices: dict[int, WindowIndex] = {}

    @property
    def held(self) -> int:
        """Number of episodes held."""
        return self._end - self._begin

    @property
    def added(self) -> int:
        """Number of episodes ever placed."""
        return self.first + self.held

    @property
    def row(self) -> np.ndarray:
        """First row (E,) of each episode held, oldest first."""
        return self._table[0, self._begin : self._end]

    @property
    def steps(self) -> np.ndarray:
        """Length (E,) of each episode held, oldest first."""
        return self._table[1, self._begin : self._end]

    @property
    def first_row(self) -> int:
        """Where the oldest episode lies; where the next one will be tried, if none is held."""
        return int(self.row[0]) if self.held else self.next_row

    def place(self, steps: int) -> int:
        """Make room for an episode of ``steps`` steps and return its first row."""
        row = self.next_row
        if row + steps + 1 > self.rows:  # the rest stays empty, so what lies there, the oldest, goes too
            self._remove_while(lambda first: first >= row)
            row = 0
        self._remove_while(lambda first: row <= first <= row + steps)
        self.next_row = row + steps + 1
        if self._end == self._table.shape[1]:
            self._compact()
        self._table[:, self._end] = row, steps
        self._end += 1
        self.steps_held += steps
        self._indices.clear()
        return row

    def index(self, length: int) -> WindowIndex:
        """Return the numbered windows of ``length`` steps, made once after each placement."""
        if length not in self._indices:
            self._indices[length] = WindowIndex(self.steps.copy(), length)
        return self._indices[length]

    def held_rows(self) -> np.ndarray:
        """Return all rows (N,) of the episodes held, oldest first."""
        pieces = [np.arange(row, row + steps + 1) for row, steps in zip(self.row, self.steps, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def observation_rows(self, index: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row (N,) of each observation of windows ``index`` (B, 2), and its place (N,) in (B * width).

        Left out: observations past an episode's end, and those of episodes removed since.
        Each row comes once, with the last place that names it.
        """
        if (index[:, 0] >= self.added).any():
            raise ValueError(f"beliefs came for episode {index[:, 0].max()}, but only {self.added} were ever added")
        held = np.nonzero(index[:, 0] >= self.first)[0]
        episode, offset = index[held, 0] - self.first, index[held, 1]
        time = np.arange(width)
        real = offset[:, None] + time <= self.steps[episode][:, None]
        rows = ((self.row[episode] + offset)[:, None] + time)[real]
        place = (held[:, None] * width + time)[real]
        rows, last = np.unique(rows[::-1], return_index=True)
        return rows, place[::-1][last]

    def _remove_while(self, in_the_way: Callable[[int], bool]) -> None:
        while self.held and in_the_way(int(self._table[0, self._begin])):
            self.steps_held -= int(self._table[1, self._begin])
            self._begin += 1
            self.first += 1

    def _compact(self) -> None:
        held = self._table[:, self._begin : self._end]
        self._table = np.empty((2, max(64, 2 * self.held)), np.int64)
        self._table[:, : held.shape[1]] = held
        self._begin, self._end = 0, held.shape[1]


def allocate(rows: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a field (rows, *shape) whose last row is zero; memory is taken as rows are filled."""
    shape = (rows, *shape)
    if device.type == "cpu":  # numpy asks for huge pages: random reads miss the TLB far less often
        field = torch.from_numpy(np.empty(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    else:
        field = torch.empty(shape, dtype=dtype, device=device)
    field[-1] = 0
    return field


class Reader:
    """Copies runs of rows out of fields (rows, ...); keeps the views it reads through, which cost more to make."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}

    def read(self, field: Tensor, start: Tensor, width: int) -> Tensor:
        """Return rows (B, width, ...) beginning at rows ``start`` (B,)."""
        key = field.data_ptr(), width  # a view keeps its memory alive, so no other field can come to lie there
        if key not in self._runs:
            on_cpu = field.device.type == "cpu" and field[0].nbytes > 0
            self._runs[key] = _runs_in_memory(field, width) if on_cpu else _runs_on_device(field, width)
        return self._runs[key](start)


class Whole:
    """Windows of ``length`` steps, beginning at rows ``start`` (B,), that need no padding: one copy for each."""

    def __init__(self, reader: Reader, start: Tensor, length: int) -> None:
        self._reader, self._start, self._length = reader, start, length

    def read(self, field: Tensor, more: int = 0) -> Tensor:
        """Return rows (B, length + more, ...) of a field (rows, ...)."""
        return self._reader.read(field, self._start, self._length + more)

    def mask(self) -> Tensor:
        """Return ones (B, length)."""
        return torch.ones(self._start.shape[0], self._length, device=self._start.device)


class Padded:
    """Windows of ``length`` steps of which only ``left`` (B,) are there; the rest is row ``zero``."""

    def __init__(self, reader: Reader, start: Tensor, length: int, left: Tensor, zero: int) -> None:
        time = torch.arange(length + 1, device=start.device)
        rows = start[:, None] + time
        self._reader = reader
        self._real = time < left[:, None]
        self._rows = (
            torch.where(self._real, rows, zero)[:, :-1].reshape(-1),
            torch.where(time <= left[:, None], rows, zero).view(-1),
        )

    def read(self, field: Tensor, more: int = 0) -> Tensor:
        """Return rows (B, length + more, ...); ``more`` is 1 for observations, which follow the last step, else 0."""
        values = self._reader.read(field, self._rows[more], 1)
        return values.view(len(self._real), -1, *field.shape[1:])

    def mask(self) -> Tensor:
        """Return (B, length): 1 a real step, 0 padding."""
        return self._real[:, :-1].float()


def _runs_on_device(field: Tensor, width: int) -> Callable[[Tensor], Tensor]:
    shape = (len(field) - width + 1, width, *field.shape[1:])
    runs = field.as_strided(shape, (field.stride(0), *field.stride()))
    return lambda start: runs.index_select(0, start)


def _runs_in_memory(field: Tensor, width: int) -> Callable[[Tensor], Tensor]:
    """As ``_runs_on_device``; a run is one opaque item to numpy, which copies items faster than torch rows."""
    array, size = field.numpy(), field[0].nbytes
    item = np.dtype((np.void, width * size))
    runs = np.ndarray((len(field) - width + 1,), item, array, strides=(size,))
    shape, dtype = (width, *field.shape[1:]), array.dtype

    def read(start: Tensor) -> Tensor:
        return torch.from_numpy(np.ndarray((start.shape[0], *shape), dtype, runs[start.numpy()]))

    return read
