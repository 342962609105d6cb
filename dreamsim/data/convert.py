"""Foreign recordings into stores, and stores into foreign recordings."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dreamsim.data.formats.child import Job
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.formats.watch import run

MEMORY = 4096  # MiB
SECONDS = 3600
HEAD = 4096  # bytes of a file that say what it is


class Format(NamedTuple):
    """One kind of recording. ``dreamsim.data.formats.recording`` says what its module holds."""

    module: str
    words: str
    reads: bool = True
    writes: bool = False


_HERE = "dreamsim.data.formats."
FORMATS = {
    "store": Format(_HERE + "stores", "a store of ours, or a folder of several alike", writes=True),
    "minari": Format(_HERE + "minari", "a Minari dataset", writes=True),
    "minari-arrow": Format(_HERE + "minari_arrow", "a Minari dataset, Arrow inside", False, True),
    "lerobot": Format(_HERE + "lerobot", "a LeRobot dataset, v2.0 to v3.0", writes=True),
    "videos": Format(_HERE + "videos", "a folder of videos with actions beside them"),
    "hdf5": Format(_HERE + "hdf5", "an HDF5 file of robomimic or D4RL"),
    "traces": Format(_HERE + "traces", "text traces, JSON lines of a step or an episode each", writes=True),
}


class Converted(NamedTuple):
    """What became of a conversion."""

    source_format: str
    target_format: str
    episodes: int
    steps: int
    rate: float | None  # control steps per second
    observations: list[str]  # each in words, as models see it
    actions: str  # in words, in raw units
    notes: list[str]  # what was dropped, masked or assumed
    size: int  # bytes of what was made


def recognise(source: Path) -> str:
    """Return the name of the format that a file or folder looks like. Raises FileNotFoundError, BadRecording."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; name a file or folder to read")
    head = b""
    if source.is_file():
        with open(source, "rb") as file:
            head = file.read(HEAD)
    for name, kind in FORMATS.items():
        if kind.reads and importlib.import_module(kind.module).sniff(source, head):
            return name
    known = ", ".join(f"{name} ({kind.words})" for name, kind in FORMATS.items() if kind.reads)
    raise BadRecording(f"{source} looks like no recording known here: {known}. If it is one, say which with --from")


def convert(
    source: str | Path,
    target: str | Path,
    to: str = "store",
    start: str | None = None,
    memory: int = MEMORY,
    seconds: int = SECONDS,
    reading: dict[str, Any] | None = None,
    writing: dict[str, Any] | None = None,
) -> Converted:
    """Make ``target``, which must not exist, from ``source``.

    ``to``, ``start``: names of formats, ``start`` None: the one it looks like. ``memory`` (MiB) and
    ``seconds``: what reading, and then writing, may take. ``reading``, ``writing``: options of the two formats, plain
    JSON: ``{"clock": "interpolate"}``. Nothing is left of a target that was not finished.
    Raises BadRecording, FileExistsError, FileNotFoundError.
    """
    source, target = Path(source).absolute(), Path(target).absolute()
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists, and nothing is overwritten; name another target or move it away")
    readable = [name for name, kind in FORMATS.items() if kind.reads]
    writable = [name for name, kind in FORMATS.items() if kind.writes]
    name = recognise(source) if start is None else _known(start, readable, "read")
    _known(to, writable, "written")
    with _beside(target) as folder:
        made, notes = source, []
        if to == "store" or not (source / "store.json").exists():
            made = folder / "store"
            about = run(Job("read", FORMATS[name].module, name, str(source), str(made), memory, seconds, reading or {}))
            notes += about["notes"]
        if to != "store":
            store, made = made, folder / "made"
            about = run(Job("write", FORMATS[to].module, to, str(store), str(made), memory, seconds, writing or {}))
            notes += about["notes"]
        size = sum(path.stat().st_size for path in made.rglob("*")) if made.is_dir() else made.stat().st_size
        _put(made, target)
    return Converted(name, to, **{**about, "notes": notes, "size": size})


def understood(converted: Converted, target: Path) -> list[str]:
    """Return what was understood of a recording, and what was done, in lines for people."""
    rate = "not told by the format" if converted.rate is None else f"{converted.rate:g} steps a second"
    return [
        f"read as {FORMATS[converted.source_format].words}",
        *(f"observation {line}" for line in converted.observations),
        f"action {converted.actions}",
        f"rate {rate}",
        f"{converted.episodes:,} episodes, {converted.steps:,} steps",
        *(f"note: {note}" for note in converted.notes),
        f"made {target} ({converted.target_format}, {converted.size / 1e6:,.1f} MB)",
    ]


def as_store(source: Path, spare: Path) -> Path:
    """Return the folder of a store with a recording's episodes: a store itself, or one made beside it once.

    It is made again when a file of the recording has changed. ``spare``: a folder to make it in where
    nothing can be written beside the recording.
    """
    if (source / "store.json").exists() or not source.exists():
        return source
    known = json.dumps(source_fingerprint(source), sort_keys=True)
    name = f"{source.name}.dreamsim-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
    folders = [source.absolute().parent, spare.absolute()]
    for folder in folders:
        if (folder / name / "store.json").exists():
            return folder / name
    target = next((folder for folder in folders if os.access(folder, os.W_OK)), folders[-1]) / name
    try:
        print("\n".join(understood(convert(source, target), target)))
    except FileExistsError:
        if not (target / "store.json").exists():  # else another process was quicker
            raise
    return target


def _known(name: str, names: list[str], done: str) -> str:
    if name not in names:
        raise BadRecording(f"no format called {name!r} is {done} here, but {', '.join(names)}")
    return name


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Make a folder on the target's disk for what is not finished, and remove it with what is left in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(made: Path, target: Path) -> None:
    """Give what is finished its name; never in the place of something else."""
    if made.is_dir():
        if os.path.lexists(target):
            raise FileExistsError(f"{target} was made by someone else meanwhile; it is left as it is")
        os.rename(made, target)
    else:
        os.link(made, target)  # refuses a name that is taken


def source_fingerprint(source: Path) -> dict[str, Any]:
    """Return what changes when a recording changes: names, sizes and times of its files."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    return {
        str(path.relative_to(source)) if source.is_dir() else path.name: [path.stat().st_size, path.stat().st_mtime_ns]
        for path in files
    }
