"""The spaces of traces, learned from the values in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dreamsim.core import text
from dreamsim.core.leaf import Bytes
from dreamsim.data.formats.bounds import action_box
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.formats.trace_index import Told

WORDS = 256  # different texts that are choices; more of them are bytes
CHOICES = 1024


class Learned(NamedTuple):
    """What a file's values are."""

    observation_space: spaces.Space
    action_space: spaces.Space
    words: list[str]  # the text of each choice; empty: actions are no texts, or bytes
    notes: list[str]


class Leaf:
    """One value of an observation, or of an action, over a whole file."""

    def __init__(self) -> None:
        self.longest = 1  # bytes of a text
        self.kinds: set[str] = set()
        self.shape: tuple[int, ...] | None = None

    def add(self, values: list[Any]) -> None:
        """Take the values of one episode."""
        is_text = isinstance(values[0], str)
        if self.kinds and is_text != ("text" in self.kinds):
            raise ValueError("texts in some episodes and numbers in others")
        if is_text:
            self.kinds.add("text")
            self.longest = max(self.longest, *(len(value.encode("utf-8", errors="replace")) for value in values))
            return
        array = numbers(values)
        self.shape = array.shape[1:] if self.shape is None else self.shape
        self.kinds.add("float" if array.dtype.kind == "f" else "int")

    def space(self) -> spaces.Space:
        """Return an unbounded space for it."""
        if "text" in self.kinds:
            return Bytes(self.longest)
        if "float" in self.kinds:
            return spaces.Box(-np.inf, np.inf, self.shape or (), np.float64)
        bounds = np.iinfo(np.int64)
        return spaces.Box(bounds.min, bounds.max, self.shape or (), np.int64)


def learn(episodes: Iterable[Told]) -> Learned:
    """Return the spaces of a file's episodes; those that do not fit the first one are left for later to refuse."""
    leaves: dict[str, Leaf] = {}
    nested, taken, form = False, [], None
    for told in episodes:
        try:
            columns, acts = fields(told.observations), _form(told.actions)
            if leaves and (columns.keys() != leaves.keys() or acts != form):
                continue
            for name, values in columns.items():
                leaves.setdefault(name, Leaf()).add(values)
        except (ValueError, TypeError, AttributeError, LookupError):
            continue
        nested, form = isinstance(told.observations[0], dict), acts
        taken += told.actions
    if not taken:
        raise BadRecording("no episode has both observations of one form and an action")
    parts = {name: leaf.space() for name, leaf in leaves.items()}
    action_space, words, note = _actions(taken)
    return Learned(spaces.Dict(parts) if nested else next(iter(parts.values())), action_space, words, [note])


def fields(observations: list[Any]) -> dict[str, list[Any]]:
    """Return the values of each name in observations; a value that is no dict has the name ""."""
    if not isinstance(observations[0], dict):
        return {"": observations}
    names = list(observations[0])
    if any(list(observation) != names for observation in observations):
        raise ValueError(f"not every observation has the names {names}")
    return {name: [observation[name] for observation in observations] for name in names}


def numbers(values: list[Any]) -> np.ndarray:
    """Return values (N, ...) as numbers. Raises ValueError for texts and for rows of different shapes."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{values[0]!r:.60} and its like are no numbers of one shape")
    return array


def as_columns(space: spaces.Space, values: list[Any]) -> Any:
    """Return observations or actions of an episode as columns of their space."""
    if isinstance(space, spaces.Dict):
        found = fields(values)
        return {name: as_columns(part, found[name]) for name, part in space.spaces.items()}
    if isinstance(space, Bytes):
        if not all(isinstance(value, str) for value in values):
            raise ValueError("a value is no text where texts were expected")
        return text.encode(values, space.shape[0]).numpy()
    return numbers(values)


def as_values(space: spaces.Space, columns: Any) -> list[Any]:
    """Return columns as values for JSON; the inverse of ``as_columns``."""
    if isinstance(space, spaces.Dict):
        parts = {name: as_values(part, columns[name]) for name, part in space.spaces.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(space, spaces.Tuple):
        return [
            list(row)
            for row in zip(*(as_values(s, c) for s, c in zip(space.spaces, columns, strict=True)), strict=True)
        ]
    if isinstance(space, Bytes):
        return text.decode(columns)
    return list(columns) if isinstance(columns, list) else np.asarray(columns).tolist()


def _form(actions: list[Any]) -> tuple[int, ...] | None:
    """Return the shape of each action, None for texts."""
    return None if isinstance(actions[0], str) else numbers(actions).shape[1:]


def _actions(values: list[Any]) -> tuple[spaces.Space, list[str], str]:
    if isinstance(values[0], str):
        words = sorted({value for value in values if isinstance(value, str)})
        if len(words) <= WORDS:
            return spaces.Discrete(len(words)), words, f"actions are {len(words)} different texts, taken as choices"
        longest = max(len(word.encode("utf-8", errors="replace")) for word in words)
        return Bytes(longest), [], f"actions are texts of up to {longest} bytes"
    array = numbers(values)
    if array.ndim == 1 and array.dtype.kind in "iub":
        low, high = int(array.min()), int(array.max())
        if high - low < CHOICES:
            return spaces.Discrete(high - low + 1, start=low), [], f"actions are choices from {low} to {high}"
    box, note = action_box(array.astype(np.float64))
    shape = array.shape[1:]
    return spaces.Box(box.low.reshape(shape), box.high.reshape(shape), dtype=np.float64), [], note
