"""The files of a LeRobot dataset 3.0: Parquet and video files that are full at a size, and their columns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamsim.data.formats import videos_codec

MIB = 2**20
PATTERN = "chunk-{chunk_index:03d}/file-{file_index:03d}"


class Place(NamedTuple):
    """A file of a kind: files are numbered in chunks."""

    chunk: int
    file: int

    def after(self, chunks_size: int) -> Place:
        """Return the next file's."""
        return Place(self.chunk + 1, 0) if self.file == chunks_size - 1 else Place(self.chunk, self.file + 1)

    def path(self, folder: Path, suffix: str) -> Path:
        """Return where the file is, and make its folder."""
        path = folder / (PATTERN.format(chunk_index=self.chunk, file_index=self.file) + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class Sheets:
    """Parquet files below ``folder``. A table that would likely fill one to ``size`` MiB begins the next."""

    def __init__(self, folder: Path, size: float, chunks_size: int) -> None:
        self.folder, self.size, self.chunks_size = folder, size, chunks_size
        self.place = Place(0, 0)
        self._writer: Any = None
        self._sink: Any = None
        self._rows = 0  # in the present file

    def reserve(self, rows: int) -> Place:
        """Return the file that the next table of so many rows goes to."""
        if self._rows:
            there = self._sink.tell()
            if there + there / self._rows * rows >= self.size * MIB:
                self.close()
                self.place = self.place.after(self.chunks_size)
        return self.place

    def append(self, table: Any) -> None:
        """Write a table into the file reserved for it, as one group of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._sink = pa.OSFile(str(self.place.path(self.folder, ".parquet")), "wb")
            self._writer = pq.ParquetWriter(self._sink, table.schema, compression="snappy", use_dictionary=True)
        self._writer.write_table(table, row_group_size=max(len(table), 1))
        self._rows += len(table)

    def close(self) -> None:
        """End the present file."""
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
        self._writer, self._rows = None, 0


class Films:
    """The video files of one camera. An episode that would fill one to ``size`` MiB begins the next."""

    def __init__(self, folder: Path, size: float, chunks_size: int, rate: float, scratch: Path) -> None:
        self.folder, self.size, self.chunks_size, self.rate, self.scratch = folder, size, chunks_size, rate, scratch
        self.place = Place(0, 0)
        self._parts: list[Path] = []
        self._counts: list[int] = []
        self._bytes = 0

    def append(self, frames: np.ndarray) -> dict[str, Any]:
        """Add an episode's frames (T, H, W, 3) and return which file they are in, from and to which second."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        part = self.scratch / f"{len(self._parts):06d}.mp4"
        videos_codec.encode(part, frames, self.rate)
        size = part.stat().st_size
        if self._parts and self._bytes + size >= self.size * MIB:
            part = part.rename(self.scratch / "next.mp4")
            self.close()
            self.place = self.place.after(self.chunks_size)
            part = part.rename(self.scratch / f"{0:06d}.mp4")
        before = sum(self._counts)
        self._parts, self._counts = [*self._parts, part], [*self._counts, len(frames)]
        self._bytes += size
        times = {"from_timestamp": before / self.rate, "to_timestamp": (before + len(frames)) / self.rate}
        return {"chunk_index": self.place.chunk, "file_index": self.place.file, **times}

    def close(self) -> None:
        """Make the present file of its episodes."""
        path = self.place.path(self.folder, ".mp4")
        if len(self._parts) == 1:
            shutil.move(self._parts[0], path)
        elif self._parts:
            videos_codec.join(path, self._parts, self._counts, self.rate)
            for part in self._parts:
                part.unlink()
        self._parts, self._counts, self._bytes = [], [], 0


def table_of(columns: dict[str, Any], features: dict[str, dict[str, Any]]) -> Any:
    """Return an episode's columns as the table that LeRobot writes for these features (videos are not in it)."""
    import pyarrow as pa

    kept = {key: kind for key, kind in features.items() if kind["dtype"] != "video"}
    arrays = [_column(columns[key], kind) for key, kind in kept.items()]
    kinds = {"info": {"features": {key: _kind(kind) for key, kind in kept.items()}}}
    return pa.table(arrays, names=list(kept)).replace_schema_metadata({"huggingface": json.dumps(kinds)})


def tasks_table(tasks: list[str]) -> Any:
    """Return the table of tasks as pandas writes one whose index is the text."""
    import pyarrow as pa

    def column(name: str | None, field: str, kind: str, of: str) -> dict[str, Any]:
        return {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": of, "metadata": None}

    index = "__index_level_0__"
    about: dict[str, Any] = {
        "index_columns": [index],
        "column_indexes": [column(None, "", "unicode", "object") | {"metadata": {"encoding": "UTF-8"}}],
        "columns": [column("task_index", "task_index", "int64", "int64"), column(None, index, "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.3",
    }
    about["column_indexes"][0]["field_name"] = None
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(about)})


def _column(values: Any, kind: dict[str, Any]) -> Any:
    import pyarrow as pa

    if kind["dtype"] == "image":
        data = [{"bytes": videos_codec.to_png(picture), "path": None} for picture in values]
        return pa.array(data, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    if kind["dtype"] == "string":
        return pa.array(list(values), pa.string())
    shape = tuple(kind["shape"])
    array = pa.array(np.ascontiguousarray(values, kind["dtype"]).reshape(-1))
    if shape == (1,):
        return array
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(array, shape[0])
    for side in reversed(shape):
        offsets = np.arange(0, len(array) + 1, side, dtype=np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def _kind(kind: dict[str, Any]) -> dict[str, Any]:
    """Return a feature in the words of the ``datasets`` library, for whoever reads the file by it."""
    shape, value = list(kind["shape"]), {"dtype": kind["dtype"], "_type": "Value"}
    if kind["dtype"] == "image":
        return {"_type": "Image"}
    if shape == [1]:
        return value
    if len(shape) == 1:
        return {"feature": value, "length": shape[0], "_type": "Sequence"}
    return {"shape": shape, "dtype": kind["dtype"], "_type": f"Array{len(shape)}D"}
