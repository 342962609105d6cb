"""The episodes of many blocks as they lie in memory: read whole, or cut into windows without a loop over them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dreamsim.core.types import Episode
from dreamsim.data.block import DamagedBlock, Field, Head, compare, decode, read_head, read_table_of, understanding
from dreamsim.data.mapped import Mapped


class Records:
    """What the first ``counts[i]`` episodes of each block file ``paths[i]`` are, from the moment of opening on.

    Files that a writer replaces later stay as they were here. ``limit``: see Mapped. Raises
    DamagedBlock for what is not what was written; bytes are compared with their checksum at
    the first reading of each record.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], limit: int | None = None) -> None:
        self._paths, self._ends = paths, np.cumsum(counts, dtype=np.int64)
        tables = None
        while tables is None:  # a writer may lengthen the last file between asking its size and opening it
            self.mapped = Mapped([path.stat().st_size for path in paths], limit)
            tables = self._map()
        for path, table, count in zip(paths, tables, counts, strict=True):
            if len(table) < count:
                raise DamagedBlock(f"{path}: holds {len(table)} episodes, {count} were there before")
        rows = [table[:count] for table, count in zip(tables, counts, strict=True)]
        self._begin = _joined(rows, "offset") + np.repeat(self.mapped.begins, counts)
        self._size = _joined(rows, "size")
        self.steps = _joined(rows, "steps")
        self._crc = np.concatenate([np.empty(0, np.uint32), *(part["crc"] for part in rows)])
        self._checked = np.zeros(len(self.steps), bool)

    def __len__(self) -> int:
        return len(self.steps)

    def episode(self, number: int) -> Episode:
        """Return one episode; its arrays are read-only and lie in the file."""
        self._check(number)
        self.mapped.touch(self._begin[number : number + 1], int(self._size[number]))
        with understanding(self._named(number)):
            return decode(self._record(number).data)

    def head(self, number: int) -> Head:
        """Return what a record says of itself; its fields begin at places of ``mapped.bytes``.

        Every field lies inside the record and is as long as the episode's steps demand.
        """
        self._check(number)
        with understanding(self._named(number)):
            head = read_head(self._record(number))
            steps = int(self.steps[number])
            for (group, name), field in head.fields.items():
                length = steps + (group == "obs" or (group, name) == ("step", "time"))
                if field.shape[:1] != (length,):
                    raise ValueError(f"{group} {name!r} has shape {field.shape} in an episode of {steps} steps")
            begin = int(self._begin[number])
            return head._replace(
                fields={key: field._replace(offset=begin + field.offset) for key, field in head.fields.items()}
            )

    def digest(self, number: int) -> bytes:
        """Return a hash of an episode's actions and observations, equal for equal ones."""
        fields = self.head(number).fields
        chosen = [fields["step", "action"], *(fields[key] for key in sorted(fields) if key[0] == "obs")]
        found = hashlib.sha256()
        for field in chosen:
            for piece in self._pieces(field):
                found.update(piece)
        return found.digest()

    def _map(self) -> list[np.ndarray] | None:
        """Map every file and return their tables; None: one of them has another size by now."""
        tables = []
        for path, size in zip(self._paths, np.diff([*self.mapped.begins, self.mapped.bytes.size]), strict=True):
            with open(path, "rb") as file:  # one handle for both: a writer may replace the file meanwhile
                if os.fstat(file.fileno()).st_size > size:
                    return None
                tables.append(read_table_of(path, file))
                self.mapped.add(path, file)
        return tables

    def _record(self, number: int) -> np.ndarray:
        begin = int(self._begin[number])
        return self.mapped.bytes[begin : begin + int(self._size[number])]

    def _check(self, number: int) -> None:
        if not self._checked[number]:
            pieces = self.mapped.pieces(int(self._begin[number]), int(self._size[number]))
            compare(pieces, self._crc[number], f"{self._named(number, 'the bytes of ')}")
            self._checked[number] = True

    def _pieces(self, field: Field) -> Iterator[memoryview]:
        return self.mapped.pieces(field.offset, int(np.prod(field.shape, dtype=object)) * field.dtype.itemsize)

    def _named(self, number: int, what: str = "") -> str:
        block = int(self._ends.searchsorted(number, side="right"))
        first = int(self._ends[block - 1]) if block else 0
        return f"{self._paths[block]}: {what}episode {number - first} in it"


def _joined(rows: Sequence[np.ndarray], name: str) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(part[name].astype(np.int64) for part in rows)])
