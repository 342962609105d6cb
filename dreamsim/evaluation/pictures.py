"""Small work on frames: RGB arrays (H, W, 3) uint8 in, the same out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

BAR = (255, 176, 32)


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) of any number type in [0, 255] as RGB; of a stack (K, C, H, W) the newest."""
    newest = image[-1] if image.ndim == 4 else image
    frame = np.clip(np.rint(newest), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.repeat(frame, 3, 2) if frame.shape[2] == 1 else np.ascontiguousarray(frame[:, :, :3])


def fit(frame: np.ndarray, height: int) -> np.ndarray:
    """Return a frame near ``height`` pixels high: whole pixels repeated, or averaged in whole blocks."""
    if frame.shape[0] <= height:
        times = max(1, round(height / frame.shape[0]))
        return frame.repeat(times, 0).repeat(times, 1)
    block = max(1, round(frame.shape[0] / height))
    rows, columns = frame.shape[0] // block, frame.shape[1] // block
    cut = frame[: rows * block, : columns * block]
    # Sums of whole numbers, rows first: several times faster than one mean over both axes.
    total = cut.reshape(rows, block, columns * block, 3).sum(1, dtype=np.uint32)
    total = total.reshape(rows, columns, block, 3).sum(2)
    return ((total + block * block // 2) // (block * block)).astype(np.uint8)


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return where two frames differ: black where they agree, then red, yellow, white."""
    strength = np.abs(one.astype(np.float32) - other.astype(np.float32)).mean(2) / 255 * 3
    return (np.clip(np.stack([strength, strength - 1, strength - 2], 2), 0, 1) * 255).astype(np.uint8)


def with_bars(frame: np.ndarray, values: Sequence[float], count: int, top: float) -> np.ndarray:
    """Draw the values so far as bars along the lower quarter; ``count`` fill the width, ``top`` the quarter."""
    frame = frame.copy()
    height, width = frame.shape[:2]
    space = max(1, height // 4)
    for position, value in enumerate(values):
        left, right = position * width // count, max(position * width // count + 1, (position + 1) * width // count)
        tall = int(np.ceil(min(value / top, 1.0) * space)) if np.isfinite(value) else space
        if tall:
            frame[height - tall :, left:right] = BAR
    return frame


def beside(frames: Sequence[np.ndarray], gap: int = 4) -> np.ndarray:
    """Lay frames of equal height side by side."""
    wall = np.full((frames[0].shape[0], gap, 3), 128, np.uint8)
    row = [part for frame in frames for part in (frame, wall)]
    return np.concatenate(row[:-1], 1)


def png(frame: np.ndarray) -> bytes:
    """Return a frame as a PNG file. Source: the PNG specification, third edition."""
    height, width = frame.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), frame.reshape(height, -1)], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content
