"""Traces as lines of JSON: a step a line, or an episode a line. Text is kept as bytes.

A step: ``{"episode": "a", "observation": "You see a door.", "action": "open door", "reward": 0.0,
"terminated": false, "truncated": false, "time": 0.0}``. ``action`` is what was done on this observation, and
``reward`` what came of it; the last line of an episode has an observation only. ``episode`` may be left out where
lines of an episode follow each other and each one's end is told: a line with ``terminated`` or ``truncated``, or
one without action, ends it. A last line with an action tells no outcome of it.

An episode: ``{"observations": [...], "actions": [...], "rewards": [...], "terminated": true, "time": [...]}`` with
one observation more than actions. Whatever else it says is kept in meta.

An observation is a text, a number, nested lists of numbers of one shape, or a dict of those. An action is a
number, a list of numbers, a whole number (a choice) or a text: few different texts are choices too, and stand in
the store's meta; many are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gymnasium import spaces

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns
from dreamsim.data.formats.recording import (
    LAST,
    BadRecording,
    LeftOut,
    Recording,
    Report,
    each,
    last_of,
    without_outcome,
)
from dreamsim.data.formats.trace_index import Index, Lines, Told, index, told
from dreamsim.data.formats.trace_spaces import as_columns, as_values, learn
from dreamsim.data.store import Store


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a file is called .jsonl or .ndjson, or begins with an object that observes."""
    if path.is_file() and path.suffix in (".jsonl", ".ndjson"):
        return True
    return head.lstrip()[:1] == b"{" and b'"observation' in head


def read(path: Path) -> Recording:
    """Read a file of traces."""
    found = index(path)
    if not found.episodes:
        raise BadRecording(f"no step and no episode in it{f': {found.notes[0]}' if found.notes else ', it is empty'}")
    with open(path, "rb") as file:
        good = (item for item in each(found.episodes, lambda lines: told(file, lines)) if isinstance(item, Told))
        learned = learn(good)
    return Recording(
        learned.observation_space,
        learned.action_space,
        None,
        _episodes(path, found, Codec(learned.observation_space, learned.action_space), learned.words),
        [*learned.notes, *found.notes[:20]],
        len(found.episodes),
        {"traces": {"steps": found.steps, "words": learned.words}},
    )


def write(store: Store, target: Path, report: Report) -> list[str]:
    """Write traces, a step a line unless the store came from episodes a line."""
    about = store.meta.get("traces", {"steps": True, "words": []})
    lost: set[str] = set()
    with open(target, "w", encoding="utf-8") as file:
        for number in range(len(store)):
            episode = store.episode(number)
            said = _said(episode, store.codec, about["words"])
            rows = _rows(said, number) if about["steps"] else [_row(said)]
            file.writelines(json.dumps(row) + "\n" for row in rows)
            lost |= {f"trace {name!r}" for name in episode.trace}
            held = {"episode", "truncated", LAST} if about["steps"] else episode.meta.keys()
            lost |= {f"meta {name!r}" for name in episode.meta.keys() - held}
            report(number + 1, len(store))
    return [f"traces have no place for: {', '.join(sorted(lost))}"] if lost else []


def _episodes(path: Path, found: Index, codec: Codec, words: list[str]) -> Iterator[Episode | LeftOut]:
    with open(path, "rb") as file:
        places = {word: place for place, word in enumerate(words)}
        for item, lines in zip(
            each(found.episodes, lambda lines: _read_one(file, lines, codec, places)), found.episodes, strict=True
        ):
            yield item._replace(name=lines.name) if isinstance(item, LeftOut) else item


def _read_one(file: BinaryIO, lines: Lines, codec: Codec, places: dict[str, int]) -> Episode:
    said = told(file, lines)
    taken = [places[action] for action in said.actions] if places else said.actions
    steps = len(said.observations) - 1
    vectors = columns.actions(codec.raw_action_space, as_columns(codec.raw_action_space, taken))
    rewards = None if said.rewards is None else columns.exact(np.asarray(said.rewards, np.float64))
    meta = {**said.meta, "truncated": said.truncated}
    whole = len(said.actions) == steps
    if not whole:
        last = None if said.rewards is None else said.rewards[-1]
        meta |= without_outcome(vectors[-1], last, said.terminated)
    return Episode(
        columns.observations(
            codec.raw_observation_space,
            list(codec.observation_space.spaces),
            as_columns(codec.raw_observation_space, said.observations),
        ),
        vectors[:steps],
        None if rewards is None else rewards[:steps],
        said.terminated and whole,
        None if said.time is None else np.asarray(said.time, np.float64),
        {},
        meta,
    )


def _said(episode: Episode, codec: Codec, words: list[str]) -> Told:
    """Return an episode as its lines will say it."""
    names, space = list(codec.observation_space.spaces), codec.raw_action_space
    last = last_of(episode)
    vectors = np.asarray(episode.action) if last is None else np.concatenate([episode.action, last["action"][None]])
    seen = columns.decode_observations(codec.raw_observation_space, names, episode.obs)
    chosen = as_values(space, columns.decode_actions(space, vectors))
    rewards = None if episode.reward is None else episode.reward.tolist()
    return Told(
        as_values(codec.raw_observation_space, seen),
        [words[choice] for choice in chosen] if words and isinstance(space, spaces.Discrete) else chosen,
        rewards if rewards is None or last is None else [*rewards, last["reward"]],
        episode.terminated or bool(last and last["terminated"]),
        bool(episode.meta.get("truncated")),
        None if episode.time is None else episode.time.tolist(),
        {name: value for name, value in episode.meta.items() if name not in ("truncated", LAST)},
    )


def _row(said: Told) -> dict[str, Any]:
    row: dict[str, Any] = {**said.meta, "observations": said.observations, "actions": said.actions}
    row |= {} if said.rewards is None else {"rewards": said.rewards}
    row |= {} if said.time is None else {"time": said.time}
    return row | {"terminated": said.terminated, "truncated": said.truncated}


def _rows(said: Told, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step, observation in enumerate(said.observations):
        row: dict[str, Any] = {"episode": said.meta.get("episode", number), "observation": observation}
        if step < len(said.actions):
            row["action"] = said.actions[step]
            row |= {} if said.rewards is None else {"reward": said.rewards[step]}
            ends = step == len(said.actions) - 1
            row |= {"terminated": said.terminated and ends, "truncated": said.truncated and ends}
        row |= {} if said.time is None else {"time": said.time[step]}
        rows.append(row)
    return rows
