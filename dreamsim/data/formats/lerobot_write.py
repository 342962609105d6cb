"""A store as a LeRobot dataset, version 3.0 (huggingface/lerobot, src/lerobot/datasets, release 0.4).

What the format has no place for is kept beside it, where LeRobot does not look: ``dreamsim`` in
meta/info.json (spaces and names) and a column ``dreamsim`` in meta/episodes (an episode's meta as JSON).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.core.spaces import space_to_json
from dreamsim.core.types import Episode
from dreamsim.data.formats import lerobot_stats
from dreamsim.data.formats.lerobot_files import PATTERN, Films, Sheets, table_of, tasks_table
from dreamsim.data.formats.lerobot_info import OURS
from dreamsim.data.formats.lerobot_layout import TIME, Layout, layout_of, raw
from dreamsim.data.formats.recording import Report, last_of
from dreamsim.data.formats.videos_codec import describe
from dreamsim.data.store import Store

VERSION = "v3.0"
BATCH = 100  # rows of meta/episodes written at a time


def write(
    store: Store,
    target: Path,
    report: Report,
    video: bool = True,
    data_files_size_in_mb: float = 100,
    video_files_size_in_mb: float = 200,
    chunks_size: int = 1000,
) -> list[str]:
    """Write every episode; ``video`` False: pictures as PNG inside Parquet, which loses nothing.

    The sizes (MiB) and the number of files a folder are the format's own settings.
    """
    layout = layout_of(store, video)
    settings = {
        "chunks_size": chunks_size,
        "data_files_size_in_mb": data_files_size_in_mb,
        "video_files_size_in_mb": video_files_size_in_mb,
    }
    made = _Dataset(target, store, layout, settings)
    for number in range(len(store)):
        made.append(number, store.episode(number))
        report(number + 1, len(store))
    made.finish()
    if made.invented:
        layout.notes.append(
            f"{made.invented} episodes have no action at their last observation, and LeRobot wants one: "
            "the one before is repeated there, marked so that reading it back drops it"
        )
    return layout.notes


class _Dataset:
    """The files being written."""

    def __init__(self, root: Path, store: Store, layout: Layout, settings: dict[str, Any]) -> None:
        self.root, self.store, self.layout, self.settings = root, store, layout, settings
        chunk, data, video = settings.values()
        self.scratch = root / "unfinished"
        self.data = Sheets(root / "data", data, chunk)
        self.episodes = Sheets(root / "meta/episodes", data, chunk)
        self.films = {
            key: Films(root / "videos" / key, video, chunk, layout.rate, self.scratch / key)
            for key, kind in layout.features.items()
            if kind["dtype"] == "video"
        }
        self.tasks: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []
        self.stats: dict[str, list[lerobot_stats.Stats]] = {}
        self.frames = self.count = self.invented = 0
        (root / "meta").mkdir(parents=True)

    def append(self, number: int, episode: Episode) -> None:
        """Write one episode."""
        found = self._columns(number, episode)
        length = len(found["frame_index"])
        place = self.data.reserve(length)
        self.data.append(table_of(found, self.layout.features))
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": list(dict.fromkeys(text for _, text in said(episode))),
            "length": length,
            "data/chunk_index": place.chunk,
            "data/file_index": place.file,
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + length,
        }
        for key, film in self.films.items():
            row |= {f"videos/{key}/{side}": value for side, value in film.append(found[key]).items()}
        row |= self._count(found)
        invented = last_of(episode) is None
        row[OURS] = json.dumps({"meta": episode.meta, "invented": invented})
        self.rows.append(row)
        self.frames, self.count, self.invented = self.frames + length, self.count + 1, self.invented + invented
        if len(self.rows) == BATCH:
            self._flush()

    def finish(self) -> None:
        """Write what is left, and what is known at the end only."""
        import pyarrow.parquet as pq

        self._flush()
        self.data.close()
        self.episodes.close()
        for film in self.films.values():
            film.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        pq.write_table(tasks_table(list(self.tasks)), self.root / "meta/tasks.parquet")
        whole = {key: lerobot_stats.plain(lerobot_stats.together(parts)) for key, parts in self.stats.items()}
        _write_json(self.root / "meta/stats.json", whole)
        for key in self.films:
            self.layout.features[key]["info"] = describe(self.root / "videos" / key / "chunk-000/file-000.mp4")
        _write_json(self.root / "meta/info.json", self._info())

    def _info(self) -> dict[str, Any]:
        rate, store = self.layout.rate, self.store
        return {
            "codebase_version": VERSION,
            "robot_type": store.meta.get("lerobot", {}).get("robot_type"),
            "total_episodes": self.count,
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            **self.settings,
            "fps": int(rate) if rate == int(rate) else rate,
            "splits": {"train": f"0:{self.count}"},
            "data_path": f"data/{PATTERN}.parquet",
            "video_path": f"videos/{{video_key}}/{PATTERN}.mp4" if self.films else None,
            "features": self.layout.features,
            OURS: {
                "observation_space": space_to_json(store.codec.raw_observation_space),
                "action_space": space_to_json(store.codec.raw_action_space),
                "keys": self.layout.keys,
                "vector": self.layout.vector,
                "meta": {name: value for name, value in store.meta.items() if name != "source"},
            },
        }

    def _columns(self, number: int, episode: Episode) -> dict[str, Any]:
        """Return T frames for an Episode of T - 1 steps."""
        layout, codec, length = self.layout, self.store.codec, len(episode.action) + 1
        last = last_of(episode) or {"action": episode.action[-1], "terminated": episode.terminated}
        action = np.concatenate([episode.action, np.asarray(last["action"])[None]])
        found = {key: raw(layout.leaves[name], episode.obs[name]) for name, key in layout.keys.items()}
        found["action"] = action if layout.vector else raw(codec.raw_action_space, action)
        done = np.zeros(length, bool)
        done[-2:] = episode.terminated, last["terminated"]
        reward = np.full(length, np.nan)
        if episode.reward is not None:
            reward[:-1], reward[-1] = episode.reward, last.get("reward") or 0.0
        success = np.zeros(length, bool)
        success[-1] = bool(episode.meta.get("success", False))
        ended = last.get("trace", {})
        for name, values in episode.trace.items():
            found[name] = np.concatenate([values, np.asarray(ended.get(name, values[-1]), values.dtype)[None]])
        return (
            found | {"next.done": done, "next.reward": reward, "next.success": success} | self._clock(number, episode)
        )

    def _clock(self, number: int, episode: Episode) -> dict[str, np.ndarray]:
        frame = np.arange(len(episode.action) + 1)
        task = np.empty(len(frame), np.int64)
        for first, text in said(episode):
            task[first:] = self.tasks.setdefault(text, len(self.tasks))
        time = frame / self.layout.rate
        return {
            "timestamp": time,
            "frame_index": frame,
            "episode_index": np.full(len(frame), number),
            "index": self.frames + frame,
            "task_index": task,
            TIME: time if episode.time is None else episode.time,
        }

    def _count(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return an episode's statistics as columns of meta/episodes, and keep them for the whole."""
        row: dict[str, Any] = {}
        for key, kind in self.layout.features.items():
            if kind["dtype"] == "string":
                continue
            seen = kind["dtype"] in ("video", "image")
            stats = lerobot_stats.of_pictures(found[key]) if seen else lerobot_stats.of_numbers(found[key])
            self.stats.setdefault(key, []).append(stats)
            row |= {f"stats/{key}/{name}": value for name, value in lerobot_stats.plain(stats).items()}
        return row

    def _flush(self) -> None:
        """Write the rows of meta/episodes that wait."""
        import pyarrow as pa

        if not self.rows:
            return
        place = self.episodes.reserve(len(self.rows))
        where = {"meta/episodes/chunk_index": place.chunk, "meta/episodes/file_index": place.file}
        self.episodes.append(pa.Table.from_pylist([row | where for row in self.rows]))
        self.rows = []


def said(episode: Episode) -> list[tuple[int, str]]:
    """Return which task holds from which frame on."""
    changes = episode.meta.get("tasks") or [[0, episode.meta.get("task", "")]]
    return [(int(frame), str(text)) for frame, text in changes]


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False))
