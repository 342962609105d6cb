"""Growing episodes, one per environment slot, written a whole vector step at a time."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamsim.core.types import Episode

FIRST_CAPACITY = 256


class Slots:
    """Buffers (N, capacity, ...) that hold each slot's episode so far; they double when full."""

    def __init__(self, count: int, observation_space: spaces.Dict, action_size: int) -> None:
        self.length = np.zeros(count, np.int64)
        self._rows = np.arange(count)
        self._capacity = FIRST_CAPACITY
        size = (count, self._capacity)
        parts = observation_space.spaces.items()
        self._obs = {name: np.zeros((*size, *(part.shape or ())), part.dtype) for name, part in parts}
        self._sent = np.zeros((*size, action_size), np.float32)
        self._action = np.zeros((*size, action_size), np.float32)
        self._reward = np.zeros(size, np.float32)
        self._trace: dict[str, np.ndarray] = {}
        self._traced: dict[str, np.ndarray] = {}

    def begin(self, rows: np.ndarray, obs: dict[str, np.ndarray]) -> None:
        """Start an episode in the given rows (bool (N,)) at ``obs`` (N, ...)."""
        self.length[rows] = 0
        for written in self._traced.values():
            written[rows] = 0
        for name, buffer in self._obs.items():
            buffer[rows, 0] = obs[name][rows]

    def write(
        self,
        rows: np.ndarray,
        sent: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        obs: dict[str, np.ndarray],
        trace: dict[str, np.ndarray],
    ) -> None:
        """Add one step to the given rows (bool (N,)); every array is (N, ...)."""
        if self.length.max() + 2 > self._capacity:
            self._grow()
        index = self._rows[rows]
        source = slice(None) if len(index) == len(self._rows) else index  # all rows: no copy in between
        here, after = (index, self.length[index]), (index, self.length[index] + 1)
        self._sent[here], self._action[here] = sent[source], action[source]
        self._reward[here] = reward[source]
        for name, buffer in self._obs.items():
            buffer[after] = obs[name][source]
        for name, value in trace.items():
            self._trace_buffer(name, value)[here] = value[source]
            self._traced[name][index] += 1
        self.length[index] += 1

    def episode(self, row: int, terminated: bool, meta: dict[str, Any]) -> Episode:
        """Return a copy of one row's episode."""
        steps = int(self.length[row])
        return Episode(
            obs={name: buffer[row, : steps + 1].copy() for name, buffer in self._obs.items()},
            action=self._action[row, :steps].copy(),
            reward=self._reward[row, :steps].copy(),
            terminated=terminated,
            time=None,
            trace=self.trace(row),
            meta=meta,
        )

    def total(self, row: int) -> float:
        """Return the sum of a row's rewards."""
        return float(self._reward[row, : self.length[row]].sum(dtype=np.float64))

    def sent(self, row: int) -> np.ndarray:
        """Return the actions (T, A) in [-1, 1] that were sent since the row's reset."""
        return self._sent[row, : self.length[row]].copy()

    def trace(self, row: int) -> dict[str, np.ndarray]:
        """Return what the policy recorded (T, ...) at every step since the row's reset.

        A field that began or stopped within the episode (the policy was exchanged) is left out.
        """
        steps = int(self.length[row])
        return {
            name: buffer[row, :steps].copy() for name, buffer in self._trace.items() if self._traced[name][row] == steps
        }

    def put_trace(self, row: int, trace: dict[str, np.ndarray]) -> None:
        """Set what the policy recorded (T, ...) since the row's reset."""
        steps = int(self.length[row])
        for name, value in trace.items():
            self._trace_buffer(name, value)[row, : len(value)] = value
            self._traced[name][row] = steps

    def digest(self, row: int) -> str:
        """Return a fingerprint of a row's observations and rewards."""
        steps = int(self.length[row])
        parts = [self._obs[name][row, : steps + 1].tobytes() for name in sorted(self._obs)]
        return hashlib.sha256(b"".join([*parts, self._reward[row, :steps].tobytes()])).hexdigest()

    def _trace_buffer(self, name: str, value: np.ndarray) -> np.ndarray:
        buffer = self._trace.get(name)
        if buffer is None:
            buffer = self._trace[name] = np.zeros((len(self._rows), self._capacity, *value.shape[1:]), value.dtype)
            self._traced[name] = np.zeros(len(self._rows), np.int64)
        if buffer.shape[2:] != value.shape[1:]:
            raise ValueError(
                f"the policy's trace {name!r} was {buffer.shape[2:]} for each row and now is {value.shape[1:]}; "
                "a recorded field needs one shape, so pad it"
            )
        return buffer

    def _grow(self) -> None:
        def doubled(buffer: np.ndarray) -> np.ndarray:
            return np.concatenate([buffer, np.zeros_like(buffer)], axis=1)

        self._capacity *= 2
        self._obs = {name: doubled(buffer) for name, buffer in self._obs.items()}
        self._trace = {name: doubled(buffer) for name, buffer in self._trace.items()}
        self._sent, self._action, self._reward = map(doubled, (self._sent, self._action, self._reward))
