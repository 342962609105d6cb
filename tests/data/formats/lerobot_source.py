"""LeRobot datasets as its own recorder lays them out, made without our writer: versions 2.1 and 3.0."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 30
SIDE = 32


def coded(numbers) -> np.ndarray:
    """Return pictures (T, 32, 32, 3) that carry numbers below 256 as eight black or white bars."""
    bits = (np.asarray(numbers)[:, None] >> np.arange(8)) & 1
    return np.repeat(np.repeat(bits[:, None, :, None], SIDE, 1), SIDE // 8, 2).repeat(3, 3).astype(np.uint8) * 255


def decoded(pictures: np.ndarray) -> np.ndarray:
    """Return the numbers that pictures (T, 3, 32, 32) carry."""
    bars = pictures.mean((1, 2)).reshape(len(pictures), 8, SIDE // 8).mean(2) > 127
    return (bars << np.arange(8)).sum(1)


def film(path: Path, pictures: np.ndarray, codec: str = "libx264", times=None) -> None:
    """Write pictures (T, H, W, 3) as LeRobot's encoder does (g=2, yuv420p); ``times``: frame numbers, with holes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, FPS, options={"g": "2", "crf": "18"})
        stream.pix_fmt, stream.height, stream.width = "yuv420p", *pictures.shape[1:3]
        for number, picture in zip(range(len(pictures)) if times is None else times, pictures, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def png(picture: np.ndarray) -> bytes:
    coder = av.CodecContext.create("png", "w")
    coder.height, coder.width, coder.pix_fmt, coder.time_base = *picture.shape[:2], "rgb24", Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    return b"".join(bytes(packet) for packet in [*coder.encode(frame), *coder.encode(None)])


def frames(number: int, length: int, first: int, stamps=None) -> dict[str, np.ndarray]:
    """Return an episode's columns: state and action tell the global frame, so that a shift of one shows."""
    index = first + np.arange(length)
    state = np.stack([index, np.full(length, number)], 1).astype(np.float32)
    return {
        "observation.state": state,
        "action": (state * [0.001, 0.1]).astype(np.float32),
        "next.reward": index.astype(np.float32),
        "next.done": np.arange(length) == length - 1,
        "next.success": (np.arange(length) == length - 1) & (number % 2 == 0),
        "timestamp": (np.arange(length) / FPS if stamps is None else np.asarray(stamps)).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, number),
        "index": index,
        "task_index": np.full(length, number % 2),
    }


TASKS = ["push", "pull"]


def features(cameras=(), kind="video", layout=("height", "width", "channels")) -> dict:
    numbers = {"dtype": "float32", "shape": [2], "names": ["frame", "episode"]}
    one = {"shape": [1], "names": None}
    picture = {"dtype": kind, "shape": [SIDE, SIDE, 3], "names": list(layout)}
    if layout[0] == "channels":
        picture["shape"] = [3, SIDE, SIDE]
    return {
        "observation.state": numbers,
        **{f"observation.images.{name}": dict(picture) for name in cameras},
        "action": dict(numbers),
        "next.reward": {"dtype": "float32", **one},
        "next.done": {"dtype": "bool", **one},
        "next.success": {"dtype": "bool", **one},
        "timestamp": {"dtype": "float32", **one},
        **{name: {"dtype": "int64", **one} for name in ("frame_index", "episode_index", "index", "task_index")},
    }


def table(columns: dict, described: dict) -> pa.Table:
    made = {}
    for key, kind in described.items():
        if kind["dtype"] == "video":
            continue
        value = columns[key]
        if kind["dtype"] == "image":
            struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            made[key] = pa.array([{"bytes": png(picture), "path": None} for picture in value], struct)
        elif kind["shape"] == [1]:
            made[key] = pa.array(value)
        else:
            made[key] = pa.FixedSizeListArray.from_arrays(pa.array(value.reshape(-1)), kind["shape"][0])
    return pa.table(made)


def info(root: Path, version: str, lengths: list[int], described: dict, **more) -> None:
    about = {
        "codebase_version": version,
        "robot_type": "so100",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 2,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        **more,
        "features": described,
    }
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta/info.json").write_text(json.dumps(about, indent=4))


def v21(root: Path, lengths=(8, 6, 7), cameras=(), kind="video", stamps=None, layout=("height", "width", "channels")):
    """Make a dataset of version 2.1: a Parquet file an episode, a video an episode and camera."""
    described = features(cameras, kind, layout)
    first = 0
    for number, length in enumerate(lengths):
        columns = frames(number, length, first, stamps)
        for camera in cameras:
            pictures = coded(columns["index"] + (100 if camera == "wrist" else 0))
            columns[f"observation.images.{camera}"] = pictures
            if kind == "video":
                film(root / f"videos/chunk-000/observation.images.{camera}/episode_{number:06d}.mp4", pictures)
        path = root / f"data/chunk-000/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(columns, described), path)
        first += length
    info(
        root,
        "v2.1",
        list(lengths),
        described,
        total_videos=len(lengths) * len(cameras),
        total_chunks=1,
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4" if cameras else None,
    )
    lines(root / "meta/tasks.jsonl", [{"task_index": i, "task": text} for i, text in enumerate(TASKS)])
    rows = [{"episode_index": i, "tasks": [TASKS[i % 2]], "length": length} for i, length in enumerate(lengths)]
    lines(root / "meta/episodes.jsonl", rows)
    return root


def lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def v30(root: Path, lengths=(8, 6, 7), cameras=(), per_file: int = 2, kind="video"):
    """Make a dataset of version 3.0 with ``per_file`` episodes in each Parquet and each video file."""
    described = features(cameras, kind)
    rows, first = [], 0
    groups = [range(at, min(at + per_file, len(lengths))) for at in range(0, len(lengths), per_file)]
    for file, group in enumerate(groups):
        tables, shown, start = [], [], first
        for number in group:
            columns = frames(number, lengths[number], first)
            row = {
                "episode_index": number,
                "tasks": [TASKS[number % 2]],
                "length": lengths[number],
                "data/chunk_index": 0,
                "data/file_index": file,
                "dataset_from_index": first,
                "dataset_to_index": first + lengths[number],
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
            for camera in cameras:
                columns[f"observation.images.{camera}"] = coded(columns["index"])
                key = f"videos/observation.images.{camera}"
                row |= {f"{key}/chunk_index": 0, f"{key}/file_index": file}
                row |= {f"{key}/from_timestamp": (first - start) / FPS}
                row |= {f"{key}/to_timestamp": (first - start + lengths[number]) / FPS}
            shown.append(coded(columns["index"]))
            tables.append(table(columns, described))
            rows.append(row)
            first += lengths[number]
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(tables), path)
        for camera in cameras if kind == "video" else ():
            path = root / f"videos/observation.images.{camera}/chunk-000/file-{file:03d}.mp4"
            film(path, np.concatenate(shown), "libsvtav1")
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = {"task_index": [0, 1], "__index_level_0__": TASKS}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    info(
        root,
        "v3.0",
        list(lengths),
        described,
        data_files_size_in_mb=100,
        video_files_size_in_mb=200,
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if cameras else None,
    )
    return root
