"""LeRobot datasets: versions 2.0, 2.1 and 3.0 are read, 3.0 is written (lerobot_write.py).

Alignment. Frame t of LeRobot holds observation t and the action taken on seeing it; ``next.reward``,
``next.done`` and ``next.success`` of frame t tell what came of that action. T frames hold T actions and no
observation after the last, so an Episode has T - 1 steps: step t is observation t, action t, next.reward t,
observation t + 1. The last action, its reward and its next.done are kept in ``meta["last"]``, never trained on,
and written back. ``terminated`` is next.done of the last step (frame T - 2): where a recorder marks only the
last frame as done, the state it ended in was not recorded, and the episode counts as cut short. next.success of
any frame is ``meta["success"]``. next.done does not tell an end of the task from an end of patience.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dreamsim.core.spaces import Codec, space_from_json
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns, lerobot_info, lerobot_write
from dreamsim.data.formats.bounds import action_box, observation_box
from dreamsim.data.formats.lerobot_clock import Clock, Columns, faults, listen, named_clock
from dreamsim.data.formats.lerobot_info import CLOCK, OURS, Info, Row
from dreamsim.data.formats.lerobot_layout import TIME, encodable
from dreamsim.data.formats.lerobot_rows import UNREAD, Rows, picture_shape
from dreamsim.data.formats.recording import LAST, BadRecording, LeftOut, Recording, without_outcome
from dreamsim.data.formats.splitting import split

OUTCOMES = ("next.reward", "next.done", "next.success")
TOLD = 10  # episodes whose clock is told one by one
write = lerobot_write.write


class Plan(NamedTuple):
    """Which features become what."""

    observations: dict[str, str]  # our name: feature key, in the order of the space
    actions: list[str]
    outcomes: list[str]
    traces: list[str]
    observation_space: spaces.Space
    action_space: spaces.Space
    vector: bool  # actions lie in the file as the codec's vector, not as their space has them


class Kept(NamedTuple):
    """What our writer kept beside a dataset."""

    keys: dict[str, str]  # our name of an observation: feature key
    observation_space: spaces.Space
    action_space: spaces.Space
    vector: bool  # actions were written as the codec's vector
    meta: dict[str, Any]  # of the store


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a folder looks like a LeRobot dataset."""
    return (path / "meta/info.json").is_file()


def read(path: Path, clock: str = "mask", cameras: list[str] | None = None) -> Recording:
    """Read a dataset.

    ``clock``: what to do where frames are missing (lerobot_clock.py): drop, mask or interpolate.
    ``cameras``: the cameras wanted, by name; None: all.
    """
    info = lerobot_info.load(path)
    notes, kept = list(info.notes), _kept(info)
    plan = _plan(info, kept, cameras, notes)
    told = {
        "keys": plan.observations,
        "robot_type": info.about.get("robot_type"),
        "names": {key: info.features[key].get("names") for key in [*plan.observations.values(), *plan.actions]},
    }
    meta = {**(kept.meta if kept else {}), "lerobot": told}
    episodes = _episodes(info, plan, named_clock(clock), notes)
    return Recording(plan.observation_space, plan.action_space, info.rate, episodes, notes, len(info.rows), meta)


def _kept(info: Info) -> Kept | None:
    """Return what our writer kept, if the features are still those it wrote."""
    about: Any = info.about.get(OURS)
    try:
        seen, acted = (space_from_json(about[f"{side}_space"]) for side in ("observation", "action"))
        kept = Kept(dict(about["keys"]), seen, acted, about["vector"] is True, dict(about["meta"]))
        Codec(seen, acted)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError):
        return None  # another's dataset, or ours with what was kept damaged: it is read like any other
    here = {key for key in info.features if key.startswith("observation")}
    return kept if set(kept.keys.values()) == here else None


def _plan(info: Info, kept: Kept | None, cameras: list[str] | None, notes: list[str]) -> Plan:
    observed = _chosen(kept.keys if kept else _observations(info, notes), info, cameras)
    actions = [key for key in info.features if key == "action"] or sorted(
        (key for key in info.features if key.startswith("action.") and info.features[key]["dtype"] not in UNREAD),
        key=lerobot_info.short,
    )
    if not actions or not observed:
        raise BadRecording(f"expected features observation... and action, got {', '.join(info.features)}")
    outcomes = [key for key in OUTCOMES if key in info.features]
    known = {*observed.values(), *actions, *OUTCOMES, *CLOCK}
    traces = [
        key
        for key, kind in info.features.items()
        if key not in known and kind["dtype"] not in (*UNREAD, "video", "image") and not key.startswith("observation")
    ]
    if kept and len(observed) == len(kept.keys):
        return Plan(observed, actions, outcomes, traces, kept.observation_space, kept.action_space, kept.vector)
    observed = {key: observed[key] for key in sorted(observed) if info.features[observed[key]]["dtype"] not in UNREAD}
    seen = spaces.Dict({name: _observation_space(info.features[key]) for name, key in observed.items()})
    acted = kept.action_space if kept else _action_space(info, actions, notes)
    return Plan(observed, actions, outcomes, traces, seen, acted, bool(kept and kept.vector))


def _observations(info: Info, notes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, kind in info.features.items():
        if not key.startswith("observation"):
            continue
        if kind["dtype"] in UNREAD or (kind.get("info") or {}).get("video.is_depth_map"):
            notes.append(f"{key} is not read: {kind['dtype']}{' of depth' if kind['dtype'] == 'video' else ''}")
        elif lerobot_info.short(key) in found:
            raise BadRecording(f"{key} and {found[lerobot_info.short(key)]} would get the same name; rename one")
        else:
            found[lerobot_info.short(key)] = key
    return found


def _chosen(observed: dict[str, str], info: Info, cameras: list[str] | None) -> dict[str, str]:
    """Return the observations with only the cameras wanted. Raises BadRecording naming one that is not there."""
    if cameras is None:
        return observed
    there = sorted(name for name, key in observed.items() if key in info.cameras)
    if absent := sorted(set(cameras) - set(there)):
        raise BadRecording(
            f"no camera {', '.join(map(repr, absent))} in the data; it has {', '.join(map(repr, there)) or 'none'}"
        )
    return {name: key for name, key in observed.items() if name not in there or name in cameras}


def _observation_space(kind: dict[str, Any]) -> spaces.Space:
    if kind["dtype"] in ("video", "image"):
        return spaces.Box(0, 255, picture_shape(kind), np.uint8)
    return observation_box(np.empty((0, *kind["shape"]), _dtype(kind)))


def _dtype(kind: dict[str, Any]) -> np.dtype:
    try:
        return np.dtype(kind["dtype"])
    except TypeError as error:
        raise BadRecording(f"meta/info.json: unknown dtype {kind['dtype']!r}") from error


def _action_space(info: Info, keys: list[str], notes: list[str]) -> spaces.Space:
    """Return bounds out of every recorded action; the format has none."""
    files = sorted({row.data for row in info.rows if row.data.is_file()})
    found: dict[str, list[np.ndarray]] = {key: [] for key in keys}
    for file in files:
        try:
            table = lerobot_info.read_parquet(file, keys)
        except BadRecording:
            continue  # its episodes will say so
        for key in keys:
            if key in table.column_names:
                flat = table[key].combine_chunks()
                while flat.type.num_fields:
                    flat = flat.flatten()
                values = flat.to_numpy(zero_copy_only=False)
                found[key].append(values.reshape(-1, int(np.prod(info.features[key]["shape"]))))
    boxes = {}
    for key in keys:
        if not found[key]:
            raise BadRecording(f"no data file holds {key}")
        boxes[key], note = action_box(np.concatenate(found[key]))
        notes.append(note if len(keys) == 1 else f"{key}: {note}")
    return boxes[keys[0]] if len(keys) == 1 else spaces.Dict({lerobot_info.short(k): box for k, box in boxes.items()})


def _episodes(info: Info, plan: Plan, clock: Clock, notes: list[str]) -> Iterator[Episode | LeftOut]:
    codec = Codec(plan.observation_space, plan.action_space)
    names = list(codec.observation_space.spaces)
    rows = Rows(info, [*plan.observations.values(), *plan.actions, *plan.outcomes, *plan.traces])
    off_beat: list[str] = []
    index = 0
    for row in info.rows:
        at = index
        try:
            found = rows.columns(row)
            if len(found["index"]) != row.length:
                notes.append(f"episode {row.number} has {len(found['index'])} frames, its metadata says {row.length}")
            if not np.array_equal(found["index"].reshape(-1), index + np.arange(len(found["index"]))):
                notes.append(f"episode {row.number}: its global index does not go on from frame {index}")
            index = int(found["index"].reshape(-1)[-1]) + 1
            pieces = _mended(row, found, plan, clock, info, off_beat)
            for number, (time, piece) in enumerate(pieces):
                part = {"part": number} if len(pieces) > 1 else {}
                episode = _episode(info, plan, names, row, time, piece, part)
                ends = _inner_ends(piece)
                if ends.any():
                    notes.append(f"episode {row.number}: next.done before its end: several episodes in one, cut there")
                *inner, whole = split(episode, ends)
                yield from (short._replace(meta=_without_last(short.meta)) for short in inner)
                yield whole
            if not pieces:
                yield LeftOut(row.number, off_beat.pop().partition(": ")[2])
        except (BadRecording, ValueError, KeyError, TypeError, IndexError) as error:
            index = at + row.length
            yield LeftOut(row.number, str(error))
    if rows.moved:
        notes.append(f"episodes {rows.moved[:5]} lie in other data files than the metadata says; found by their index")
    more = len(off_beat) - TOLD
    notes.extend([*off_beat[:TOLD], *([f"{more} more episodes whose clock missed"] if more > 0 else [])])
    rows.close()


def _mended(
    row: Row, found: Columns, plan: Plan, clock: Clock, info: Info, off_beat: list[str]
) -> list[tuple[np.ndarray, Columns]]:
    """Return what the policy makes of an episode, and say what it did."""
    if TIME in found:
        return [(found[TIME].reshape(-1), found)]  # our writer kept it; a policy was applied before
    time = found["timestamp"].reshape(-1).astype(np.float64)
    flowing = frozenset(key for key in plan.observations.values() if found[key].dtype.kind == "f")
    mended = clock.mend(time, found, info.rate, flowing)
    beats = listen(time, info.rate)
    if mended.done:
        off_beat.append(f"episode {row.number}: {mended.done}")
    elif beats.jitter > 1e-3 / info.rate + 1e-4:
        off_beat.append(f"episode {row.number}: {faults(beats)}, jitter of {1e3 * beats.jitter:.1f} ms kept")
    if short := sum(len(when) < 2 for when, _ in mended.pieces):
        off_beat.append(f"episode {row.number}: {short} pieces of one frame dropped")
    return [(when, piece) for when, piece in mended.pieces if len(when) > 1]


def _episode(
    info: Info, plan: Plan, names: list[str], row: Row, time: np.ndarray, found: Columns, part: dict[str, int]
) -> Episode:
    """Return T frames as an Episode of T - 1 steps."""
    seen = iter([found[key] for key in plan.observations.values()])
    observed = columns.observations(plan.observation_space, names, encodable(plan.observation_space, seen))
    action = _actions(plan, found)
    reward = found["next.reward"].reshape(-1) if "next.reward" in found else None
    reward = None if reward is None or np.isnan(reward).all() else reward
    done = found["next.done"].reshape(-1).astype(bool) if "next.done" in found else np.zeros(len(time), bool)
    trace = {key: _plain(found[key]) for key in plan.traces if key != TIME}
    meta = {**_meta(info, row, found), **part}
    if not row.more.get("invented"):
        ended = {key: found[key].reshape(-1)[-1].item() for key in plan.outcomes if key != "next.reward"}
        last_reward = None if reward is None else float(reward[-1])
        held = {key: value[-1].tolist() for key, value in trace.items()}
        more = {**({"trace": held} if held else {}), **({"success": ended["next.success"]} if len(ended) > 1 else {})}
        meta |= without_outcome(action[-1], last_reward, bool(done[-1]), **more)
    return Episode(
        observed,
        action[:-1],
        None if reward is None else reward[:-1],
        bool(done[-2]),
        time.astype(np.float64),
        {key: value[:-1] for key, value in trace.items()},
        meta,
    )


def _plain(column: np.ndarray) -> np.ndarray:
    """Return a column of single numbers (T, 1) as (T,), any other as it is."""
    return column.reshape(-1) if column.shape[1:] == (1,) else column


def _without_last(meta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name != LAST}


def _inner_ends(found: Columns) -> np.ndarray:
    """Return which steps (T - 1,) are done although frames that are not done follow."""
    done = found["next.done"].reshape(-1).astype(bool) if "next.done" in found else np.zeros(1, bool)
    if "next.done" not in found or done[done.argmax() :].all():
        return np.zeros(len(found["frame_index"]) - 1, bool)
    return done[:-1]


def _actions(plan: Plan, found: Columns) -> np.ndarray:
    """Return actions (T, A) as vectors in raw units."""
    given = [found[key] for key in plan.actions]
    if plan.vector:
        return given[0]
    return columns.actions(plan.action_space, encodable(plan.action_space, iter(given)))


def _meta(info: Info, row: Row, found: Columns) -> dict[str, Any]:
    kept = row.more.get("meta") or {}
    meta: dict[str, Any] = {"episode": row.number, **_without_last(kept)}
    task = found["task_index"].reshape(-1)
    changes = np.flatnonzero(np.diff(task, prepend=task[0] - 1))
    said = [[int(frame), info.tasks.get(int(task[frame]), "")] for frame in changes]
    if said[0][1] and "task" not in meta:
        meta["task"] = said[0][1]
    if len(said) > 1:
        meta["tasks"] = said  # [frame, what is asked from there on]
    if "next.success" in found:
        meta["success"] = bool(found["next.success"].any())
    json.dumps(meta)
    return meta
