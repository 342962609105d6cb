"""The episodes of a Minari dataset as its files hold them, from HDF5, Arrow and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dreamsim.data.formats import columns, guarded
from dreamsim.data.formats.minari_spaces import decoded, is_encoded
from dreamsim.data.formats.recording import BadRecording

HDF5 = "main_data.hdf5"
FIXED = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)


class Raw(NamedTuple):
    """One episode of T steps."""

    observations: columns.Columns  # T+1 rows
    actions: columns.Columns  # T rows, as the next three
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, Any]  # nested names joined by "/"; columns of T+1 rows
    meta: dict[str, Any]  # id, seed, options and whatever was added


class Spaces(NamedTuple):
    """What the columns are."""

    observation: spaces.Space
    action: spaces.Space
    encoded: bool  # images are kept as JPEG


class Source(NamedTuple):
    """The episodes of a dataset: their numbers, and one of them."""

    numbers: list[int]
    episode: Callable[[int], Raw]


def source(folder: Path, kind: str, known: Spaces) -> AbstractContextManager[Source]:
    """Open a dataset's folder; ``kind``: hdf5, arrow or parquet."""
    if kind == "hdf5":
        return _hdf5(folder / HDF5, known)
    if kind in ("arrow", "parquet"):
        return _arrow(folder, kind, known)
    raise BadRecording(f"metadata.json names the data format {kind!r}; hdf5, arrow and parquet are read here")


@contextmanager
def _hdf5(path: Path, known: Spaces):
    with guarded.opened(path) as file:
        found = [name for name in guarded.names(file) if name.startswith("episode_") and name[8:].isdigit()]

        def episode(number: int) -> Raw:
            group = guarded.child(file, f"episode_{number}")
            infos = _tree(guarded.child(group, "infos")) if "infos" in group else {}
            return Raw(
                _from_hdf5(group, "observations", known.observation, known.encoded),
                _from_hdf5(group, "actions", known.action, known.encoded),
                guarded.array(group, "rewards"),
                guarded.array(group, "terminations"),
                guarded.array(group, "truncations"),
                columns.flat(infos),
                columns.nested(guarded.attributes(group)),
            )

        yield Source([int(name[8:]) for name in found], episode)


def _from_hdf5(group: Any, name: str, space: spaces.Space, encoded: bool) -> columns.Columns:
    if isinstance(space, spaces.Dict):
        inner = guarded.child(group, name)
        return {key: _from_hdf5(inner, key, part, encoded) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        inner = guarded.child(group, name)
        return tuple(_from_hdf5(inner, f"_index_{i}", part, encoded) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return guarded.strings(group, name)
    if encoded and isinstance(space, spaces.Box) and is_encoded(space):
        return decoded(guarded.blobs(group, name), space)
    return guarded.array(group, name)


def _tree(group: Any) -> dict[str, Any]:
    """Return every array of numbers in a group; what holds none is None."""
    found: dict[str, Any] = {}
    for name in guarded.names(group):
        if guarded.is_group(group, name):
            found[name] = _tree(guarded.child(group, name))
        else:
            try:
                found[name] = guarded.array(group, name)
            except BadRecording:
                found[name] = None
    return found


@contextmanager
def _arrow(folder: Path, kind: str, known: Spaces):
    def episode(number: int) -> Raw:
        files = sorted((folder / str(number)).glob(f"*.{kind}"))
        if len(files) != 1:
            raise BadRecording(f"{len(files)} {kind} files where one was expected")
        table = _table(files[0], kind)
        steps = slice(0, len(table) - 1)  # the last row has an observation only
        about = folder / str(number) / "metadata.json"
        return Raw(
            _from_arrow(table["observations"], known.observation, known.encoded),
            _from_arrow(table["actions"][steps], known.action, known.encoded),
            np.asarray(table["rewards"].to_pylist())[steps],
            np.asarray(table["terminations"].to_pylist())[steps],
            np.asarray(table["truncations"].to_pylist())[steps],
            columns.flat(_info(table["infos"])) if "infos" in table.column_names else {},
            json.loads(about.read_text(encoding="utf-8")) if about.exists() else {},
        )

    yield Source(sorted(int(inner.name) for inner in folder.iterdir() if inner.name.isdigit()), episode)


class _Table(NamedTuple):
    """A table whose columns are one piece each."""

    table: Any

    @property
    def column_names(self) -> list[str]:
        return self.table.column_names

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, name: str) -> Any:  # type: ignore[override]
        import pyarrow

        found = self.table.column(name).combine_chunks()
        return pyarrow.concat_arrays(found.chunks) if isinstance(found, pyarrow.ChunkedArray) else found


def _table(path: Path, kind: str) -> _Table:
    import pyarrow
    from pyarrow import ipc, parquet

    with pyarrow.OSFile(str(path)) as file:
        table = ipc.open_file(file).read_all() if kind == "arrow" else parquet.ParquetFile(file).read()
    table.validate(full=True)  # offsets that lead elsewhere would crash whoever follows them
    return _Table(table)


def _from_arrow(values: Any, space: spaces.Space, encoded: bool) -> columns.Columns:
    if isinstance(space, spaces.Dict):
        return {key: _from_arrow(values.field(key), part, encoded) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_from_arrow(values.field(str(i)), part, encoded) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return ["" if text is None else text for text in values.to_pylist()]
    if encoded and isinstance(space, spaces.Box) and is_encoded(space):
        return decoded(values.to_pylist(), space)
    if isinstance(space, FIXED):
        return _rows(values).reshape(len(values), *(space.shape or ()))
    return values.to_numpy(zero_copy_only=False)


def _rows(values: Any) -> np.ndarray:
    """Return a list column of equal lengths as (N, K)."""
    if values.null_count:
        raise BadRecording("a column has empty rows")
    inner = values.flatten()
    return inner.to_numpy(zero_copy_only=False).reshape(len(values), -1)


def _info(values: Any) -> dict[str, Any]:
    import pyarrow

    found: dict[str, Any] = {}
    for number, field in enumerate(values.type):
        part = values.field(number)
        if pyarrow.types.is_struct(field.type):
            found[field.name] = _info(part)
        elif pyarrow.types.is_fixed_size_list(field.type):
            shape = (field.metadata or {}).get(b"shape", b"").decode()
            found[field.name] = _rows(part).reshape(len(part), *(int(size) for size in shape.split(",") if size))
        elif pyarrow.types.is_boolean(field.type) or pyarrow.types.is_primitive(field.type):
            found[field.name] = part.to_numpy(zero_copy_only=False)
        else:
            found[field.name] = None
    return found
