"""Bounded experience in memory: whole episodes in, windows out, beliefs written back.

Every field is one flat tensor of ``capacity + 2`` rows. An episode of T steps lies in
T + 1 rows, one per observation, without a break, so a window is one piece of memory.
The last row is always zero: padding is read from there.
Episodes follow one another; one that does not fit before the end begins at row 0 again.
What lies in the way is removed, oldest first and always as whole episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.spaces import Scale
from dreamsim.core.types import Episode, Segment, State
from dreamsim.data.beliefs import Beliefs
from dreamsim.data.coverage import Coverage
from dreamsim.data.ring import Padded, Reader, Ring, Whole, allocate


class Replay:
    """Holds at most ``capacity`` steps of whole episodes and draws windows of them uniformly.

    ``observation_space`` is a codec's flat one; actions are kept in [-1, 1]. Each episode
    also takes one row for its last observation, out of ``capacity + 1``. Rewards, traces
    and beliefs take memory from the first episode (or write) that has them.
    """

    def __init__(
        self,
        capacity: int,
        observation_space: spaces.Dict,
        action_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a replay needs a capacity of at least 1 step, came {capacity}")
        self.capacity = capacity
        self.device = torch.device(device)
        self._ring = Ring(capacity + 1)
        self._zero = capacity + 1  # the row that is always zero
        self._reader = Reader()
        self._obs = {name: self._allocate(*_layout(name, space)) for name, space in observation_space.items()}
        self._action = self._allocate((action_size,), torch.float32)
        self._terminated = self._allocate((), torch.bool)
        self._reward: Tensor | None = None
        self._trace: dict[str, Tensor] = {}
        self._beliefs: Beliefs | None = None
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def episodes(self) -> int:
        """Number of episodes held."""
        return self._ring.held

    @property
    def steps(self) -> int:
        """Number of steps held."""
        return self._ring.steps_held

    @property
    def added(self) -> int:
        """Number of episodes ever added; the next one gets this number as its name in ``Segment.index``."""
        return self._ring.added

    @property
    def bytes(self) -> int:
        """Memory taken by all fields, which ``bytes_needed`` foretells."""
        return sum(field.nbytes for field in self._fields())

    @staticmethod
    def bytes_needed(
        capacity: int,
        observation_space: spaces.Dict,
        action_size: int,
        *,
        reward: bool = True,
        trace: dict[str, np.ndarray] | None = None,
        belief: State | None = None,
    ) -> int:
        """Return the exact number of bytes a full replay takes.

        ``trace``: that of an example episode, (T, ...). ``belief``: an example state, (B, ...).
        """
        row = 0
        for name, space in observation_space.items():
            shape, dtype = _layout(name, space)
            row += dtype.itemsize * math.prod(shape)
        row += 4 * action_size + 1 + 4 * reward
        row += sum(array[:1].nbytes for array in (trace or {}).values())
        row += sum(leaf[:1].nbytes for leaf in tree.leaves(belief)) + (belief is not None)
        return (capacity + 2) * row

    def add(self, episode: Episode, scale: Scale) -> int:
        """Copy an episode in, its actions brought to [-1, 1] by ``scale``; return its name.

        Removes the oldest episodes that are in the way. Raises ValueError for an episode
        that does not fit or whose fields differ from those held.
        """
        steps = self._check(episode)
        self._start_fields(episode)
        row = self._ring.place(steps)
        window = slice(row, row + steps)
        for name, field in self._obs.items():
            self._put(field, slice(row, row + steps + 1), episode.obs[name])
        self._put(self._action, window, scale.unit(episode.action))
        self._terminated[window] = False
        self._terminated[row + steps - 1] = bool(episode.terminated)
        if self._reward is not None:
            self._put(self._reward, window, episode.reward)
        for name, field in self._trace.items():
            self._put(field, window, episode.trace.get(name, 0))
        if self._beliefs is not None:
            self._beliefs.forget(slice(row, row + steps + 1))
        return self._ring.added - 1

    def sample(self, batch: int, length: int) -> Segment:
        """Draw ``batch`` windows of ``length`` steps, uniform over all of them, with replacement.

        The time taken depends on what is drawn, not on what is held. ``before`` is None
        until the first ``write``, then a ``Before``.
        """
        return self._gather(*self._draw(batch, length), length)

    def sample_many(self, count: int, batch: int, length: int) -> list[Segment]:
        """Draw what ``count`` calls of ``sample`` in a row would, gathered at once: faster for small windows.

        Windows of images are as fast one batch after another, and take less memory so.
        """
        drawn = self._gather(*self._draw(count * batch, length), length)
        parts = [slice(start, start + batch) for start in range(0, count * batch, batch)]
        return [tree.select(drawn, part) for part in parts]

    def write(self, index: Tensor, states: State) -> None:
        """Store beliefs (B, T+1, ...) at the observations of the windows named by ``index`` (B, 2).

        Where windows of a batch overlap, the later row of the batch counts. Rows beyond an
        episode's end and rows of episodes removed meanwhile are ignored.
        """
        rows, place = self._ring.observation_rows(index.cpu().numpy(), next(tree.leaves(states)).shape[1])
        if self._beliefs is None:
            self._beliefs = Beliefs.like(states, self.capacity + 2, self.device)
        self._beliefs.write(torch.from_numpy(rows), torch.from_numpy(place), states)

    def coverage(self, length: int) -> Coverage:
        """Report what windows of ``length`` steps reach, and their padding."""
        return self._ring.index(length).coverage()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the draws and which episodes are held; not the content.

        The content comes back by adding the same episodes in the same order: all of them
        before ``load_state_dict``, or only those still held by ``rebuild``. Beliefs are
        not part of it: see ``beliefs``.
        """
        return {
            "generator": self._generator.get_state(),
            "added": self._ring.added,
            "first": self._ring.first,
            "first_row": self._ring.first_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``. Raises ValueError unless the same episodes are held."""
        held, wanted = (self._ring.first, self._ring.added), (state["first"], state["added"])
        if held != wanted:
            raise ValueError(
                f"the saved replay held episodes {wanted[0]} to {wanted[1] - 1}, this one holds {held[0]} to "
                f"{held[1] - 1}; add the same episodes to an empty replay of the same capacity first, or call rebuild"
            )
        self._generator.set_state(state["generator"].cpu())

    def rebuild(self, state: dict[str, Any], episodes: Sequence[Episode], scale: Scale) -> None:
        """Replace all content by that of ``state``: ``episodes[i]`` is the one that was added as number i.

        Adds only the episodes that were still held, so the time does not grow with the length of a run.
        """
        if len(episodes) < state["added"]:
            raise ValueError(
                f"the saved replay had been given {state['added']} episodes, only {len(episodes)} are here; "
                "is the store of another run, or cut too far?"
            )
        self._ring = Ring(self.capacity + 1, state["first"], state["first_row"])
        if self._beliefs is not None:
            self._beliefs.forget(slice(None))
        for number in range(state["first"], state["added"]):
            self.add(episodes[number], scale)
        self.load_state_dict(state)

    def beliefs(self) -> list[Tensor]:
        """Return the stored beliefs as plain tensors (N, ...) for a checkpoint; empty before any write."""
        return [] if self._beliefs is None else self._beliefs.save(torch.from_numpy(self._ring.held_rows()))

    def load_beliefs(self, saved: Sequence[Tensor], like: State) -> None:
        """Put back what ``beliefs`` returned; ``like`` is any state of the model, which gives the tree its shape."""
        if saved:
            rows = torch.from_numpy(self._ring.held_rows())
            self._beliefs = Beliefs.load(saved, like, rows, self.capacity + 2, self.device)

    def _allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return allocate(self.capacity + 2, shape, dtype, self.device)

    def _fields(self) -> Iterator[Tensor]:
        yield from tree.leaves([self._obs, self._action, self._terminated, self._reward, self._trace])
        if self._beliefs is not None:
            yield from tree.leaves([self._beliefs.state, self._beliefs.known])

    def _put(self, field: Tensor, window: slice, values: Any) -> None:
        field[window] = torch.from_numpy(np.array(values)).to(self.device)

    def _check(self, episode: Episode) -> int:
        steps = len(episode.action)
        if not 1 <= steps <= self.capacity:
            raise ValueError(
                f"an episode of {steps} steps does not fit into a replay of {self.capacity} steps; "
                "expected between 1 step and the capacity: raise the capacity or end episodes earlier"
            )
        if self.episodes and (self._reward is None) != (episode.reward is None):
            raise ValueError(
                "a replay holds either episodes with rewards or episodes without, came both; "
                "give all of them rewards (zeros, if that is what they mean) or none"
            )
        _check_fields("observation", self._obs, episode.obs, steps + 1)
        _check_fields("field", {"action": self._action}, {"action": episode.action}, steps)
        if episode.reward is not None and np.shape(episode.reward) != (steps,):
            raise ValueError(f"an episode's reward has shape {np.shape(episode.reward)}, expected ({steps},)")
        for name, array in episode.trace.items():
            like = self._trace[name] if name in self._trace else torch.from_numpy(np.array(array[:1]))
            _check_fields("trace", {name: like}, episode.trace, steps)
        return steps

    def _start_fields(self, episode: Episode) -> None:
        """Allocate what this episode is the first to have."""
        if episode.reward is not None and self._reward is None:
            self._reward = self._allocate((), torch.float32)
        for name in episode.trace.keys() - self._trace.keys():
            array = episode.trace[name]
            self._trace[name] = self._allocate(array.shape[1:], _torch_type(array.dtype)).zero_()

    def _draw(self, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        index = self._ring.index(length)
        if not index.total:
            raise ValueError("the replay is empty; add an episode before drawing from it")
        number = torch.randint(index.total, (batch,), generator=self._generator).numpy()
        return index.locate(number)

    def _gather(self, episode: np.ndarray, offset: np.ndarray, length: int) -> Segment:
        ring = self._ring
        start = torch.from_numpy(ring.row[episode] + offset).to(self.device)
        window: Whole | Padded = Whole(self._reader, start, length)
        if ring.index(length).some_short and (left := ring.steps[episode] - offset).min() < length:
            window = Padded(self._reader, start, length, torch.from_numpy(left).to(self.device), self._zero)
        index = np.empty((len(offset), 2), np.int64)
        index[:, 0], index[:, 1] = episode + ring.first, offset
        return Segment(
            obs={name: window.read(field, 1) for name, field in self._obs.items()},
            action=window.read(self._action),
            reward=None if self._reward is None else window.read(self._reward),
            terminated=window.read(self._terminated),
            mask=window.mask(),
            trace={name: window.read(field) for name, field in self._trace.items()},
            before=None if self._beliefs is None else self._beliefs.read(start),
            index=torch.from_numpy(index).to(self.device),
        )


def _layout(name: str, space: spaces.Space) -> tuple[tuple[int, ...], torch.dtype]:
    if space.shape is None or space.dtype is None:
        raise ValueError(f"observation {name!r} has a space without shape or type; pass codec.observation_space")
    return space.shape, _torch_type(space.dtype)


def _torch_type(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _check_fields(kind: str, fields: dict[str, Tensor], arrays: dict[str, np.ndarray], length: int) -> None:
    """Raise ValueError unless every field has an array (length, ...) that it can hold without loss of meaning."""
    if missing := fields.keys() - arrays.keys():
        raise ValueError(f"the episode has no {kind} {sorted(missing)[0]!r}; it has {sorted(arrays)}")
    for name, field in fields.items():
        array, shape = np.asarray(arrays[name]), (length, *field.shape[1:])
        if array.shape != shape:
            raise ValueError(f"{kind} {name!r} of an episode has shape {array.shape}, expected {shape}")
        if not field.is_floating_point() and _torch_type(array.dtype) != field.dtype:
            raise ValueError(f"{kind} {name!r} of an episode is {array.dtype}, expected {field.dtype}")
