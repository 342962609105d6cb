"""Minari datasets, HDF5, Arrow and Parquet: ``metadata.json`` beside ``main_data.hdf5`` or a folder an episode.

Read without Minari and without the environment, which is never made: the spaces stand in the file. Written by
Minari's own storage. ``infos`` have T+1 rows: those of the steps become ``trace["info/NAME"]`` (T, ...), the
reset's row goes to ``meta["reset_info"]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns
from dreamsim.data.formats.bounds import bounded
from dreamsim.data.formats.minari_files import HDF5, Source, Spaces, source
from dreamsim.data.formats.minari_spaces import from_text, has_images
from dreamsim.data.formats.minari_write import write_as
from dreamsim.data.formats.recording import BadRecording, LeftOut, Recording, Report, each
from dreamsim.data.formats.splitting import split
from dreamsim.data.store import Store

OWN = ("total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding", "observation_space")


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a folder is a Minari dataset, or the ``data`` folder of one."""
    return _folder(path) is not None


def read(path: Path) -> Recording:
    """Read a dataset."""
    folder = _folder(path)
    if folder is None:
        raise BadRecording("no metadata.json beside main_data.hdf5 or numbered folders; name the dataset's folder")
    about = _about(folder)
    declared = from_text(about["action_space"], "action_space")
    known = Spaces(
        from_text(about["observation_space"], "observation_space"), declared, bool(about.get("jpeg_encoding", True))
    )
    kind = about.get("data_format", "hdf5")
    action_space, notes = bounded(declared, lambda: _all_actions(folder, kind, known))
    if known.encoded and has_images(known.observation):
        notes.append("images were kept as JPEG, so they are near what was recorded, not equal")
    with source(folder, kind, known) as opened:
        total = len(opened.numbers)
    if about.get("total_episodes", total) != total:
        notes.append(f"metadata.json tells of {about['total_episodes']} episodes, {total} are there")
    meta = {key: value for key, value in about.items() if key not in OWN}
    episodes = _episodes(folder, kind, known, Codec(known.observation, action_space), notes)
    return Recording(known.observation, action_space, None, episodes, notes, total, {"minari": meta})


def write(store: Store, target: Path, report: Report) -> list[str]:
    """Write a dataset's folder, its numbers in HDF5."""
    return write_as("hdf5", store, target, report)


def _folder(path: Path) -> Path | None:
    for folder in (path, path / "data"):
        if (folder / "metadata.json").is_file():
            episodes = (folder / HDF5).is_file() or any(folder.glob("*/part-*.arrow"))
            if episodes or any(folder.glob("*/part-*.parquet")):
                return folder
    return None


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRecording(f"metadata.json cannot be read ({error})") from error
    missing = [name for name in ("observation_space", "action_space") if name not in dict(about)]
    if missing:
        raise BadRecording(
            f"metadata.json has no {' and no '.join(missing)}; load and save the dataset once with a present Minari, "
            "where its environment exists"
        )
    return about


def _all_actions(folder: Path, kind: str, known: Spaces) -> np.ndarray:
    with source(folder, kind, known) as opened:
        return np.concatenate([opened.episode(number).actions for number in opened.numbers])


def _episodes(folder: Path, kind: str, known: Spaces, codec: Codec, notes: list[str]) -> Iterator[Episode | LeftOut]:
    lost: set[str] = set()
    with source(folder, kind, known) as opened:
        for item in each(opened.numbers, lambda number: _read_one(opened, number, codec, lost)):
            if isinstance(item, LeftOut):
                yield item
            else:
                yield from item
    if lost:
        notes.append(f"infos that are no numbers of T+1 rows are left out: {', '.join(sorted(lost))}")


def _read_one(opened: Source, number: int, codec: Codec, lost: set[str]) -> list[Episode]:
    raw = opened.episode(number)
    steps = len(raw.rewards)
    trace, reset = {}, {}
    for name, rows in raw.infos.items():
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "biuf" and len(rows) == steps + 1:
            trace[f"info/{name}"], reset[name] = rows[1:], rows[0].tolist()
        else:
            lost.add(name)
    meta = {name: value for name, value in raw.meta.items() if name not in ("total_steps", "id")}
    meta |= {"id": number, "truncated": bool(raw.truncations[-1:].any())} | ({"reset_info": reset} if reset else {})
    ends = np.asarray(raw.terminations, bool) | np.asarray(raw.truncations, bool)
    episode = Episode(
        columns.observations(codec.raw_observation_space, list(codec.observation_space.spaces), raw.observations),
        columns.actions(codec.raw_action_space, raw.actions),
        columns.exact(np.asarray(raw.rewards).reshape(steps)),
        bool(raw.terminations[-1:].any()),
        None,
        trace,
        meta,
    )
    return split(episode, ends)
