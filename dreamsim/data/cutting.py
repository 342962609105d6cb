"""How windows are taken out of episodes: from arrays at hand, or from a store's files by one gather for each field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dreamsim.core.types import Episode
from dreamsim.data.block import DamagedBlock, Head
from dreamsim.data.store import Store, told_as_damage

Key = tuple[str, str]


class Field(NamedTuple):
    """A field that windows have: where it is found, and as what it comes out."""

    group: str
    name: str
    shape: tuple[int, ...]  # of one row
    dtype: np.dtype | None
    more: int  # rows beyond a window's steps: 1 for observations

    @property
    def key(self) -> Key:
        """Return what the field is called in a record."""
        return self.group, self.name


class Taken(NamedTuple):
    """Windows side by side, filled up with zeros."""

    arrays: dict[Key, np.ndarray]  # (B, length (+1), ...)
    terminated: np.ndarray  # (B,) bool: of the whole episode


class Given:
    """Windows of episodes that somebody hands out one at a time; episode ``numbers[p]`` is the one at position p."""

    def __init__(self, episodes: Sequence[Episode], numbers: np.ndarray, fields: Sequence[Field]) -> None:
        self._episodes, self._numbers, self._fields = episodes, numbers, fields
        self._rewards = any(field.key == ("step", "reward") for field in fields)

    def cut(self, position: np.ndarray, offset: np.ndarray, steps: np.ndarray, length: int) -> Taken:
        """Return the windows of ``steps`` (B,) steps that begin at ``offset`` (B,) of episodes at ``position`` (B,)."""
        numbers = self._numbers[position].tolist()
        episodes = [self._episodes[number] for number in numbers]
        for number, episode in zip(numbers, episodes, strict=True):
            _check_reward(number, episode.reward is not None, self._rewards, int(self._numbers[0]))
        arrays = {field.key: _zeros(len(numbers), field, length) for field in self._fields}
        for field in self._fields:
            for out, episode, begin, count in zip(arrays[field.key], episodes, offset, steps, strict=True):
                array = _array(episode, field)
                if array is not None:
                    out[: count + field.more] = array[begin : begin + count + field.more]
        return Taken(arrays, np.array([episode.terminated for episode in episodes]))


class Stored:
    """As Given, of a store's flushed episodes. Keeps for each episode where its fields begin, once it was read."""

    def __init__(self, store: Store, numbers: np.ndarray, fields: Sequence[Field]) -> None:
        self._records = store.records()
        if len(numbers) and numbers[-1] >= len(self._records):
            raise ValueError(f"episode {numbers[-1]} waits in memory; flush the store before cutting windows of it")
        self._numbers, self._fields = numbers, fields
        self._rewards = any(field.key == ("step", "reward") for field in fields)
        self._begin = np.zeros((len(numbers), len(fields)), np.int64)
        self._terminated = np.zeros(len(numbers), bool)
        self._kind = np.full(len(numbers), -1, np.int32)  # which of ``_kinds`` an episode is; -1: not read yet
        self._kinds: list[tuple[np.dtype | None, ...]] = []  # types of its fields; None: it has no such field

    def cut(self, position: np.ndarray, offset: np.ndarray, steps: np.ndarray, length: int) -> Taken:
        """Return the windows of ``steps`` (B,) steps that begin at ``offset`` (B,) of episodes at ``position`` (B,)."""
        kind = self._kind[position]
        if kind.min() < 0:
            for unread in np.unique(position[kind < 0]).tolist():
                self._learn(unread)
            kind = self._kind[position]
        begin = self._begin[position]
        terminated = self._terminated[position]
        if None not in self._kinds[kind[0]] and (kind == kind[0]).all() and (steps == length).all():
            taken = zip(self._fields, self._gather(int(kind[0]), begin, offset, length), strict=True)
            whole = {field.key: piece.astype(field.dtype, copy=False) for field, piece in taken if piece is not None}
            return Taken(whole, terminated)
        arrays = {field.key: _zeros(len(position), field, length) for field in self._fields}
        same = kind.astype(np.int64) * (length + 1) + steps
        for group in np.unique(same).tolist():
            rows = np.flatnonzero(same == group)
            count = group % (length + 1)
            pieces = self._gather(group // (length + 1), begin[rows], offset[rows], count)
            for field, piece in zip(self._fields, pieces, strict=True):
                if piece is not None:
                    arrays[field.key][rows, : count + field.more] = piece
        return Taken(arrays, terminated)

    def _gather(self, kind: int, begin: np.ndarray, offset: np.ndarray, steps: int) -> list[np.ndarray | None]:
        """Return each field (N, steps (+1), ...) of windows of one length and kind, in the types they are stored in."""
        found: list[np.ndarray | None] = []
        for column, (field, dtype) in enumerate(zip(self._fields, self._kinds[kind], strict=True)):
            if dtype is None:
                found.append(None)
                continue
            row = math.prod(field.shape) * dtype.itemsize
            width = steps + field.more
            shape = (len(begin), width, *field.shape)
            if not row:
                found.append(np.empty(shape, dtype))
                continue
            address = begin[:, column] + offset * row
            found.append(self._records.mapped.gather(address, width * row).view(dtype).reshape(shape))
        return found

    def _learn(self, position: int) -> None:
        """Note where the fields of an episode begin, after checking it."""
        number = int(self._numbers[position])
        with told_as_damage():
            head = self._records.head(number)
            types = tuple(_stored_type(head, field, number) for field in self._fields)
        _check_reward(number, ("step", "reward") in head.fields, self._rewards, int(self._numbers[0]))
        if types not in self._kinds:
            self._kinds.append(types)
        for column, field in enumerate(self._fields):
            if types[column] is not None:
                self._begin[position, column] = head.fields[field.key].offset
        self._terminated[position] = head.terminated
        self._kind[position] = self._kinds.index(types)


def _stored_type(head: Head, field: Field, number: int) -> np.dtype | None:
    """Return what an episode's field is stored as, None for a trace or reward that it lacks."""
    if field.key not in head.fields:
        if field.group == "obs" or field.name == "action":
            raise DamagedBlock(f"episode {number} has no {field.group} {field.name!r}")
        return None
    found = head.fields[field.key]
    if found.shape[1:] != field.shape:
        raise ValueError(
            f"{field.group} {field.name!r} of episode {number} has rows of shape {found.shape[1:]}, those of the first "
            f"episode have {field.shape}; name episodes that are alike with ``only``"
        )
    return found.dtype


def _check_reward(number: int, has: bool, expected: bool, first: int) -> None:
    if has != expected:
        raise ValueError(
            f"some recordings have rewards and others have none (episode {number} differs from episode "
            f"{first}); give rewards to all or none, or name those to use with ``only``"
        )


def _array(episode: Episode, field: Field) -> np.ndarray | None:
    if field.group == "obs":
        return episode.obs[field.name]
    if field.group == "trace":
        return episode.trace.get(field.name)
    return episode.action if field.name == "action" else episode.reward


def _zeros(count: int, field: Field, length: int) -> np.ndarray:
    return np.zeros((count, length + field.more, *field.shape), field.dtype)
