"""Files of actions beside videos: .csv, .jsonl, .npy (numbers only) and .parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamsim.data.formats.lerobot_info import read_lines, read_parquet
from dreamsim.data.formats.recording import BadRecording

NAMED = ("video", "reward", "time", "terminated")
"""Columns that are no action: which video a row belongs to, and what came of its action."""


class Actions(NamedTuple):
    """The rows of one video."""

    action: np.ndarray  # (N, A)
    names: list[str]  # of its components
    reward: np.ndarray | None  # (N,)
    time: np.ndarray | None  # (N,) seconds
    terminated: bool


def read(path: Path) -> tuple[dict[str, Actions], list[str]]:
    """Return the rows of a file by the video they name ("" where they name none), and columns that were passed over.

    Raises BadRecording naming the file and what is wrong in it.
    """
    found = READERS[path.suffix.lower()](path)
    lengths = {len(column) for column in found.values()}
    if len(lengths) != 1 or not lengths.pop():
        raise BadRecording(f"{path.name} has no rows, or columns of different lengths")
    chosen, passed = _chosen(found)
    if not chosen:
        raise BadRecording(f"{path.name} has no column of actions, but {', '.join(found)}")
    pieces = [_numbers(path, name, found[name]) for name in chosen]
    names = [label for name, piece in zip(chosen, pieces, strict=True) for label in _labels(name, piece.shape[1])]
    action = np.concatenate(pieces, 1)
    videos = [Path(str(name)).stem if name else "" for name in found.get("video", [""] * len(action))]
    rows = {video: np.flatnonzero([other == video for other in videos]) for video in dict.fromkeys(videos)}
    reward, time, ended = (_single(path, found, name) for name in ("reward", "time", "terminated"))
    return {
        video: Actions(
            action[mine],
            names,
            None if reward is None else reward[mine],
            None if time is None else time[mine],
            ended is not None and bool(ended[mine[-1]]),
        )
        for video, mine in rows.items()
    }, passed


def _chosen(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the columns of actions and those passed over: all that are called so, else all that have no other role."""
    free = [name for name in found if name not in NAMED]
    called = [name for name in free if name.startswith("action")]
    return (called, [name for name in free if name not in called]) if called else (free, [])


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    """Return a column of numbers or of lists of numbers as (N, K)."""
    try:
        array = np.asarray(column)
        array = array.astype(np.float64) if array.dtype.kind in "US" else array
    except ValueError as error:
        raise BadRecording(f"{path.name}: column {name} does not hold numbers, as many in each row: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadRecording(f"{path.name}: column {name} holds {array.dtype}, expected numbers")
    return array.reshape(len(array), -1)


def _single(path: Path, found: dict[str, Any], name: str) -> np.ndarray | None:
    if name not in found:
        return None
    array = _numbers(path, name, found[name])
    if array.shape[1] != 1:
        raise BadRecording(f"{path.name}: column {name} has {array.shape[1]} numbers a row, expected one")
    return array[:, 0]


def _labels(name: str, size: int) -> list[str]:
    return [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]


def _read_csv(path: Path) -> dict[str, Any]:
    """Read a table with a header; a column whose every word is a whole number holds whole numbers."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadRecording(f"{path.name} cannot be read as CSV: {error}") from error
    if not header or len(set(header)) != len(header) or all(_is_number(word) for word in header):
        raise BadRecording(f"{path.name}: expected a first line that names each column once, got {header[:5]}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise BadRecording(f"{path.name} line {number}: expected {len(header)} values, got {len(row)}")
    columns = dict(zip(map(str.strip, header), map(list, zip(*rows, strict=True)), strict=False))
    return {name: values if name == "video" else _parsed(values) for name, values in columns.items()}


def _parsed(values: list[str]) -> Any:
    for kind in (int, float):
        try:
            return np.array([kind(value) for value in values])
        except (ValueError, OverflowError):
            continue
    return [{"true": 1, "false": 0}.get(value.strip().lower(), value) for value in values]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_jsonl(path: Path) -> dict[str, Any]:
    lines = read_lines(path)
    names = list(lines[0]) if lines else []
    for number, line in enumerate(lines, 1):
        if line.keys() != set(names):
            raise BadRecording(f"{path.name} row {number}: expected {', '.join(names)}, got {', '.join(line)}")
    return {name: [line[name] for line in lines] for name in names}


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadRecording(f"{path.name} cannot be read as numbers (objects are never loaded): {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2):
        raise BadRecording(f"{path.name}: expected one array (N, A) of actions")
    return {"action": array}


def _read_parquet(path: Path) -> dict[str, Any]:
    table = read_parquet(path)
    return {name: table[name].to_pylist() for name in table.column_names}


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".npy": _read_npy,
    ".parquet": _read_parquet,
}
