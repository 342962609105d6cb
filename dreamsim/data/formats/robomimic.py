"""robomimic's HDF5: ``data/demo_K`` with ``obs``, ``next_obs``, ``actions``, ``rewards``, ``dones``; ``mask`` filters.

obs[t] is what was seen before action t, next_obs[t] after it, so an episode's observations are all of
``obs`` and the last row of ``next_obs``. Without ``next_obs`` the last action has no outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns, guarded
from dreamsim.data.formats.bounds import action_box, observation_box
from dreamsim.data.formats.recording import BadRecording, LeftOut, Recording, each, without_outcome

ENDS = (
    "robomimic's dones mark both success and the end of a recording: only a done last step with a reward above 0 "
    "is read as terminated"
)


def fits(file: Any) -> bool:
    """Say whether a file has this layout."""
    return "data" in file and guarded.is_group(file, "data") and bool(_demos(guarded.child(file, "data")))


def read(path: Path) -> Recording:
    """Read a file."""
    with guarded.opened(path) as file:
        data = guarded.child(file, "data")
        demos = _demos(data)
        filters = _filters(file)
        observation_space = _observation_space(data, demos)
        recorded = [demo for demo in each(demos, lambda name: guarded.array(guarded.child(data, name), "actions"))]
        action_space, note = action_box(np.concatenate([rows for rows in recorded if isinstance(rows, np.ndarray)]))
        about = {name: _parsed(value) for name, value in guarded.attributes(data).items()}
    rate = dict(dict(about.get("env_args") or {}).get("env_kwargs") or {}).get("control_freq")
    notes = [note, ENDS, "states and model_file belong to the simulator and are left out"]
    return Recording(
        observation_space,
        action_space,
        float(rate) if isinstance(rate, (int, float)) and rate > 0 else None,
        _episodes(path, demos, filters, Codec(observation_space, action_space), notes),
        notes,
        len(demos),
        {"robomimic": {**about, "filters": sorted({name for names in filters.values() for name in names})}},
    )


def _demos(data: Any) -> list[str]:
    return [name for name in guarded.names(data) if name.startswith("demo")]


def _filters(file: Any) -> dict[str, list[str]]:
    """Return the filters (train, valid, ...) that each demo passes."""
    found: dict[str, list[str]] = {}
    if "mask" in file:
        mask = guarded.child(file, "mask")
        for name in guarded.names(mask):
            for demo in guarded.strings(mask, name):
                found.setdefault(demo, []).append(name)
    return found


def _observation_space(data: Any, demos: list[str]) -> spaces.Dict:
    for first in each(demos, lambda name: _observed(guarded.child(data, name))[0]):
        if not isinstance(first, LeftOut):
            return spaces.Dict({name: observation_box(rows) for name, rows in first.items()})
    raise BadRecording(f"no demo of {len(demos)} has observations that can be read")


def _observed(demo: Any) -> tuple[dict[str, np.ndarray], bool]:
    """Return what a demo observes, and whether its last row is what the last action led to."""
    obs = guarded.child(demo, "obs")
    seen = {name: guarded.array(obs, name) for name in guarded.names(obs)}
    if "next_obs" not in demo:
        return seen, False
    following = guarded.child(demo, "next_obs")
    return {name: np.concatenate([rows, guarded.array(following, name)[-1:]]) for name, rows in seen.items()}, True


def _episodes(
    path: Path, demos: list[str], filters: dict[str, list[str]], codec: Codec, notes: list[str]
) -> Iterator[Episode | LeftOut]:
    unseen = 0
    with guarded.opened(path) as file:
        data = guarded.child(file, "data")
        for item in each(demos, lambda name: _read_one(guarded.child(data, name), name, filters.get(name, []), codec)):
            unseen += isinstance(item, Episode) and "last" in item.meta
            yield item
    if unseen:
        notes.append(f"{unseen} of {len(demos)} demos have no next_obs: their last action is kept in meta, not learned")


def _read_one(demo: Any, name: str, filters: list[str], codec: Codec) -> Episode:
    seen, whole = _observed(demo)
    taken = guarded.array(demo, "actions")
    rewards = guarded.array(demo, "rewards") if "rewards" in demo else None
    done = bool(guarded.array(demo, "dones")[-1]) if "dones" in demo else False
    success = done and rewards is not None and float(rewards[-1]) > 0
    meta = {"demo": name, "filters": filters, "success": success}
    steps = len(taken) if whole else len(taken) - 1
    vectors = columns.actions(codec.raw_action_space, taken)
    if not whole:
        meta |= without_outcome(vectors[-1], None if rewards is None else float(rewards[-1]), success)
    return Episode(
        columns.observations(codec.raw_observation_space, list(codec.observation_space.spaces), seen),
        vectors[:steps],
        None if rewards is None else columns.exact(rewards.reshape(len(taken)))[:steps],
        success and whole,
        None,
        {},
        meta,
    )


def _parsed(value: Any) -> Any:
    """Return JSON that an attribute holds as text, anything else as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
