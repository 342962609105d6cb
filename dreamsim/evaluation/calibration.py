"""Whether a model knows where it is wrong: its uncertainty against its real errors on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.protocols import MissingPower, Uncertain, WorldModel, power
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode, Obs, State
from dreamsim.evaluation.cuts import Batch, choose, longest, spreads, take
from dreamsim.evaluation.openloop import believe, shower

ROWS = 64  # dreams at once
USEFUL = 0.3  # rank correlation from which doubt is worth listening to


class Calibration(NamedTuple):
    """Uncertainty and error of dreams along recorded actions, by horizon.

    A dream's doubt at step h is the largest uncertainty it has met so far, which is what a
    dream that ends at ``distrust`` looks at. Errors are root mean squares of the observation in
    standard deviations of the data.
    """

    horizons: tuple[int, ...]  # (K,) steps
    counts: np.ndarray  # (K,) windows long enough
    correlation: np.ndarray  # (K,) rank correlation of doubt and error; NaN: one of them does not vary
    factor: np.ndarray  # (K,) root mean square error over root mean square doubt: 1 is honest, 3 too sure of itself
    doubt: np.ndarray  # (K, Q) mean doubt in Q bins of equally many windows, rising
    error: np.ndarray  # (K, Q) mean error in the same bins
    tolerance: float  # largest error that is good enough
    confidence: float  # share of the trusted steps that must be good enough
    distrust: float  # largest doubt that can be trusted so; 0: none can, or ``blind``
    blind: bool  # at the longest horizon the errors are too large and the doubt does not tell where
    kept: float  # share of all measured steps with no more doubt than that
    good: float  # share of all measured steps that are good enough
    good_kept: float  # the same among those kept; NaN: none is


def calibrate(
    model: WorldModel,
    episodes: Sequence[Episode],
    codec: Codec,
    horizons: Sequence[int] = (1, 2, 4, 8, 16),
    tolerance: float = 0.5,
    confidence: float = 0.9,
    bins: int = 5,
    windows: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Calibration:
    """Dream along the recorded actions of real episodes that the model has not learned from.

    ``distrust`` is the largest measured doubt d such that, of all steps with doubt up to d (of all
    horizons), at least ``confidence`` have an error of at most ``tolerance``; it never exceeds what
    was measured, for beyond that nothing is known. Where the doubt is ``blind`` (rank correlation below
    0.3 although too few steps are good at the longest horizon) no threshold on it means anything, and it
    is 0. Give it to ``Dream``, ``Branched`` or ``branch``.
    Raises MissingPower for a model without ``uncertainty``, or one that shows no observations.
    """
    cuts, _ = choose(episodes, 1, windows, seed)
    reach = min(max(horizons), longest(cuts))
    steps = tuple(sorted({step for step in horizons if 1 <= step <= reach}))
    if not steps:
        raise ValueError(f"no horizon among {list(horizons)} can be measured: the longest window has {reach} steps")
    scales = tree.to(spreads(episodes, codec.observation_space), device)
    parts = []
    with torch.no_grad(), Stream(seed, device):
        for start in range(0, len(cuts), ROWS):
            batch = take(episodes, cuts[start : start + ROWS], 1 + reach, codec.scale, device)
            parts.append(_follow(model, batch, codec, scales, reach))
    doubt, error = (np.concatenate(side) for side in zip(*parts, strict=True))
    columns = [_column(doubt[:, step - 1], error[:, step - 1], bins) for step in steps]
    counts, correlation, factor, doubts, errors = (np.array(each) for each in zip(*columns, strict=True))
    last = error[:, steps[-1] - 1]
    blind = bool((last[np.isfinite(last)] <= tolerance).mean() < confidence and not correlation[-1] >= USEFUL)
    found = 0.0 if blind else trusted_doubt(doubt, error, tolerance, confidence)
    real = np.isfinite(error)
    fine, kept = error[real] <= tolerance, doubt[real] <= found
    return Calibration(
        steps,
        counts,
        correlation,
        factor,
        doubts,
        errors,
        tolerance,
        confidence,
        found,
        blind,
        float(kept.mean()) if found else 0.0,
        float(fine.mean()),
        float(fine[kept].mean()) if found else float("nan"),
    )


def trusted_doubt(doubt: np.ndarray, error: np.ndarray, tolerance: float, confidence: float) -> float:
    """Return the largest doubt up to which a share ``confidence`` of the errors is tolerable; 0: not even the least."""
    real = np.isfinite(error)
    doubts, bad = doubt[real], error[real] > tolerance
    order = doubts.argsort(kind="stable")
    ranked = doubts[order]
    share = np.cumsum(~bad[order]) / np.arange(1, len(order) + 1)
    last = np.append(ranked[1:] != ranked[:-1], True)  # equal doubts are trusted together or not at all
    fine = np.flatnonzero((share >= confidence) & last)
    return float(ranked[fine[-1]]) if len(fine) else 0.0


def rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    """Return Spearman's rank correlation of two series (N,); NaN where one does not vary."""
    first, second = _ranks(one), _ranks(two)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def lines(found: Calibration) -> list[str]:
    """Return what a calibration says, in plain sentences."""
    said = []
    for place, step in enumerate(found.horizons):
        tell = f"rank correlation {found.correlation[place]:.2f}, error {found.factor[place]:.1f} times the doubt"
        said.append(f"After {step} step{'s' if step > 1 else ''} ({found.counts[place]} windows): {tell}.")
    return said + meaning(found)


def meaning(found: Calibration) -> list[str]:
    """Return what follows from a calibration: whether doubt is worth listening to, and up to which."""
    wanted = f"{found.confidence:.0%} of its steps err by at most {found.tolerance:g} standard deviations"
    if found.blind:
        share = f"{found.good:.0%} of all steps err by at most {found.tolerance:g} standard deviations"
        return [f"Its doubt does not tell where it errs, so no doubt is small enough to trust; {share}."]
    if not found.distrust:
        return [f"No doubt is small enough to trust: nowhere is it so that {wanted} ({found.good:.0%} do)."]
    kept = f"which keeps {found.kept:.0%} of the steps, {found.good_kept:.0%} of them good ({found.good:.0%} of all)"
    return [f"Up to a doubt of {found.distrust:.3g} {wanted}, {kept}."]


def _follow(
    model: WorldModel, batch: Batch, codec: Codec, scales: dict[str, Tensor], reach: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return doubt and error (B, H) of dreams along the recorded actions; NaN behind a window's end."""
    ask = power(model, Uncertain)
    _, state = believe(model, batch, 1)
    show = shower(model, state, codec)
    if show is None:
        raise MissingPower(
            f"{type(model).__name__} shows no observations to compare with; give it decode(state) "
            "(dreamsim.core.protocols.Decodes)"
        )
    doubts, errors, worst = [], [], torch.zeros(len(batch.left), device=batch.left.device)
    for t in range(1, 1 + reach):
        worst = torch.maximum(worst, ask(state, batch.action[:, t]))
        state = model.step(state, batch.action[:, t])[0]
        doubts.append(worst)
        errors.append(_error(show, state, {name: value[:, t + 1] for name, value in batch.obs.items()}, scales))
    short = torch.arange(1, 1 + reach, device=batch.left.device) > batch.left[:, None]
    error = torch.stack(errors, 1).double().masked_fill(short, float("nan"))
    return torch.stack(doubts, 1).double().cpu().numpy(), error.cpu().numpy()


def _error(show: Callable[[State], Obs], state: State, target: Obs, scales: dict[str, Tensor]) -> Tensor:
    """Return the root mean square error (B,) over all components of all fields, in units of their spread."""
    shown = show(state)
    parts = [((shown[n].float() - target[n].float()) / scales[n]).flatten(1) for n in shown if n in scales]
    return torch.cat(parts, 1).square().mean(1).sqrt()


def _column(doubt: np.ndarray, error: np.ndarray, bins: int) -> tuple[int, float, float, np.ndarray, np.ndarray]:
    """Return count, correlation, factor and the reliability curve of one horizon."""
    real = np.isfinite(error)
    doubt, error = doubt[real], error[real]
    pieces = np.array_split(doubt.argsort(kind="stable"), bins)
    curve = [(doubt[p].mean(), error[p].mean()) if len(p) else (np.nan, np.nan) for p in pieces]
    usual = np.sqrt(np.square(doubt).mean())
    factor = float(np.sqrt(np.square(error).mean()) / usual) if usual > 0 else float("inf")
    doubts, errors = np.array(curve).T
    return len(doubt), rank_correlation(doubt, error), factor, doubts, errors


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks (N,); equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]
