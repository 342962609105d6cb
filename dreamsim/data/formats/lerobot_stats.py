"""Statistics as LeRobot keeps them, of an episode and of a whole dataset (its ``compute_stats.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
SIDE = 150  # images of at least twice this are thinned to about it before they are counted
MOST = 10_000  # images of one episode that are looked at

Stats = dict[str, np.ndarray]
"""min, max, mean, std and quantiles of one feature, and its ``count`` (1,)."""


def of_numbers(column: np.ndarray) -> Stats:
    """Return statistics over the frames of a column (T, ...); single numbers keep an axis of one."""
    rows = column.reshape(len(column), 1) if column.ndim == 1 else column
    return _over(rows.astype(np.float64), (0,)) | {"count": np.array([len(rows)])}


def of_pictures(pictures: np.ndarray) -> Stats:
    """Return statistics (3, 1, 1) over a sample of pictures (T, H, W, 3) uint8, in [0, 1]."""
    number = min(len(pictures), max(min(100, len(pictures)), min(int(len(pictures) ** 0.75), MOST)))
    rows = np.round(np.linspace(0, len(pictures) - 1, number)).astype(int)
    height, width = pictures.shape[1:3]
    thin = max(1, max(height, width) // SIDE) if max(height, width) >= 2 * SIDE else 1
    sample = pictures[rows, ::thin, ::thin].transpose(0, 3, 1, 2)
    found = _over(sample.astype(np.float64), (0, 2, 3))
    return {name: value.reshape(-1, 1, 1) / 255 for name, value in found.items()} | {"count": np.array([number])}


def together(parts: list[Stats]) -> Stats:
    """Return the statistics of all frames from those of episodes; quantiles are means weighted by count."""
    counts = np.array([part["count"][0] for part in parts], np.float64)
    weights = (counts / counts.sum()).reshape(-1, *[1] * parts[0]["mean"].ndim)
    stack = {name: np.stack([part[name] for part in parts]) for name in parts[0] if name != "count"}
    found = {name: (weights * stack[name]).sum(0) for name in ("mean", *QUANTILES)}
    variance = (weights * (stack["std"] ** 2 + (stack["mean"] - found["mean"]) ** 2)).sum(0)
    ends = {"min": stack["min"].min(0), "max": stack["max"].max(0), "std": np.sqrt(variance)}
    return {**ends, **found, "count": np.array([int(counts.sum())])}


def plain(stats: Stats) -> dict[str, Any]:
    """Return statistics as lists."""
    return {name: value.tolist() for name, value in stats.items()}


def _over(values: np.ndarray, axes: tuple[int, ...]) -> Stats:
    basic = {"min": values.min(axes), "max": values.max(axes), "mean": values.mean(axes), "std": values.std(axes)}
    return basic | dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values()), axis=axes), strict=True))
