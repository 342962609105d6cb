"""What a LeRobot dataset says of itself: ``meta/`` of versions 2.0, 2.1 and 3.0 in one form.

Layouts as in huggingface/lerobot, src/lerobot/datasets (``utils.py``, ``lerobot_dataset.py``):

    meta/info.json        version, fps, features {key: dtype, shape, names}, path templates, totals
    meta/episodes, tasks  2.x: .jsonl, a line each; 3.0: episodes/chunk-*/file-*.parquet and tasks.parquet
    data, videos          2.x: a file an episode; 3.0: many episodes a file, up to a size
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamsim.data.formats.recording import BadRecording

CLOCK = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Features that every LeRobot dataset has and that are no recorded quantity."""
OURS = "dreamsim"
"""Where our writer keeps what the format has no place for: a key of info.json, a column of meta/episodes."""


class Clip(NamedTuple):
    """Where the frames of one episode and camera are."""

    path: Path
    start: float  # seconds
    frames: int | None  # how many the metadata says are there; None: the whole file


class Row(NamedTuple):
    """One episode as the metadata has it."""

    number: int
    length: int
    tasks: list[str]
    data: Path
    clips: dict[str, Clip]
    more: dict[str, Any]  # what our writer kept


class Info(NamedTuple):
    """A dataset's metadata."""

    root: Path
    version: str
    rate: float
    features: dict[str, dict[str, Any]]
    tasks: dict[int, str]
    rows: list[Row]
    about: dict[str, Any]  # info.json as it stands
    notes: list[str]

    @property
    def cameras(self) -> dict[str, str]:
        """Names of the image observations by feature key."""
        return {key: short(key) for key, kind in self.features.items() if kind["dtype"] in ("video", "image")}


def short(key: str) -> str:
    """Return our name of an observation: ``observation.images.top`` is ``top``, ``observation.state`` ``state``.

    Dots inside become "_": networks keep their parts under these names.
    """
    for prefix in ("observation.images.", "observation."):
        if key.startswith(prefix):
            return key.removeprefix(prefix).replace(".", "_")
    return key.replace(".", "_")


def load(root: Path) -> Info:
    """Read the metadata of a dataset. Raises BadRecording naming the file."""
    about = read_json(root / "meta/info.json")
    version = str(about.get("codebase_version", "none")) if isinstance(about, dict) else "none"
    if not version.startswith(("v2.", "v3.")):
        raise BadRecording(f"meta/info.json has codebase_version {version!r}; v2.0, v2.1 and v3.0 can be read")
    features, rate = about.get("features"), about.get("fps")
    if not isinstance(features, dict) or not all(map(_is_feature, features.values())):
        raise BadRecording("meta/info.json: expected features as {key: {dtype, shape}}")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e6:
        raise BadRecording(f"meta/info.json: expected fps above 0, got {rate!r}")
    features = {key: {**kind, "shape": tuple(kind["shape"])} for key, kind in features.items()}
    third = version.startswith("v3.")
    tasks = _tasks_3(root) if third else _tasks_2(root)
    rows = sorted((_rows_3 if third else _rows_2)(root, about, features), key=lambda row: row.number)
    return Info(root, version, float(rate), features, tasks, rows, about, _odd(root, about, rows))


def read_json(path: Path) -> Any:
    """Return a JSON file. Raises BadRecording naming it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRecording(f"{_last_names(path)} cannot be read as JSON: {error}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return a file of JSON objects, one a line. Raises BadRecording naming the line."""
    found = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadRecording(f"{_last_names(path)} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRecording(f"{_last_names(path)} line {number} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRecording(f"{_last_names(path)} line {number}: expected an object, got {type(value).__name__}")
        found.append(value)
    return found


def read_parquet(path: Path, columns: list[str] | None = None) -> Any:
    """Return a Parquet file as an Arrow table, without the columns it lacks. Raises BadRecording naming it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            return file.read(
                None if columns is None else [name for name in columns if name in names], use_threads=False
            )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadRecording(f"{_last_names(path)} cannot be read as Parquet: {error}") from error


def place(root: Path, template: Any, **numbers: Any) -> Path:
    """Return the file that a path template of info.json names; it must lie inside the dataset."""
    try:
        inner = os.path.normpath(str(template).format(**numbers))
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise BadRecording(f"meta/info.json: the path template {template!r} cannot be filled in: {error}") from error
    if os.path.isabs(inner) or inner.split(os.sep)[0] == "..":
        raise BadRecording(f"meta/info.json: the path template {template!r} leads out of the dataset")
    return root / inner


def _is_feature(kind: Any) -> bool:
    return (
        isinstance(kind, dict)
        and isinstance(kind.get("dtype"), str)
        and isinstance(kind.get("shape"), list)
        and all(isinstance(side, int) and 0 < side < 2**24 for side in kind["shape"])
    )


def _tasks_2(root: Path) -> dict[int, str]:
    lines = read_lines(root / "meta/tasks.jsonl")
    return {int(line["task_index"]): str(line["task"]) for line in lines if {"task_index", "task"} <= line.keys()}


def _tasks_3(root: Path) -> dict[int, str]:
    """The text is pandas' index: a column called ``task`` or ``__index_level_0__``."""
    table = read_parquet(root / "meta/tasks.parquet")
    words = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(words) != 1:
        raise BadRecording(f"meta/tasks.parquet: expected task_index and the task's text, got {table.column_names}")
    texts = map(str, table[words[0]].to_pylist())
    return dict(zip(table["task_index"].to_pylist(), texts, strict=True))


def _rows_2(root: Path, about: dict[str, Any], features: dict[str, dict]) -> Iterator[Row]:
    size = about.get("chunks_size", 1000)
    cameras = [key for key, kind in features.items() if kind["dtype"] == "video"]
    for line in read_lines(root / "meta/episodes.jsonl"):
        number = _whole(line, "episode_index")
        where = {"episode_chunk": number // max(int(size), 1), "episode_index": number}
        clips = {key: Clip(place(root, about.get("video_path"), video_key=key, **where), 0.0, None) for key in cameras}
        data = place(root, about.get("data_path"), **where)
        yield Row(number, _whole(line, "length"), _texts(line.get("tasks")), data, clips, {})


def _rows_3(root: Path, about: dict[str, Any], features: dict[str, dict]) -> Iterator[Row]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise BadRecording("meta/episodes holds no Parquet file")
    cameras = [key for key, kind in features.items() if kind["dtype"] == "video"]
    wanted = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index", OURS]
    sides = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    wanted += [f"videos/{key}/{side}" for key in cameras for side in sides]
    for file in files:
        for line in read_parquet(file, wanted).to_pylist():
            number = _whole(line, "episode_index")
            where = {side: _whole(line, f"data/{side}") for side in ("chunk_index", "file_index")}
            data = place(root, about.get("data_path"), **where)
            clips = {key: _clip_3(root, about, key, line) for key in cameras}
            yield Row(number, _whole(line, "length"), _texts(line.get("tasks")), data, clips, _kept(line.get(OURS)))


def _clip_3(root: Path, about: dict[str, Any], key: str, line: dict[str, Any]) -> Clip:
    where = {side: _whole(line, f"videos/{key}/{side}") for side in ("chunk_index", "file_index")}
    start, stop = (line.get(f"videos/{key}/{side}_timestamp") for side in ("from", "to"))
    if not (isinstance(start, float) and isinstance(stop, float) and np.isfinite([start, stop]).all()):
        raise BadRecording(f"meta/episodes: episode {line['episode_index']} has no from and to timestamps of {key}")
    return Clip(
        place(root, about.get("video_path"), video_key=key, **where), start, round((stop - start) * about["fps"])
    )


def _kept(text: Any) -> dict[str, Any]:
    """Return what our writer kept of an episode; nothing where it is not ours any more."""
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(line: dict[str, Any], name: str) -> int:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRecording(f"meta/episodes: expected a whole number as {name}, got {value!r}")
    return value


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _odd(root: Path, about: dict[str, Any], rows: list[Row]) -> list[str]:
    """Return in words where totals, numbers and files do not fit together."""
    notes = []
    numbers, frames = [row.number for row in rows], sum(row.length for row in rows)
    if numbers != list(range(len(rows))):
        notes.append(f"episode numbers are not 0..{len(rows) - 1} once each; each is read under its own number")
    for name, count in (("total_episodes", len(rows)), ("total_frames", frames)):
        if about.get(name) != count:
            notes.append(f"meta/info.json says {name} {about.get(name)}, the episodes say {count}; the latter is taken")
    used = {row.data for row in rows} | {clip.path for row in rows for clip in row.clips.values()}
    there = {path for folder in ("data", "videos") for path in (root / folder).rglob("*") if path.is_file()}
    if orphans := sorted(str(path.relative_to(root)) for path in there - used):
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        notes.append(f"orphan files, which belong to no episode and are passed over: {', '.join(orphans[:3])}{more}")
    return notes


def _last_names(path: Path) -> str:
    return "/".join(path.parts[-3:])
