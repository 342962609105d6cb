"""HDF5 files read with suspicion: no other files, no objects, no plugins.

An HDF5 file may name other files as parts of itself and hold types that libraries turn into Python objects.
Here a path leads to a group or to an array of numbers or strings that lies in the file itself, or to an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.data.formats.recording import BadRecording

SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file for reading."""
    import h5py

    with h5py.File(path, "r", locking=False) as file:
        yield file


def names(group: Any) -> list[str]:
    """Return the names in a group; ``demo_2`` comes before ``demo_10``."""
    return sorted(group.keys(), key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def child(group: Any, name: str) -> Any:
    """Return what a group holds under a name. Raises BadRecording for a link out of the file or what is not there."""
    import h5py

    link = group.get(name, getlink=True)
    if link is None:
        raise BadRecording(f"{group.name} has no {name!r}, but {', '.join(names(group)[:10]) or 'nothing'}")
    if not isinstance(link, h5py.HardLink):
        raise BadRecording(f"{group.name}/{name} is a link to another place or file, which is not followed")
    return group[name]


def array(group: Any, name: str, rows: slice = slice(None)) -> np.ndarray:
    """Return ``rows`` of an array of numbers or booleans."""
    found = _dataset(group, name)
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        raise BadRecording(f"{found.name} holds {found.dtype} (objects are never loaded); numbers are read only")
    return found[()] if not found.shape else found[rows]


def strings(group: Any, name: str) -> list[str]:
    """Return an array (N,) of strings."""
    found = _dataset(group, name)
    if not _holds_strings(found.dtype) or len(found.shape) != 1:
        raise BadRecording(f"{found.name} holds {found.dtype} of shape {found.shape}, strings (N,) were expected")
    return [value.decode("utf-8", errors="replace") for value in found[()].tolist()]


def blobs(group: Any, name: str) -> list[bytes]:
    """Return N pieces of bytes, of one length or of several."""
    import h5py

    found = _dataset(group, name)
    kind = h5py.check_vlen_dtype(found.dtype) or found.dtype
    if kind != np.uint8 or len(found.shape) != (1 if found.dtype == object else 2):
        raise BadRecording(f"{found.name} holds {found.dtype} of shape {found.shape}, encoded images were expected")
    return [bytes(row) for row in found[()]]


def attributes(group: Any) -> dict[str, Any]:
    """Return the attributes of a group that are plain: numbers, strings and arrays of them."""
    found: dict[str, Any] = {}
    for name in group.attrs:
        kind = group.attrs.get_id(name).dtype
        if kind.kind not in "biufSUO" or (kind.kind == "O" and not _holds_strings(kind)):
            continue
        value = group.attrs[name]
        value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        found[name] = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
    return {name: value for name, value in found.items() if _is_plain(value)}


def is_group(group: Any, name: str) -> bool:
    """Say whether a name leads to a group."""
    import h5py

    return isinstance(child(group, name), h5py.Group)


def length(group: Any, name: str) -> int:
    """Return the number of rows of an array."""
    shape = _dataset(group, name).shape
    if not shape:
        raise BadRecording(f"{group.name}/{name} has no rows")
    return int(shape[0])


def _dataset(group: Any, name: str) -> Any:
    import h5py

    found = child(group, name)
    if not isinstance(found, h5py.Dataset):
        raise BadRecording(f"{found.name} is a group where an array was expected")
    if found.external or found.is_virtual:
        raise BadRecording(f"{found.name} keeps its numbers in other files, which are not opened")
    if found.shape is None:
        raise BadRecording(f"{found.name} is empty")
    return found


def _holds_strings(kind: np.dtype) -> bool:
    import h5py

    return h5py.check_string_dtype(kind) is not None


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
