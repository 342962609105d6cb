"""Stores written as Minari datasets, by Minari's own storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.data.formats import columns
from dreamsim.data.formats.recording import LAST, Report
from dreamsim.data.store import Store

HELD = {"id", "seed", "options", "reset_info", "truncated", "part", "origin"}


def write_as(kind: str, store: Store, target: Path, report: Report) -> list[str]:
    """Write a dataset's folder; ``kind``: hdf5 or arrow. Images are kept as they are, not as JPEG."""
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage

    from dreamsim.data.formats.minari_spaces import from_text

    about = dict(store.meta.get("minari", {}))
    codec = store.codec
    space = from_text(about.pop("action_space"), "action_space") if "action_space" in about else codec.raw_action_space
    data = target / "data"
    data.mkdir(parents=True)
    storage = MinariStorage.new(data, codec.raw_observation_space, space, data_format=kind, jpeg_encoding=False)
    for name in ("author", "author_email"):
        if name in about:
            about[name] = set(about[name])
    about = {"dataset_id": f"{target.name}-v0", **about, "minari_version": __version__}
    storage.update_metadata(about)
    lost: set[str] = set()
    storage.update_episodes(_buffers(store, report, lost))
    return [f"Minari has no place for: {', '.join(sorted(lost))}"] if lost else []


def _buffers(store: Store, report: Report, lost: set[str]) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    names = list(store.codec.observation_space.spaces)
    for number in range(len(store)):
        episode = store.episode(number)
        steps = len(episode.action)
        ends = np.zeros((2, steps), bool)
        ends[:, -1] = episode.terminated, bool(episode.meta.get("truncated", not episode.terminated))
        lost |= {f"meta {name!r}" for name in episode.meta if name not in HELD} | _untold(episode)
        reward = np.zeros(steps) if episode.reward is None else episode.reward
        yield EpisodeBuffer(
            number,
            episode.meta.get("seed"),
            episode.meta.get("options"),
            columns.decode_observations(store.codec.raw_observation_space, names, episode.obs),
            columns.decode_actions(store.codec.raw_action_space, episode.action),
            reward,
            ends[0],
            ends[1],
            _infos(episode),
        )
        report(number + 1, len(store))


def _infos(episode: Any) -> dict[str, Any] | None:
    reset, found = episode.meta.get("reset_info", {}), {}
    for name, rows in episode.trace.items():
        if name.startswith("info/"):
            first = np.asarray(reset.get(name[5:], np.zeros(rows.shape[1:])), rows.dtype)
            found[name[5:]] = np.concatenate([first[None], rows])
    return columns.nested(found) or None


def _untold(episode: Any) -> set[str]:
    lost = {f"trace {name!r}" for name in episode.trace if not name.startswith("info/")}
    lost |= {"that no reward was recorded (0 is written)"} if episode.reward is None else set()
    return lost | ({"time"} if episode.time is not None else set()) | ({LAST} & episode.meta.keys())
