"""Batches of windows from recordings: cut, padded, shuffled, split.

A batch of recordings is a pure function of its number, the seed and the data. So the order
is the same in any number of worker processes, and a run resumes by going on with the next number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dreamsim.core import tree
from dreamsim.core.random import derive_seed
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode, Segment
from dreamsim.data.coverage import Coverage, WindowIndex
from dreamsim.data.store import Store

EPISODES_KEPT = 4096


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
        self._space, self._scale = codec.observation_space, codec.scale
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
        self._recent: dict[int, Episode] = {}
        self._first = self._read(int(self._numbers[0]))

    def __len__(self) -> int:
        return -(-self._index.total // self.batch)

    def __getitem__(self, number: int) -> Segment:
        """Return batch ``number``, 0 or more, with whole batches beyond ``len`` being the next epochs'."""
        if number < 0:
            raise IndexError(f"batches are numbered from 0, came {number}")
        if self._chances is None:
            return self._cut(*self._index.locate(self._shuffled(number)))
        return self._cut(*self._weighted(number))

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
        return {**self.__dict__, "_recent": {}}

    def _shuffled(self, number: int) -> np.ndarray:
        place = np.arange(number * self.batch, (number + 1) * self.batch)
        epoch, place = np.divmod(place, self._index.total)
        drawn = np.empty(self.batch, np.int64)
        for now in np.unique(epoch):
            inside = epoch == now
            drawn[inside] = permuted(place[inside], self._index.total, derive_seed(self._seed, "epoch", int(now)))
        return drawn

    def _weighted(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        assert self._chances is not None
        rng = np.random.default_rng(derive_seed(self._seed, "batch", number))
        episode = self._chances.searchsorted(rng.random(self.batch) * self._chances[-1], side="right")
        windows = np.maximum(1, self._index.steps[episode] - self.length + 1)
        return episode, rng.integers(windows)

    def _read(self, number: int) -> Episode:
        if not isinstance(self._episodes, Store):  # others may hand out copies, which would fill the memory
            return self._episodes[number]
        if number not in self._recent:
            if len(self._recent) >= EPISODES_KEPT:
                del self._recent[next(iter(self._recent))]
            self._recent[number] = self._episodes[number]
        return self._recent[number]

    def _cut(self, position: np.ndarray, offset: np.ndarray) -> Segment:
        numbers = self._numbers[position]
        episodes = [self._read(number) for number in numbers.tolist()]
        self._check_rewards(numbers, episodes)
        steps = np.minimum(self.length, self._index.steps[position] - offset)
        mask = np.arange(self.length) < steps[:, None]
        ends = np.array([e.terminated for e in episodes]) & (offset + steps == self._index.steps[position])

        observed = partial(_padded, begin=offset, count=steps + 1, length=self.length + 1)
        stepped = partial(_padded, begin=offset, count=steps, length=self.length)
        first, space, real = self._first, self._space.spaces, np.dtype(np.float32)
        action = stepped([e.action for e in episodes], first.action, real)
        fields = {
            "obs": {n: observed([e.obs[n] for e in episodes], first.obs[n], part.dtype) for n, part in space.items()},
            "action": np.where(mask[..., None], self._scale.unit(action), np.float32(0)),
            "reward": None if first.reward is None else stepped([e.reward for e in episodes], first.reward, real),
            "terminated": mask & ends[:, None] & (np.arange(self.length) == steps[:, None] - 1),
            "mask": mask.astype(np.float32),
            "trace": {n: stepped([e.trace.get(n) for e in episodes], a, a.dtype) for n, a in first.trace.items()},
            "index": np.stack([numbers, offset], 1),
        }
        return Segment(**tree.map(torch.from_numpy, fields), before=None)

    def _check_rewards(self, numbers: np.ndarray, episodes: list[Episode]) -> None:
        for number, episode in zip(numbers, episodes, strict=True):
            if (episode.reward is None) != (self._first.reward is None):
                raise ValueError(
                    f"some recordings have rewards and others have none (episode {number} differs from episode "
                    f"{self._numbers[0]}); give rewards to all or none, or name those to use with ``only``"
                )


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
    known = {_digest(episodes[int(number)]): int(number) for number in sides.train}
    prints = ((_digest(episodes[int(number)]), int(number)) for number in sides.held_out)
    return [(known[digest], number) for digest, number in prints if digest in known]


def loader(windows: Windows, batches: range, workers: int = 0) -> DataLoader:
    """Return a loader of those batches in their order, read by ``workers`` processes (0: by this one).

    To resume after n batches were used, ask for ``range(n, ...)``; what workers had read ahead does not count.
    """
    own = torch.Generator()  # else a loader draws from torch's global generator
    return DataLoader(windows, batch_size=None, sampler=batches, num_workers=workers, generator=own)


def permuted(place: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return where a random permutation of range(size) puts each ``place`` (N,), without holding the permutation.

    A Feistel network over the next power of four; results outside are sent through again
    (cycle walking, Black and Rogaway 2002).
    """
    half = np.uint64(max(1, -(-int(size - 1).bit_length() // 2)))
    low = np.uint64((1 << int(half)) - 1)
    keys = np.random.default_rng(seed).integers(2**63, size=8, dtype=np.uint64)
    value = place.astype(np.uint64)
    todo = np.arange(len(value))
    while len(todo):
        left, right = value[todo] >> half, value[todo] & low
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        value[todo] = (left << half) | right
        todo = todo[value[todo] >= size]
    return value.astype(np.int64)


def _mixed(value: np.ndarray) -> np.ndarray:
    """Spread the bits of uint64 numbers (the finaliser of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _padded(
    arrays: Sequence[np.ndarray | None],
    like: np.ndarray,
    dtype: np.dtype | None,
    *,
    begin: np.ndarray,
    count: np.ndarray,
    length: int,
) -> np.ndarray:
    """Return rows ``begin`` to ``begin + count`` of each array, filled up with zeros to (B, length, ...)."""
    out = np.zeros((len(arrays), length, *like.shape[1:]), dtype)
    for target, array, first, size in zip(out, arrays, begin.tolist(), count.tolist(), strict=True):
        if array is not None:
            target[:size] = array[first : first + size]
    return out


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


def _digest(episode: Episode) -> bytes:
    digest = hashlib.sha256(np.ascontiguousarray(episode.action).tobytes())
    for name in sorted(episode.obs):
        digest.update(np.ascontiguousarray(episode.obs[name]).tobytes())
    return digest.digest()
