"""Batches of windows from recordings: cut, padded, shuffled, split.

A batch of recordings is a pure function of its number, the seed and the data. So the order
is the same in any number of worker processes, and a run resumes by going on with the next number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch.utils.data import DataLoader, Dataset

from dreamsim.core.random import derive_seed
from dreamsim.core.spaces import Codec, Scale
from dreamsim.core.types import Episode, Segment
from dreamsim.data.coverage import Coverage, WindowIndex
from dreamsim.data.cutting import Field, Given, Stored
from dreamsim.data.store import Store, told_as_damage

ROUNDS = 8  # of the network that shuffles
AHEAD = 16  # batches whose windows are chosen together: choosing costs less so


class Windows(Dataset[Segment]):
    """Batches of windows cut from recordings: ``windows[n]`` is batch number n of an endless sequence.

    Batches run through all windows in a random order, then through all again in another one;
    a batch at the border takes from both, so none is left out or drawn twice. ``len`` is the
    number of batches that an epoch needs.

    Args:
        episodes: a Store, or any sequence; read when needed, never held as a whole.
        codec: the spaces of the episodes; actions come out in [-1, 1].
        length: steps of a window (T). Shorter episodes are padded with zeros, their mask is 0.
        batch: windows of a batch (B).
        only: numbers of the episodes to use, for example one side of ``split``; None: all.
        weights: (E,) how often each episode is drawn, relative to the others and whatever its length;
            windows then come with replacement. None: every window as often as every other.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        codec: Codec,
        length: int,
        batch: int,
        *,
        only: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        self._episodes, self._seed = episodes, seed
        self._space = codec.observation_space
        self.length, self.batch = length, batch
        steps = _steps(episodes)
        chosen = np.arange(len(steps)) if only is None else np.unique(np.asarray(only, np.int64))
        weighed = np.ones(len(steps)) if weights is None else _checked_weights(weights, len(steps))
        empty, never = steps[chosen] == 0, weighed[chosen] == 0
        reasons = {
            "not chosen": len(steps) - len(chosen),
            "without a step": int(empty.sum()),
            "of weight 0": int((never & ~empty).sum()),
        }
        self._numbers = chosen[~empty & ~never]
        self._index = WindowIndex(steps[self._numbers], length)
        self._dropped = {reason: count for reason, count in reasons.items() if count}
        self._chances = None if weights is None else np.cumsum(weighed[self._numbers])
        if not self._index.total:
            raise ValueError(f"no window can be cut from {len(steps)} episodes: {self._dropped or 'there are none'}")
        self._fields = _wanted(episodes[int(self._numbers[0])], self._space.spaces)
        self._source: Given | Stored | None = None
        self._group, self._chosen = -1, (np.empty(0, np.int64), np.empty(0, np.int64))
        # One row for a whole window: scaling row by row of a few numbers costs several times more.
        self._scale = Scale(np.tile(codec.scale.centre, length), np.tile(codec.scale.half, length))
        self._is_unit = bool((self._scale.centre == 0).all() and (self._scale.half == 1).all())

    def __len__(self) -> int:
        return -(-self._index.total // self.batch)

    def __getitem__(self, number: int) -> Segment:
        """Return batch ``number``, 0 or more, with whole batches beyond ``len`` being the next epochs'."""
        if number < 0:
            raise IndexError(f"batches are numbered from 0, came {number}")
        return self._cut(*(self._shuffled(number) if self._chances is None else self._weighted(number)))

    def in_order(self, number: int) -> Segment:
        """Return batch ``number`` < len of all windows in the order of the data; the last one may be smaller."""
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} batches in order, came number {number}")
        last = min((number + 1) * self.batch, self._index.total)
        return self._cut(*self._index.locate(np.arange(number * self.batch, last)))

    def coverage(self) -> Coverage:
        """Report what the windows reach and what is left out. The padding is that of unweighted draws."""
        return self._index.coverage(self._dropped)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_source": None}  # another process maps the files for itself

    def _shuffled(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        group, place = divmod(number, AHEAD)
        if self._group != group:
            first = group * AHEAD * self.batch
            order = self._permuted(np.arange(first, first + AHEAD * self.batch))
            self._group, self._chosen = group, self._index.locate(order)
        mine = slice(place * self.batch, (place + 1) * self.batch)
        return self._chosen[0][mine], self._chosen[1][mine]

    def _permuted(self, place: np.ndarray) -> np.ndarray:
        epoch, place = np.divmod(place, self._index.total)
        drawn = np.empty(len(place), np.int64)
        for now in range(epoch[0], epoch[-1] + 1):
            inside = epoch == now
            drawn[inside] = permuted(place[inside], self._index.total, derive_seed(self._seed, "epoch", now))
        return drawn

    def _weighted(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        assert self._chances is not None
        rng = np.random.default_rng(derive_seed(self._seed, "batch", number))
        episode = self._chances.searchsorted(rng.random(self.batch) * self._chances[-1], side="right")
        windows = np.maximum(1, self._index.steps[episode] - self.length + 1)
        return episode, rng.integers(windows)

    def _cut(self, position: np.ndarray, offset: np.ndarray) -> Segment:
        if self._source is None:
            self._source = self._open()
        total = self._index.steps[position]
        steps = np.minimum(self.length, total - offset)
        arrays, terminated = self._source.cut(position, offset, steps, self.length)
        real = np.arange(self.length) < steps[:, None] if self._index.some_short else None
        mask = np.ones((len(steps), self.length), np.float32) if real is None else real.astype(np.float32)
        ends = np.zeros(mask.shape, bool)
        ends[np.arange(len(steps)), steps - 1] = terminated & (offset + steps == total)
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        return Segment(
            obs={name: tensors["obs", name] for name in self._space.spaces},
            action=torch.from_numpy(self._unit(arrays["step", "action"], real)),
            reward=tensors.get(("step", "reward")),
            terminated=torch.from_numpy(ends),
            mask=torch.from_numpy(mask),
            trace={name: tensor for (group, name), tensor in tensors.items() if group == "trace"},
            before=None,
            index=torch.from_numpy(np.stack([self._numbers[position], offset], 1)),
        )

    def _unit(self, action: np.ndarray, real: np.ndarray | None) -> np.ndarray:
        """Return actions (B, T, A) in [-1, 1], padding 0."""
        if self._is_unit:
            return action
        unit = self._scale.unit(action.reshape(len(action), -1)).reshape(action.shape)
        return unit if real is None else np.where(real[..., None], unit, np.float32(0))

    def _open(self) -> Given | Stored:
        if isinstance(self._episodes, Store):
            return Stored(self._episodes, self._numbers, self._fields)
        return Given(self._episodes, self._numbers, self._fields)


def _wanted(first: Episode, space: Mapping[str, spaces.Space]) -> list[Field]:
    """Return the fields of a Segment, as the first episode has them."""
    real = np.dtype(np.float32)
    fields = [Field("obs", name, first.obs[name].shape[1:], part.dtype, 1) for name, part in space.items()]
    fields.append(Field("step", "action", first.action.shape[1:], real, 0))
    if first.reward is not None:
        fields.append(Field("step", "reward", (), real, 0))
    traces = first.trace.items()
    return fields + [Field("trace", name, a.shape[1:], a.dtype.newbyteorder("="), 0) for name, a in traces]


class Split(NamedTuple):
    """Episode numbers of two sides that share no episode."""

    train: np.ndarray
    held_out: np.ndarray


def split(count: int, every: int = 10, seed: int = 0) -> Split:
    """Hold out one of each ``every`` episodes of ``count``, chosen by the seed.

    An episode stays on its side when more are added behind it.
    """
    if not 2 <= every <= count:
        raise ValueError(f"cannot hold out one of every {every} of {count} episodes; expected 2 <= every <= episodes")
    firsts = range(0, count, every)
    chosen = np.array([first + derive_seed(seed, "held out", first) % every for first in firsts])
    held_out = chosen[chosen < count]
    return Split(np.setdiff1d(np.arange(count), held_out), held_out)


def leaks(episodes: Sequence[Episode], sides: Split) -> list[tuple[int, int]]:
    """Return pairs (train, held out) of episodes with equal actions and observations. Reads everything."""
    known = {_digest(episodes, int(number)): int(number) for number in sides.train}
    prints = ((_digest(episodes, int(number)), int(number)) for number in sides.held_out)
    return [(known[digest], number) for digest, number in prints if digest in known]


def loader(windows: Windows, batches: range, workers: int = 0) -> DataLoader:
    """Return a loader of those batches in their order, read by ``workers`` processes (0: by this one).

    To resume after n batches were used, ask for ``range(n, ...)``; what workers had read ahead does not count.
    """
    own = torch.Generator()  # else a loader draws from torch's global generator
    return DataLoader(windows, batch_size=None, sampler=batches, num_workers=workers, generator=own)


def permuted(place: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return where a random permutation of range(size) puts each ``place`` (N,), without holding the permutation.

    A Feistel network over the next power of two (up to 2**62); results outside are sent through again
    (cycle walking, Black and Rogaway 2002).
    """
    bits = max(2, int(size - 1).bit_length())
    factors, terms = np.random.default_rng(seed).integers(2**32, size=(2, ROUNDS), dtype=np.uint32)
    found = _scrambled(place.astype(np.int64), bits, factors | 1, terms)
    while len(outside := np.flatnonzero(found >= size)):
        found[outside] = _scrambled(found[outside], bits, factors | 1, terms)
    return found


def _scrambled(value: np.ndarray, bits: int, factors: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Permute range(2**bits): each half of the bits is changed by a hash of the other (multiply, add, shift)."""
    low = bits // 2
    halves = (value & ((1 << low) - 1)).astype(np.uint32), (value >> low).astype(np.uint32)
    shifts = np.uint32(32 - low), np.uint32(32 - (bits - low))
    for turn, (factor, term) in enumerate(zip(factors, terms, strict=True)):
        changed, other = halves[turn % 2], halves[1 - turn % 2]
        mixed = other * factor
        mixed += term
        mixed >>= shifts[turn % 2]
        changed ^= mixed
    return halves[0] | (halves[1].astype(np.int64) << low)


def _steps(episodes: Sequence[Episode]) -> np.ndarray:
    """Return the length (E,) of each episode; a store knows them without reading."""
    if isinstance(episodes, Store):
        return episodes.steps
    return np.array([len(episode.action) for episode in episodes], np.int64)


def _checked_weights(weights: np.ndarray, count: int) -> np.ndarray:
    weights = np.asarray(weights, np.float64)
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"expected {count} weights, one for each episode, finite and 0 or more, came {weights}")
    return weights


def _digest(episodes: Sequence[Episode], number: int) -> bytes:
    if isinstance(episodes, Store):
        with told_as_damage():
            return episodes.records().digest(number)
    episode = episodes[number]
    digest = hashlib.sha256(np.ascontiguousarray(episode.action).tobytes())
    for name in sorted(episode.obs):
        digest.update(np.ascontiguousarray(episode.obs[name]).tobytes())
    return digest.digest()
