"""Frames out of video files in order, frames into video files, and pictures as PNG; everything by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.data.formats.recording import BadRecording

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".m4v": "mp4", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}
"""Suffix to container. Others are refused: some, such as playlists, name further files and addresses."""
KEY_EVERY = 2  # frames between two that can be decoded alone: what LeRobot writes, for random access
QUALITY = "15"  # x264's constant rate factor: errors of about one in 255 in smooth pictures
MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "mjpeg"}


class MissingFrame(BadRecording):
    """A video has no frame where one was expected."""


class Reel:
    """One open video file. Frames asked for in the order of time are decoded once.

    ``rate`` and ``count`` are what the file says of itself, 0 where it does not.
    Raises BadRecording for what is no video.
    """

    def __init__(self, path: Path) -> None:
        import av

        self.path = path
        if path.suffix.lower() not in CONTAINERS:
            raise BadRecording(f"{path.name} is no video known here; expected {', '.join(CONTAINERS)}")
        try:
            self._container = av.open(
                str(path), format=CONTAINERS[path.suffix.lower()], options={"protocol_whitelist": "file"}
            )
            self._stream = self._container.streams.video[0]
        except (av.FFmpegError, IndexError, OSError) as error:
            raise BadRecording(f"{path.name} cannot be opened as a video: {error}") from error
        self.rate, self.count = float(self._stream.average_rate or 0), int(self._stream.frames)
        self._frames: Iterator[Any] = self._decoded()
        self._now, self._next = next(self._frames, None), next(self._frames, None)

    def take(self, times: np.ndarray, tolerance: float) -> np.ndarray:
        """Return the frames (T, H, W, 3) uint8 nearest to rising times (T,) in seconds.

        Raises MissingFrame where none is within ``tolerance`` seconds.
        """
        taken: np.ndarray | None = None
        for row, when in enumerate(np.asarray(times, np.float64).tolist()):
            self._go(when, tolerance)
            if self._now is None or abs(self._now.time - when) > tolerance:
                at = "none" if self._now is None else f"the nearest is at {self._now.time:.3f} s"
                raise MissingFrame(f"{self.path.name} has no frame at {when:.3f} s ({at})")
            taken = self._put(taken, row, len(times))
        return np.empty((0, 0, 0, 3), np.uint8) if taken is None else taken

    def run(self, start: float, count: int, tolerance: float) -> np.ndarray:
        """Return ``count`` frames (T, H, W, 3) one after the other, the first at ``start`` seconds."""
        taken = None
        self._go(start, tolerance)
        if self._now is None or abs(self._now.time - start) > tolerance:
            raise MissingFrame(f"{self.path.name} has no frame at {start:.3f} s")
        for row in range(count):
            if self._now is None:
                raise MissingFrame(f"{self.path.name} has {row} frames from {start:.3f} s on, not {count}")
            taken = self._put(taken, row, count)
            self._now, self._next = self._next, next(self._frames, None)
        return np.empty((0, 0, 0, 3), np.uint8) if taken is None else taken

    def rest(self, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the frames (T, H, W, 3) uint8 from here on, ``most`` or all, and their times (T,) in seconds."""
        pictures: list[np.ndarray] = []
        times: list[float] = []
        while self._now is not None and len(pictures) != most:
            pictures.append(rgb(self._now))
            times.append(self._now.time)
            self._now, self._next = self._next, next(self._frames, None)
        if len({picture.shape for picture in pictures}) > 1:
            raise BadRecording(f"{self.path.name} changes its size on the way")
        return np.stack(pictures) if pictures else np.empty((0, 0, 0, 3), np.uint8), np.array(times, np.float64)

    def _put(self, taken: np.ndarray | None, row: int, count: int) -> np.ndarray:
        """Return ``taken`` (count, H, W, 3), made at the first call, with the present frame in a row."""
        picture = rgb(self._now)
        taken = np.empty((count, *picture.shape), np.uint8) if taken is None else taken
        if picture.shape != taken.shape[1:]:
            raise BadRecording(f"{self.path.name} changes its size to {picture.shape} at {self._now.time:.3f} s")
        taken[row] = picture
        return taken

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _go(self, when: float, tolerance: float) -> None:
        """Make the frame nearest to a time the present one."""
        if self._now is None or self._now.time > when + tolerance:
            self._seek(when - tolerance)
        while self._next is not None and abs(self._next.time - when) <= abs(self._now.time - when):
            self._now, self._next = self._next, next(self._frames, None)

    def _seek(self, when: float) -> None:
        self._container.seek(int(max(when, 0) / self._stream.time_base), stream=self._stream)
        self._frames = self._decoded()
        self._now, self._next = next(self._frames, None), next(self._frames, None)

    def _decoded(self) -> Iterator[Any]:
        import av

        try:
            yield from (frame for frame in self._container.decode(self._stream) if frame.pts is not None)
        except av.FFmpegError as error:
            raise BadRecording(f"{self.path.name} is damaged: {error}") from error


def rgb(frame: Any) -> np.ndarray:
    """Return a decoded frame as (H, W, 3) uint8."""
    return frame.to_ndarray(format="rgb24")


def encode(path: Path, frames: np.ndarray, rate: float) -> None:
    """Write frames (T, H, W, 3) uint8 as one H.264 file in which frame t stands at t / rate seconds."""
    import av

    period = Fraction(rate).limit_denominator(100_000)
    height, width = frames.shape[1:3]
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=period)
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuv444p" if height % 2 or width % 2 else "yuv420p"  # halved colour wants even sides
        stream.options = {"crf": QUALITY, "g": str(KEY_EVERY), "bf": "0", "preset": "veryfast", "threads": "1"}
        for number, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = number, 1 / period
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def join(path: Path, parts: list[Path], counts: list[int], rate: float) -> None:
    """Write files that ``encode`` made with equal settings one after the other, without coding them again.

    ``counts``: frames of each, so that the next begins exactly where it should.
    """
    import av

    period = Fraction(rate).limit_denominator(100_000)
    before = 0
    with av.open(str(path), "w", format="mp4") as container:
        stream = None
        for part, count in zip(parts, counts, strict=True):
            with av.open(str(part), format="mp4") as source:
                inner = source.streams.video[0]
                stream = stream or container.add_stream_from_template(inner)
                shift = int(before / period / inner.time_base)
                for packet in source.demux(inner):
                    if packet.dts is None:
                        continue  # the empty packet that ends a file
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = stream
                    container.mux(packet)
            before += count


def describe(path: Path) -> dict[str, Any]:
    """Return what LeRobot keeps of a video in ``features[...]["info"]``."""
    import av

    with av.open(str(path), format=CONTAINERS[path.suffix.lower()]) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 0)
        return {
            "video.height": stream.height,
            "video.width": stream.width,
            "video.codec": stream.codec_context.codec.canonical_name,
            "video.pix_fmt": str(stream.pix_fmt),
            "video.is_depth_map": False,
            "video.fps": int(rate) if rate == int(rate) else rate,
            "video.channels": 3,
            "has_audio": False,
        }


def to_png(picture: np.ndarray) -> bytes:
    """Return a picture (H, W, 3) uint8 as PNG, which loses nothing."""
    import av

    coder: Any = av.CodecContext.create("png", "w")
    coder.height, coder.width = picture.shape[:2]
    coder.pix_fmt, coder.time_base = "rgb24", Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return b"".join(bytes(packet) for packet in [*coder.encode(frame), *coder.encode(None)])


def from_image(data: bytes) -> np.ndarray:
    """Return a PNG or JPEG as (H, W, 3) uint8. Raises BadRecording for anything else."""
    import av

    name = next((codec for magic, codec in MAGIC.items() if data.startswith(magic)), None)
    if name is None:
        raise BadRecording(f"an image is neither PNG nor JPEG; it begins with {data[:4]!r}")
    decoder: Any = av.CodecContext.create(name, "r")
    try:
        frames = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    except av.FFmpegError as error:
        raise BadRecording(f"a {name} image is damaged: {error}") from error
    if not frames:
        raise BadRecording(f"a {name} image is damaged: it holds no picture")
    return rgb(frames[0])
