"""Where the lines of each episode lie in a file of traces, and what they say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

STEP = {"episode", "observation", "action", "reward", "terminated", "truncated", "time"}
WHOLE = {"observations", "actions", "rewards", "terminated", "truncated", "time"}


class Lines(NamedTuple):
    """The lines of one episode."""

    name: int | str
    offsets: list[int]  # bytes from the beginning of the file
    faults: list[str]


class Index(NamedTuple):
    """Every episode of a file."""

    episodes: list[Lines]
    notes: list[str]
    steps: bool  # a step a line; False: an episode a line


class Told(NamedTuple):
    """What the lines of an episode say."""

    observations: list[Any]
    actions: list[Any]  # one fewer than observations, or as many: then nothing tells what the last led to
    rewards: list[Any] | None  # one an action
    terminated: bool
    truncated: bool
    time: list[Any] | None  # one an observation
    meta: dict[str, Any]


def index(path: Path) -> Index:
    """Return the episodes of a file in the order in which they begin."""
    episodes: dict[Any, Lines] = {}
    notes: list[str] = []
    current: Any = None  # the episode of the line before
    unnamed, steps, offset = 0, True, 0
    torn = ""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            begin, offset = offset, offset + len(line)
            if not line.strip():
                continue
            if torn and steps and current in episodes:
                episodes[current].faults.append(torn)
            torn, said = _parsed(line, number)
            if torn:
                notes.append(torn)
                continue
            if "observations" in said:
                steps, current = False, ("line", number)
                episodes[current] = Lines(number, [begin], [])
                continue
            named = said.get("episode")
            current = ("id", str(named)) if named is not None else ("run", unnamed)
            episodes.setdefault(current, Lines(len(episodes) if named is None else named, [], [])).offsets.append(begin)
            unnamed += said.get("action") is None or bool(said.get("terminated")) or bool(said.get("truncated"))
    return Index(list(episodes.values()), notes, steps)


def told(file: BinaryIO, lines: Lines) -> Told:
    """Return what an episode's lines say. Raises ValueError for lines that do not fit together."""
    if lines.faults:
        raise ValueError(f"lines of it are missing: {lines.faults[0]}")
    rows = []
    for offset in lines.offsets:
        file.seek(offset)
        rows.append(json.loads(file.readline()))
    return _whole(rows[0]) if "observations" in rows[0] else _joined(rows)


def _parsed(line: bytes, number: int) -> tuple[str, dict[str, Any]]:
    """Return (why a line cannot be used, {}), or ("", what it says)."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"line {number} is no JSON ({error})", {}
    if not isinstance(said, dict) or not {"observation", "observations"} & said.keys():
        return f'line {number} has no "observation" and no "observations"', {}
    return "", said


def _whole(row: dict[str, Any]) -> Told:
    observations, actions = list(row["observations"]), list(row["actions"])
    rewards, time = row.get("rewards"), row.get("time")
    if len(actions) not in (len(observations) - 1, len(observations)):
        raise ValueError(f"it has {len(observations)} observations and {len(actions)} actions; one fewer was expected")
    for name, values, count in (("rewards", rewards, len(actions)), ("time", time, len(observations))):
        if values is not None and len(values) != count:
            raise ValueError(f"it has {len(values)} {name}, {count} were expected")
    meta = {name: value for name, value in row.items() if name not in WHOLE}
    return Told(observations, actions, rewards, bool(row.get("terminated")), bool(row.get("truncated")), time, meta)


def _joined(rows: list[dict[str, Any]]) -> Told:
    acted = [row for row in rows if row.get("action") is not None]
    if len(acted) < len(rows) - 1 or (len(acted) < len(rows) and rows[-1].get("action") is not None):
        raise ValueError("a line before its last one has no action")
    rewards, time = [row.get("reward") for row in acted], [row.get("time") for row in rows]
    for name, values in (("reward", rewards), ("time", time)):
        if 0 < sum(value is None for value in values) < len(values):
            raise ValueError(f"some of its lines have a {name} and others have none")
    return Told(
        [row["observation"] for row in rows],
        [row["action"] for row in acted],
        None if None in rewards else rewards,
        any(bool(row.get("terminated")) for row in rows),
        any(bool(row.get("truncated")) for row in rows),
        None if None in time else time,
        {"episode": rows[0]["episode"]} if "episode" in rows[0] else {},
    )
