"""The file format of the store: a block is one file of many whole episodes.

A block, little-endian throughout, every part padded with zeros to 64 bytes:

    head     magic "dreamsim", version u32, episodes u32, bytes of the file u64, CRC-32 u32 of head and table
    table    per episode: offset u64, bytes u64, steps u64, CRC-32 u32 of the record, 0 u32
    records  per episode: length u32 of a JSON text, the text, the arrays it names

The JSON text is ``{"fields": [[group, name, dtype, shape, offset], ...], "terminated": ..., "meta": {...}}``.
Nothing in a block can run code.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dreamsim.core.types import Episode
from dreamsim.data.mapped import Mapped

VERSION = 1
ALIGN = 64
Record = bytes | bytearray | memoryview
_TYPE = re.compile(r"[<>|][biuf]\d{1,2}")
_MAGIC = b"dreamsim"
_HEAD = struct.Struct("<8sIIQ")
_CRC = struct.Struct("<I")
_ROW = np.dtype([("offset", "<u8"), ("size", "<u8"), ("steps", "<u8"), ("crc", "<u4"), ("zero", "<u4")])


class DamagedBlock(ValueError):
    """A block file is not what was written."""


class Field(NamedTuple):
    """One array of a record: its numbers, and where they begin."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


class Head(NamedTuple):
    """What a record says of itself before its arrays."""

    fields: dict[tuple[str, str], Field]  # by (group, name)
    terminated: bool
    meta: dict[str, Any]


class Block:
    """A block file mapped into memory. Holds no file handle; its arrays stay valid as long as they are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:  # one handle for both: a writer may replace the file meanwhile
            self._table = read_table_of(path, file)
            self._bytes = Mapped([os.fstat(file.fileno()).st_size]).add(path, file)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def steps(self) -> np.ndarray:
        """Length (N,) of each episode."""
        return self._table["steps"]

    def record(self, number: int) -> memoryview:
        """Return the bytes of one record, compared with its checksum."""
        row = self._table[number]
        record = self._bytes[int(row["offset"]) : int(row["offset"]) + int(row["size"])].data
        compare([record], row["crc"], f"{self.path}: the bytes of episode {number} in it")
        return record

    def episode(self, number: int) -> Episode:
        """Return one episode; its arrays are read-only and lie in the file."""
        record = self.record(number)
        with understanding(f"{self.path}: episode {number} in it"):
            return decode(record)


def compare(pieces: Iterable[Record], crc: int, what: str) -> None:
    """Raise DamagedBlock unless the bytes of ``pieces`` have a checksum."""
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    if found != crc:
        raise DamagedBlock(f"{what} do not fit their checksum")


@contextmanager
def understanding(what: str) -> Iterator[None]:
    """Say of whatever is wrong in a record that it cannot be read."""
    try:
        yield
    except DamagedBlock:
        raise
    except (ValueError, KeyError, TypeError, IndexError, struct.error, OverflowError, RecursionError) as error:
        raise DamagedBlock(f"{what} cannot be read ({error})") from error


def encode(episode: Episode) -> bytearray:
    """Return the record of an episode. Raises ValueError for what the format cannot hold."""
    arrays = [(group, name, np.ascontiguousarray(array)) for group, name, array in _fields(episode)]
    fields: list[list[Any]] = [[group, name, array.dtype.str, array.shape, 0] for group, name, array in arrays]
    head = {"fields": fields, "terminated": bool(episode.terminated), "meta": episode.meta}
    start = _padded(len(_json(head)) + _CRC.size + 20 * len(fields))  # 20 digits are enough for any offset
    offset = start
    for field, (_, _, array) in zip(fields, arrays, strict=True):
        field[-1] = offset
        offset += _padded(array.nbytes)
    text = _json(head)
    out = bytearray(offset)
    out[: _CRC.size] = _CRC.pack(len(text))
    out[_CRC.size : _CRC.size + len(text)] = text
    for field, (_, _, array) in zip(fields, arrays, strict=True):
        out[field[-1] : field[-1] + array.nbytes] = array.reshape(-1).view(np.uint8).data
    return out


def decode(record: Record) -> Episode:
    """Return the episode of a record, without copying its arrays."""
    data = np.frombuffer(record, np.uint8)
    data.flags.writeable = False
    head = read_head(data)
    groups: dict[str, dict[str, np.ndarray]] = {"obs": {}, "step": {}, "trace": {}}
    for (group, name), (dtype, shape, offset) in head.fields.items():
        count = math.prod(shape)
        groups[group][name] = (
            np.frombuffer(data, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
        )
    step = groups["step"]
    return Episode(
        groups["obs"], step["action"], step.get("reward"), head.terminated, step.get("time"),
        groups["trace"], head.meta,
    )  # fmt: skip


def read_head(data: np.ndarray) -> Head:
    """Return the head of a record (N,) of uint8, every field in it being inside. Raises many kinds of errors."""
    (length,) = _CRC.unpack(data[: _CRC.size].tobytes())
    head = json.loads(data[_CRC.size : _CRC.size + length].tobytes())
    fields = {}
    for group, name, kind, shape, offset in head["fields"]:
        if not _TYPE.fullmatch(kind):
            raise ValueError(f"field {name!r} has type {kind!r}")
        dtype = np.dtype(kind)
        if type(offset) is not int or any(type(size) is not int for size in shape):
            raise TypeError(f"field {name!r} has shape {shape} at offset {offset}")
        if offset < 0 or min(shape, default=0) < 0 or offset + math.prod(shape) * dtype.itemsize > len(data):
            raise ValueError(f"field {name!r} has shape {shape} at offset {offset} of {len(data)} bytes")
        fields[group, name] = Field(dtype, tuple(shape), offset)
    return Head(fields, bool(head["terminated"]), dict(head["meta"]))


def write_block(path: Path, records: Sequence[Record], steps: Sequence[int] | np.ndarray) -> None:
    """Write a block so that it is there whole after any crash, or not at all. Raises OSError when it cannot be."""
    table = np.zeros(len(records), _ROW)
    table["size"] = [len(record) for record in records]
    table["steps"] = steps
    table["crc"] = [zlib.crc32(record) for record in records]
    body = _padded(_HEAD.size + _CRC.size + table.nbytes)
    table["offset"] = body + np.cumsum([0, *table["size"][:-1]]) if len(records) else 0
    head = _HEAD.pack(_MAGIC, VERSION, len(records), body + int(table["size"].sum()))
    crc = _CRC.pack(zlib.crc32(table.tobytes(), zlib.crc32(head)))
    front = (head + crc + table.tobytes()).ljust(body, b"\0")
    write_whole(path, [front, *records])


def write_whole(path: Path, parts: Sequence[Record]) -> None:
    """Write a file under a temporary name, make it durable, then give it its name."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_table(path: Path) -> np.ndarray:
    """Return a block's table, checked; reads only the front of the file. Raises DamagedBlock."""
    with open(path, "rb") as file:
        return read_table_of(path, file)


def read_table_of(path: Path, file: BinaryIO) -> np.ndarray:
    """As ``read_table``, from a file that is open at its beginning."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise DamagedBlock(f"{path}: does not begin like a block of episodes")
    _, version, count, expected = _HEAD.unpack(head)
    if version != VERSION:
        raise DamagedBlock(f"{path}: block version {version}, this program reads {VERSION}")
    if size != expected:
        raise DamagedBlock(f"{path}: has {size} bytes, {expected} were written")
    front = file.read(min(_CRC.size + count * _ROW.itemsize, size))
    if len(front) != _CRC.size + count * _ROW.itemsize:
        raise DamagedBlock(f"{path}: is too short for the table of its {count} episodes")
    raw = front[_CRC.size :]
    if _CRC.unpack(front[: _CRC.size])[0] != zlib.crc32(raw, zlib.crc32(head)):
        raise DamagedBlock(f"{path}: its table does not fit its checksum")
    table = np.frombuffer(raw, _ROW)
    if (table["offset"] > size).any() or (table["size"] > size - table["offset"]).any():
        raise DamagedBlock(f"{path}: its table names bytes past its end")
    return table


def _fields(episode: Episode) -> list[tuple[str, str, np.ndarray]]:
    fields = [("obs", name, array) for name, array in episode.obs.items()]
    step = {"action": episode.action, "reward": episode.reward, "time": episode.time}
    fields += [("step", name, array) for name, array in step.items() if array is not None]
    fields += [("trace", name, array) for name, array in episode.trace.items()]
    for group, name, array in fields:
        if np.asarray(array).dtype.kind not in "biuf":
            raise ValueError(
                f"{group} {name!r} of an episode has type {np.asarray(array).dtype}; the store holds numbers and "
                "booleans only (text as bytes: dreamsim.core.text.encode)"
            )
    return fields


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain).encode()
    except TypeError as error:
        raise ValueError(f"an episode's meta must be plain JSON (text, numbers, lists, dicts): {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
