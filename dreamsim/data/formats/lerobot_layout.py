"""How the fields of a store become the features of a LeRobot dataset, and a field's values a feature's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dreamsim.core.leaf import is_image
from dreamsim.data.formats import columns
from dreamsim.data.formats.lerobot_clock import JITTER
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.store import Store

TIME = "recorded_time"
"""Seconds as recorded, where they are not on LeRobot's beat of whole frames from 0 on."""


class Layout(NamedTuple):
    """How a store's fields become features."""

    features: dict[str, dict[str, Any]]
    keys: dict[str, str]  # our name of an observation: feature key
    leaves: dict[str, spaces.Space]  # raw space of each observation
    vector: bool  # actions are written as the codec's vector
    rate: float
    notes: list[str]


def layout_of(store: Store, video: bool) -> Layout:
    """Return the features of a store; ``video`` False: pictures lie inside Parquet. Raises BadRecording."""
    known = store.meta.get("lerobot", {})
    named = known.get("keys", {}), known.get("names", {})
    leaves = dict(zip(store.codec.observation_space.spaces, leaves_of(store.codec.raw_observation_space), strict=True))
    rate, off_beat = _rate(store)
    notes: list[str] = []
    keys: dict[str, str] = {}
    features: dict[str, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        keys[name] = key = named[0].get(name) or _key(name, leaf)
        dtype = _widest([episode.obs[name] for episode in store])
        features[key] = _picture(name, leaf, video, notes) if is_picture(leaf) else _numbers(leaf, dtype, named[1], key)
    if len(set(keys.values())) != len(keys):
        raise BadRecording(f"two observations would be called alike: {keys}")
    space = store.codec.raw_action_space
    vector = isinstance(space, (spaces.Dict, spaces.Tuple))
    actions = _widest([episode.action for episode in store])
    if vector:
        notes.append("composite actions are written as one vector, choices in it as one number each that is 0 or 1")
    flat = spaces.Box(-np.inf, np.inf, (store.codec.action_size,), np.float32)
    features["action"] = _numbers(flat if vector else space, actions, named[1], "action")
    features |= _outcomes(store)
    for name in sorted({name for episode in store for name in episode.trace}):
        rows = [episode.trace[name] for episode in store if name in episode.trace]
        if len(rows) < len(store):
            notes.append(f"trace {name} is not in every episode and is left out")
        else:
            features[name] = _feature(str(np.result_type(*rows)), rows[0].shape[1:] or (1,), None)
    if off_beat:
        features[TIME] = _feature("float64", (1,), None)
        notes.append(f"times that are not at whole multiples of 1/{rate:g} s are kept as {TIME}")
    return Layout(features | _clock_features(), keys, leaves, vector, rate, notes)


def _outcomes(store: Store) -> dict[str, dict[str, Any]]:
    found = {}
    if any(episode.reward is not None for episode in store):
        rewards = [episode.reward for episode in store if episode.reward is not None]
        found["next.reward"] = _feature(_widest(rewards), (1,), None)
    found["next.done"] = _feature("bool", (1,), None)
    if any("success" in episode.meta for episode in store):
        found["next.success"] = _feature("bool", (1,), None)
    return found


def _clock_features() -> dict[str, dict[str, Any]]:
    whole = ("frame_index", "episode_index", "index", "task_index")
    return {"timestamp": _feature("float32", (1,), None)} | {key: _feature("int64", (1,), None) for key in whole}


def _feature(dtype: str, shape: tuple[int, ...], names: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": names}


def _numbers(leaf: spaces.Space, widest: str, names: dict[str, Any], key: str) -> dict[str, Any]:
    if isinstance(leaf, spaces.Text):
        return _feature("string", (1,), None)
    dtype = widest if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" else str(leaf.dtype)
    return _feature(dtype, tuple(leaf.shape or ()) or (1,), names.get(key))


def _widest(arrays: list[np.ndarray]) -> str:
    """Return float64 where an array has it, else float32."""
    return "float64" if any(array.dtype == np.float64 for array in arrays) else "float32"


def is_picture(leaf: spaces.Space) -> bool:
    return is_image(leaf) and len(leaf.shape) == 3


def _picture(name: str, leaf: spaces.Space, video: bool, notes: list[str]) -> dict[str, Any]:
    height, width, channels = sides(leaf)
    if channels == 4:
        raise BadRecording(f"observation {name!r} has pictures with 4 channels; LeRobot has 3: leave one out first")
    if channels == 1:
        notes.append(f"grey pictures {name!r} are written in colour, as LeRobot has no others")
    return _feature("video" if video else "image", (height, width, 3), ["height", "width", "channels"])


def sides(leaf: spaces.Space) -> tuple[int, int, int]:
    channels, height, width = columns.encode(leaf, np.zeros((1, *(leaf.shape or ())), np.uint8))[0].shape[1:]
    return height, width, channels


def _key(name: str, leaf: spaces.Space) -> str:
    if name == "observation":
        return "observation.state"
    return f"observation.{'images.' if is_picture(leaf) else ''}{name.replace('/', '.')}"


def leaves_of(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaves_of(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaves_of(part)]
    return [space]


def _rate(store: Store) -> tuple[float, bool]:
    """Return frames per second, and whether some recorded time is off their beat."""
    times = [episode.time for episode in store if episode.time is not None]
    rate = store.rate
    if rate is None:
        if not times:
            raise BadRecording("the store has neither a rate nor times, and LeRobot needs frames per second")
        rate = round(1 / float(np.median(np.concatenate([np.diff(time) for time in times]))), 3)
    grid = [np.abs(time - np.arange(len(time)) / rate).max() for time in times]
    return rate, bool(grid) and max(grid) > JITTER


def raw(leaf: spaces.Space, array: np.ndarray) -> Any:
    """Return an encoded column (N, ...) as a feature's values: pictures (N, H, W, 3), text as N strings."""
    if is_picture(leaf):
        picture = np.moveaxis(array, 1, -1)
        return np.repeat(picture, 3, -1) if picture.shape[-1] == 1 else picture
    if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f":
        return array
    return columns.decode(leaf, [array])


def encodable(space: spaces.Space, leaves: Any) -> columns.Columns:
    """Return features' values, one after the other, as the tree of columns that a space has: undoes ``raw``."""
    if isinstance(space, spaces.Dict):
        return {name: encodable(part, leaves) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(encodable(part, leaves) for part in space.spaces)
    values = next(leaves)
    if isinstance(space, spaces.Text):
        return list(values)
    if is_picture(space):
        height, width, channels = sides(space)
        values = values[..., :channels]
        return values if space.shape == (height, width, channels) else np.moveaxis(values, -1, 1)
    return values.reshape(len(values), *(space.shape or ()))
