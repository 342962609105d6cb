"""The frames of one LeRobot episode as columns: numbers out of Parquet, pictures out of Parquet or videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.data.formats.lerobot_info import CLOCK, Clip, Info, Row, read_parquet
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.formats.videos_codec import Reel, from_image

UNREAD = ("string", "audio")
"""Kinds of feature that are no numbers; ``Text`` observations that our writer wrote are the exception."""


class Rows:
    """Reads episodes in order, each file once. ``keys``: the features wanted."""

    def __init__(self, info: Info, keys: list[str]) -> None:
        self.info, self.keys = info, keys
        self._path: Path | None = None
        self._table: Any = None
        self._spans: dict[int, tuple[int, int]] = {}
        self._reels: dict[str, Reel] = {}
        self._elsewhere: dict[int, Path] | None = None
        self.moved: list[int] = []  # episodes that lay in another file than the metadata says

    def columns(self, row: Row) -> dict[str, np.ndarray]:
        """Return the columns (T, ...) of an episode, the clock's among them. Raises BadRecording."""
        table = self._rows(row)
        found = {}
        for key in (*CLOCK, *self.keys):
            kind = self.info.features.get(key, {"dtype": "int64", "shape": (1,)})
            if kind["dtype"] == "video":
                continue
            if key not in table.column_names:
                raise BadRecording(f"its data has no column {key}")
            found[key] = _pictures(table[key]) if kind["dtype"] == "image" else _numbers(key, table[key], kind)
        count = np.arange(len(found["frame_index"]))
        if not np.array_equal(found["frame_index"].reshape(-1), count):
            raise BadRecording(f"its frame_index does not count from 0 to {len(count) - 1}")
        for key in self.keys:
            if self.info.features[key]["dtype"] == "video":
                found[key] = self._film(key, row.clips[key], found["timestamp"].reshape(-1))
        return {key: _as_declared(key, found[key], self.info.features) for key in found}

    def close(self) -> None:
        """Close the videos."""
        for reel in self._reels.values():
            reel.close()
        self._reels = {}

    def _rows(self, row: Row) -> Any:
        self._open(row.data)
        if row.number not in self._spans:
            self._open(self._find(row.number))
            self.moved.append(row.number)
        first, last = self._spans[row.number]
        return self._table.slice(first, last - first)

    def _open(self, path: Path) -> None:
        if path != self._path:
            self._path, self._spans = None, {}
            self._table = read_parquet(path, [*CLOCK, *self.keys])
            self._path, self._spans = path, spans(path, self._table)

    def _find(self, number: int) -> Path:
        """Return the file that really holds an episode."""
        if self._elsewhere is None:
            self._elsewhere = {}
            for path in sorted((self.info.root / "data").glob("*/*.parquet")):
                try:
                    found = np.unique(read_parquet(path, ["episode_index"])["episode_index"].to_numpy())
                except (BadRecording, KeyError):
                    continue  # the episodes that should be in it will say so
                self._elsewhere.update(dict.fromkeys(found.tolist(), path))
        if number not in self._elsewhere:
            raise BadRecording("no data file holds its frames")
        return self._elsewhere[number]

    def _film(self, key: str, clip: Clip, stamps: np.ndarray) -> np.ndarray:
        """Return a camera's frames (T, H, W, 3): by number where there are as many as rows, else by their time."""
        reel = self._reels.get(key)
        if reel is None or reel.path != clip.path:
            if reel is not None:
                del self._reels[key]
                reel.close()
            reel = self._reels[key] = Reel(clip.path)
        tolerance = 0.5 / self.info.rate
        there = reel.count if clip.frames is None else clip.frames
        if there == len(stamps):
            return reel.run(clip.start, len(stamps), tolerance)
        return reel.take(clip.start + stamps.astype(np.float64), tolerance)


def spans(path: Path, table: Any) -> dict[int, tuple[int, int]]:
    """Return for each episode in a table its first row and the one after its last."""
    if "episode_index" not in table.column_names:
        raise BadRecording(f"{path.name} has no column episode_index")
    numbers = table["episode_index"].to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1]) if len(numbers) else np.empty(0, int)
    stops = [*starts[1:].tolist(), len(numbers)]
    found: dict[int, tuple[int, int]] = {}
    for first, last in zip(starts.tolist(), stops, strict=True):
        if int(numbers[first]) in found:
            raise BadRecording(f"{path.name} holds the frames of episode {numbers[first]} in pieces")
        found[int(numbers[first])] = first, last
    return found


def _numbers(key: str, column: Any, kind: dict[str, Any]) -> np.ndarray:
    """Return a column (T, *shape) of numbers, or of strings (T,)."""
    if kind["dtype"] == "string":
        return np.array(column.to_pylist(), object)
    count = len(column)
    flat = column.combine_chunks()
    while flat.type.num_fields:
        flat = flat.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    shape = (count, *kind["shape"])
    if values.dtype.kind not in "biuf" or values.size != np.prod(shape):
        raise BadRecording(f"its column {key} does not hold {kind['dtype']} of shape {kind['shape']}")
    return values.reshape(shape)


def _pictures(column: Any) -> np.ndarray:
    """Return a column of encoded images as (T, H, W, 3) uint8."""
    pictures = []
    for value in column.to_pylist():
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise BadRecording("its images are not embedded in the data file")
        pictures.append(from_image(data))
    if len({picture.shape for picture in pictures}) != 1:
        raise BadRecording("its images differ in size")
    return np.stack(pictures)


def picture_shape(kind: dict[str, Any]) -> tuple[int, int, int]:
    """Return (H, W, C) of an image feature, whichever way round it is declared."""
    shape, names = kind["shape"], kind.get("names")
    if len(shape) != 3:
        raise BadRecording(f"an image is declared with shape {shape}; expected height, width and channels")
    first = isinstance(names, list) and str(names[0]).startswith("channel")
    if first or (not isinstance(names, list) and shape[0] in (1, 3) and shape[2] not in (1, 3)):
        return shape[1], shape[2], shape[0]
    return shape[0], shape[1], shape[2]


def _as_declared(key: str, column: np.ndarray, features: dict[str, dict]) -> np.ndarray:
    """Return pictures with the declared number of channels; refuse those of another size."""
    kind = features.get(key)
    if kind is None or kind["dtype"] not in ("video", "image"):
        return column
    height, width, channels = picture_shape(kind)
    if column.shape[1:3] != (height, width):
        raise BadRecording(
            f"{key} is declared {height} high and {width} wide, but its pictures are {column.shape[1]} and "
            f"{column.shape[2]}; correct its shape and names in meta/info.json"
        )
    return column[..., :1] if channels == 1 else column
