"""A folder of videos with their actions: one actions file beside each video, or one ``actions`` file for all.

    FOLDER/swing.mp4  FOLDER/swing.csv         a camera called ``image``, an episode a video
    FOLDER/top/a.mp4  FOLDER/side/a.mp4        cameras ``top`` and ``side``, an episode a name
    FOLDER/a.npy  or  FOLDER/actions.csv       in the file for all, a column ``video`` names each row's

Row t of the actions is what was done on seeing frame t. One frame more than rows: each action has its
outcome. As many frames as rows: the last action has none and is kept in ``meta["last"]``. Anything else is
left out by name. Further columns: ``reward`` (of that action), ``time`` (seconds), ``terminated`` (last row).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.formats import columns, videos_actions
from dreamsim.data.formats.bounds import action_box
from dreamsim.data.formats.lerobot_clock import Clock, Columns, listen, named_clock
from dreamsim.data.formats.recording import BadRecording, LeftOut, Recording, without_outcome
from dreamsim.data.formats.videos_actions import READERS, Actions
from dreamsim.data.formats.videos_codec import CONTAINERS, Reel

ALONE = "image"
LOOK = 64  # frames that tell a video's size and rate
CHOICES = 256  # whole-number actions below this are choices


class Take(NamedTuple):
    """One episode: its videos by camera, and its actions."""

    name: str
    videos: dict[str, Path]
    actions: Actions


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a folder holds videos and a file of actions."""
    return path.is_dir() and bool(_videos(path)) and bool(_tables(path))


def read(path: Path, clock: str = "mask", rate: float | None = None) -> Recording:
    """Read a folder.

    ``clock``: what to do where a video's times leave out frames: drop, mask or interpolate (lerobot_clock.py).
    ``rate``: frames per second; None: as the first video tells.
    """
    notes: list[str] = []
    takes = _takes(path, notes)
    first, size = _look(takes[0])
    rate = rate or first
    actions = np.concatenate([take.actions.action for take in takes])
    space, note = _action_space(actions)
    seen = spaces.Dict({camera: spaces.Box(0, 255, size[camera], np.uint8) for camera in sorted(size)})
    notes.append(note)
    meta = {"videos": {"actions": takes[0].actions.names}}
    episodes = _episodes(takes, seen, space, rate, named_clock(clock), notes)
    return Recording(seen, space, rate, episodes, notes, len(takes), meta)


def _videos(path: Path) -> dict[str, dict[str, Path]]:
    """Return the videos by name and camera."""
    found: dict[str, dict[str, Path]] = {}
    for video in sorted([*path.glob("*.*"), *path.glob("*/*.*")]):
        if video.suffix.lower() in CONTAINERS:
            camera = ALONE if video.parent == path else video.parent.name
            found.setdefault(video.stem, {})[camera.replace(".", "_")] = video
    return found


def _tables(path: Path) -> dict[str, Path]:
    return {file.stem: file for file in sorted(path.glob("*.*")) if file.suffix.lower() in READERS}


def _takes(path: Path, notes: list[str]) -> list[Take]:
    """Return every video that has actions; name what has no partner."""
    videos, tables = _videos(path), _tables(path)
    given: dict[str, Actions] = {}
    for stem, file in tables.items():
        rows, passed = videos_actions.read(file)
        if passed:
            notes.append(f"{file.name}: columns {', '.join(passed)} are neither actions nor known, and not read")
        if "" in rows and (stem in videos or len(videos) == 1):
            rows[stem if stem in videos else next(iter(videos))] = rows.pop("")
        if "" in rows:
            raise BadRecording(
                f"{file.name} is not called like a video and its rows name none; call it like its video, or give it "
                "a column called video"
            )
        if twice := sorted(given.keys() & rows.keys()):
            raise BadRecording(f"two files hold actions of {twice[0]}")
        given |= rows
    if alone := sorted(videos.keys() ^ given.keys()):
        notes.append(
            f"orphans, a video without actions or actions without a video, passed over: {', '.join(alone[:5])}"
        )
    takes = [Take(name, videos[name], given[name]) for name in videos if name in given]
    if not takes:
        raise BadRecording(f"no video in {path} has actions: expected NAME.csv beside NAME.mp4, or a column video")
    return _alike(takes, notes)


def _alike(takes: list[Take], notes: list[str]) -> list[Take]:
    """Return the takes that have all cameras, and as many actions as the first. Raises BadRecording."""
    cameras = sorted({camera for take in takes for camera in take.videos})
    whole = [take for take in takes if sorted(take.videos) == cameras]
    for take in takes:
        if absent := sorted(set(cameras) - set(take.videos)):
            notes.append(f"episode {take.name} left out: it has no camera {', '.join(map(repr, absent))}")
        if take.actions.names != takes[0].actions.names:
            raise BadRecording(
                f"{take.name} has actions {', '.join(take.actions.names)}, but {takes[0].name} has "
                f"{', '.join(takes[0].actions.names)}; give all files the same columns"
            )
    if not whole:
        raise BadRecording(f"no episode has every camera of {', '.join(cameras)}")
    return whole


def _look(take: Take) -> tuple[float, dict[str, tuple[int, int, int]]]:
    """Return frames per second and the sizes (H, W, 3) of an episode's pictures."""
    size, rate = {}, 0.0
    for camera, path in take.videos.items():
        pictures, times = _watch(path, LOOK)
        size[camera] = pictures.shape[1:]
        rate = round(1 / float(np.median(np.diff(times))), 3)
    return rate, size


def _watch(path: Path, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    reel = Reel(path)
    try:
        pictures, times = reel.rest(most)
    finally:
        reel.close()
    if len(pictures) < 2:
        raise BadRecording(f"{path.name} has {len(pictures)} frames; a step needs two")
    return pictures, times


def _action_space(actions: np.ndarray) -> tuple[spaces.Space, str]:
    whole = actions.dtype.kind in "iu" and actions.shape[1] == 1 and actions.min() >= 0 and actions.max() < CHOICES
    if whole:
        count = int(actions.max()) + 1
        return spaces.Discrete(count), f"actions are whole numbers below {count}, taken as that many choices"
    return action_box(actions)


def _episodes(
    takes: list[Take], seen: spaces.Dict, space: spaces.Space, rate: float, clock: Clock, notes: list[str]
) -> Iterator[Episode | LeftOut]:
    names = list(Codec(seen, space).observation_space.spaces)
    more = even = 0
    for take in takes:
        try:
            found, time = _columns(take, seen, rate)
            outcome = len(found["action"]) > len(take.actions.action)
            more, even = more + outcome, even + (not outcome)
            mended = clock.mend(time, found, rate, frozenset())
            jitter = listen(time, rate).jitter
            if mended.pieces and (mended.done or jitter > 0.1 / rate):
                notes.append(f"episode {take.name}: {mended.done or f'jitter of {1e3 * jitter:.1f} ms kept'}")
            pieces = [(when, piece) for when, piece in mended.pieces if len(when) > 1]
            for number, (when, piece) in enumerate(pieces):
                part = {"part": number} if len(pieces) > 1 else {}
                whole = outcome and number == len(pieces) - 1
                yield _episode(take, when, piece, seen, space, names, whole, part)
            if not pieces:
                yield LeftOut(take.name, mended.done or "one frame is no step")
        except (BadRecording, ValueError) as error:
            yield LeftOut(take.name, str(error))
    if more:
        notes.append(f"{more} videos have one frame more than actions: every action has its outcome")
    if even:
        notes.append(f"{even} videos have as many frames as actions: the last action has no outcome and is kept aside")


def _columns(take: Take, seen: spaces.Dict, rate: float) -> tuple[Columns, np.ndarray]:
    """Return columns with a row for each frame, and the frames' times (T,)."""
    found: Columns = {}
    time = np.empty(0)
    for camera, path in take.videos.items():
        found[camera], time = _watch(path)
        if found[camera].shape[1:] != seen[camera].shape:
            raise BadRecording(
                f"{path.name} has pictures {found[camera].shape[1:]}, the first video {seen[camera].shape}"
            )
    counts, rows = {len(found[camera]) for camera in take.videos}, len(take.actions.action)
    if len(counts) != 1 or rows not in (len(time), len(time) - 1):
        shown = " and ".join(map(str, sorted(counts)))
        raise BadRecording(f"{shown} frames and {rows} actions; expected as many, or one frame more than actions")
    median = 1 / float(np.median(np.diff(time)))
    if abs(median / rate - 1) > 0.02:
        raise BadRecording(f"{median:.3g} frames per second, but {rate:g} in the first video; convert it apart")
    if take.actions.time is not None:
        given = take.actions.time.astype(np.float64)
        time = given if rows == len(time) else np.append(given, given[-1] + 1 / rate)
    pad = [(0, len(time) - rows)]
    found["action"] = np.pad(take.actions.action, [*pad, (0, 0)], mode="edge")
    if take.actions.reward is not None:
        found["reward"] = np.pad(take.actions.reward, pad, mode="edge")
    return found, time - time[0]


def _episode(
    take: Take,
    time: np.ndarray,
    found: Columns,
    seen: spaces.Dict,
    space: spaces.Space,
    names: list[str],
    outcome: bool,
    part: dict[str, int],
) -> Episode:
    """Return T frames as an Episode of T - 1 steps; ``outcome``: the row beyond the last step is padding."""
    raw = found["action"][:, 0] if isinstance(space, spaces.Discrete) else found["action"]
    action, reward = columns.actions(space, raw), found.get("reward")
    meta = {"episode": take.name, **part}
    if not outcome:
        meta |= without_outcome(action[-1], None if reward is None else float(reward[-1]), take.actions.terminated)
    return Episode(
        columns.observations(seen, names, {camera: found[camera] for camera in seen.spaces}),
        action[:-1],
        None if reward is None else reward[:-1],
        outcome and take.actions.terminated,
        time,
        {},
        meta,
    )
