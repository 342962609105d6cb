"""How sure a mean is: the percentile bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean with its bootstrap interval. ``low`` and ``high`` are NaN where one value gives none."""

    mean: float
    low: float
    high: float
    middle: float  # interquartile mean: the mean of the middle half, which outliers do not move
    size: int  # number of values
    level: float

    def __str__(self) -> str:
        if self.size < 2:
            return f"{self.mean:.4g} (one value: no interval)"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def interval(
    values: Sequence[float] | np.ndarray, level: float = 0.95, seed: int = 0, samples: int = 10_000
) -> Interval:
    """Return the mean of values (n,) and its percentile bootstrap interval; equal seeds give equal bounds.

    Source: Efron and Tibshirani 1993, chapter 13; the interquartile mean after Agarwal et al. 2021.
    """
    array = np.asarray(values, np.float64).reshape(-1)
    if array.size == 0:
        raise ValueError("an interval needs at least one value, got none")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    mean, middle = float(array.mean()), interquartile_mean(array)
    if array.size < 2:
        return Interval(mean, float("nan"), float("nan"), middle, 1, level)
    tail = 50 * (1 - level)
    low, high = np.percentile(_bootstrap_means(array, seed, samples), [tail, 100 - tail])
    return Interval(mean, float(low), float(high), middle, array.size, level)


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half; a value on the border of the quarter counts in part."""
    array = np.sort(np.asarray(values, np.float64).reshape(-1))
    quarter = array.size / 4
    position = np.arange(array.size)
    inside = np.minimum(position + 1, array.size - quarter) - np.maximum(position, quarter)
    weight = np.clip(inside, 0, 1)
    return float((array * weight).sum() / weight.sum())


def _bootstrap_means(array: np.ndarray, seed: int, samples: int) -> np.ndarray:
    """Return means (samples,) of draws with replacement, in blocks so that memory stays bounded."""
    random = np.random.default_rng(seed)
    block = max(1, 4_000_000 // array.size)
    sizes = [min(block, samples - start) for start in range(0, samples, block)]
    return np.concatenate([array[random.integers(0, array.size, (size, array.size))].mean(1) for size in sizes])
