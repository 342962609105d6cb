"""D4RL's HDF5: all steps of all episodes in one array a field, with ``terminals`` and ``timeouts``.

observations[t] is what was seen before action t. A terminal ends an episode for good, a timeout cuts it
short. What the last action of an episode led to stands in ``next_observations``, where the file has it;
otherwise nobody knows it: that action, its reward and its end are kept in ``meta["last"]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns, guarded
from dreamsim.data.formats.bounds import action_box, observation_box
from dreamsim.data.formats.recording import BadRecording, LeftOut, Recording, each, without_outcome

ROWS = 65_536  # compared at a time


class Part(NamedTuple):
    """The rows of one episode."""

    begin: int
    stop: int
    terminated: bool
    timeout: bool


class Infos(NamedTuple):
    """The fields of ``infos`` that have a row a step."""

    kept: list[str]
    lost: list[str]


def fits(file: Any) -> bool:
    """Say whether a file has this layout."""
    return {"observations", "actions"} <= set(file.keys())


def read(path: Path) -> Recording:
    """Read a file."""
    with guarded.opened(path) as file:
        rows = _rows(file)
        action_space, note = action_box(guarded.array(file, "actions"))
        observation_space = observation_box(guarded.array(file, "observations", slice(0, 1)))
        parts, notes = _parts(file, rows)
        infos = _infos(file, rows)
        whole, has_metadata = "next_observations" in file, "metadata" in file
    notes = [note, *notes]
    if not whole:
        lost = sum(part.terminated for part in parts)
        notes.append(
            "without next_observations the last action of each episode has no outcome: it is kept in meta, not "
            f"learned, and with it {lost} terminations, so ends cannot be learned from this file"
        )
    if infos.lost:
        notes.append(f"left out of infos, as they are no numbers of a row a step: {', '.join(infos.lost)}")
    if has_metadata:
        notes.append("metadata (of the policy that acted) is left out")
    codec = Codec(observation_space, action_space)
    episodes = _episodes(path, parts, codec, infos.kept, whole)
    return Recording(observation_space, action_space, None, episodes, notes, len(parts), {"d4rl": {"rows": rows}})


def _rows(file: Any) -> int:
    fields = [name for name in ("actions", "rewards", "terminals", "timeouts", "next_observations") if name in file]
    rows = guarded.length(file, "observations")
    for name in fields:
        if guarded.length(file, name) != rows:
            raise BadRecording(f"{name} has {guarded.length(file, name)} rows, observations has {rows}")
    return rows


def _parts(file: Any, rows: int) -> tuple[list[Part], list[str]]:
    """Return the rows of each episode, and what was assumed."""
    terminals = _flags(file, "terminals", rows)
    timeouts = _flags(file, "timeouts", rows)
    jumps = _jumps(file, rows) & ~terminals & ~timeouts
    ends = terminals | timeouts | jumps
    notes = []
    if "timeouts" not in file:
        notes.append(
            "the file has no timeouts: episodes that were cut short are told by jumps of next_observations only"
        )
    if "terminals" not in file:
        notes.append("the file has no terminals: no episode is read as terminated")
    if jumps.any():
        notes.append(f"at {int(jumps.sum())} steps next_observations is not the next observation: cut there")
    stops = [*(np.flatnonzero(ends) + 1).tolist()]
    if not stops or stops[-1] < rows:
        stops.append(rows)
    begins = [0, *stops[:-1]]
    return [
        Part(begin, stop, bool(terminals[stop - 1]), bool(timeouts[stop - 1]))
        for begin, stop in zip(begins, stops, strict=True)
    ], notes


def _flags(file: Any, name: str, rows: int) -> np.ndarray:
    if name not in file:
        return np.zeros(rows, bool)
    return np.asarray(guarded.array(file, name).reshape(rows, -1).astype(bool).any(1))


def _jumps(file: Any, rows: int) -> np.ndarray:
    """Say of each step (N,) whether the next row is no continuation of it, where the file allows to tell."""
    jumps = np.zeros(rows, bool)
    if "next_observations" in file:
        for begin in range(0, rows - 1, ROWS):
            stop = min(begin + ROWS, rows - 1)
            led = guarded.array(file, "next_observations", slice(begin, stop))
            seen = guarded.array(file, "observations", slice(begin + 1, stop + 1))
            jumps[begin:stop] = (led != seen).reshape(stop - begin, -1).any(1)
    return jumps


def _infos(file: Any, rows: int) -> Infos:
    infos = Infos([], [])
    if "infos" in file and guarded.is_group(file, "infos"):
        group = guarded.child(file, "infos")
        for name in guarded.names(group):
            (infos.kept if _has_rows(group, name, rows) else infos.lost).append(name)
    return infos


def _has_rows(group: Any, name: str, rows: int) -> bool:
    try:
        return guarded.length(group, name) == rows and len(guarded.array(group, name, slice(0, 1))) == 1
    except BadRecording:
        return False


def _episodes(
    path: Path, parts: list[Part], codec: Codec, infos: list[str], whole: bool
) -> Iterator[Episode | LeftOut]:
    with guarded.opened(path) as file:
        yield from each(range(len(parts)), lambda number: _read_one(file, number, parts[number], codec, infos, whole))


def _read_one(file: Any, number: int, part: Part, codec: Codec, infos: list[str], whole: bool) -> Episode | LeftOut:
    rows = slice(part.begin, part.stop)
    seen = guarded.array(file, "observations", rows)
    if whole:
        last = guarded.array(file, "next_observations", slice(part.stop - 1, part.stop))
        seen = np.concatenate([seen, last])
    taken = columns.actions(codec.raw_action_space, guarded.array(file, "actions", rows))
    rewards = guarded.array(file, "rewards", rows).reshape(len(taken)) if "rewards" in file else None
    trace = {f"info/{name}": guarded.array(guarded.child(file, "infos"), name, rows) for name in infos}
    meta = {"rows": [part.begin, part.stop], "truncated": part.timeout}
    steps = len(taken) - (not whole)
    if not steps:
        return LeftOut(number, f"row {part.begin} alone is no step: nothing tells what its action led to")
    if not whole:
        reward = None if rewards is None else float(rewards[-1])
        meta |= without_outcome(
            taken[-1], reward, part.terminated, info={name: rows[-1].tolist() for name, rows in trace.items()}
        )
    return Episode(
        columns.observations(codec.raw_observation_space, list(codec.observation_space.spaces), seen),
        taken[:steps],
        None if rewards is None else columns.exact(rewards[:steps]),
        part.terminated and whole,
        None,
        {name: value[:steps] for name, value in trace.items()},
        meta,
    )
