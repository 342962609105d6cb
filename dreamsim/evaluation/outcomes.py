"""How right a dream's rewards and ends are, one step at a time from real beliefs, on data it has not learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamsim.core.protocols import WorldModel
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.evaluation.cuts import Batch, Cut, take

ROWS = 32  # episodes at once


class RewardCalibration(NamedTuple):
    """Errors of single rewards, in the environment's units."""

    steps: int
    error: float  # mean absolute
    bias: float  # mean of dreamt minus real
    correlation: float  # of dreamt and real; NaN: one of them does not vary
    constant: float  # mean absolute error of always saying the mean


class EndCalibration(NamedTuple):
    """How forecasts of ends fare; a forecast is the probability that a step ends its episode."""

    steps: int
    ends: int
    brier: float  # mean squared error of the probability
    base: float  # the same of always saying the share of steps that end
    said: np.ndarray  # (Q,) mean probability in bins of equal width; NaN: empty
    seen: np.ndarray  # (Q,) share that ended in each
    precision: float  # of a forecast of at least ``threshold``; NaN: never made
    recall: float  # share of the ends so forecast; NaN: none came
    threshold: float


class Outcomes(NamedTuple):
    """Calibration of both; ``reward`` is None where the recordings hold none."""

    reward: RewardCalibration | None
    ends: EndCalibration


def foretell(
    model: WorldModel,
    episodes: Sequence[Episode],
    codec: Codec,
    threshold: float = 0.5,
    bins: int = 10,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Outcomes:
    """Follow real episodes with start and update, and compare what each real step's ``step`` foretells."""
    if not episodes:
        raise ValueError("calibration needs at least one real episode, got none")
    order = sorted(range(len(episodes)), key=lambda number: len(episodes[number].action))
    columns: list[np.ndarray] = []
    with torch.no_grad(), Stream(seed, device):
        for start in range(0, len(order), ROWS):
            cuts = [Cut(number, 0, len(episodes[number].action)) for number in order[start : start + ROWS]]
            batch = take(episodes, cuts, max(cut.left for cut in cuts), codec.scale, device)
            columns.append(_follow(model, batch))
    dreamt, real, proceed, ended = np.concatenate(columns, 1)
    reward = None if np.isnan(real).any() else _rewards(dreamt, real)
    return Outcomes(reward, _ends(1 - proceed, ended > 0, threshold, bins))


def lines(found: Outcomes) -> list[str]:
    """Return what a calibration says, in plain sentences."""
    said = []
    if found.reward is not None:
        one = found.reward
        said.append(
            f"Rewards of single steps ({one.steps:,}): mean error {one.error:.3g} (always saying the mean: "
            f"{one.constant:.3g}), bias {one.bias:+.2g}, correlation {one.correlation:.2f}."
        )
    ends = found.ends
    if not ends.ends:
        return said  # a forecast of what never came cannot be judged
    return [
        *said,
        f"Ends ({ends.ends} in {ends.steps:,} steps): Brier score {ends.brier:.3g} (always saying their share: "
        f"{ends.base:.3g}); forecasts of {ends.threshold:g} and more have precision {ends.precision:.2f} "
        f"and recall {ends.recall:.2f}.",
    ]


def _follow(model: WorldModel, batch: Batch) -> np.ndarray:
    """Return (4, N) over the real steps: dreamt reward, real reward (NaN: none), proceed, whether it ended."""
    state = model.start({name: value[:, 0] for name, value in batch.obs.items()})
    found: list[Tensor] = []
    nothing = torch.full_like(batch.left, torch.nan, dtype=torch.float32)
    for time in range(batch.action.shape[1]):
        action = batch.action[:, time]
        _, reward, proceed = model.step(state, action)
        real = nothing if batch.reward is None else batch.reward[:, time]
        ended = (batch.left == time + 1) & batch.terminated
        rows = torch.stack([reward, real, proceed, ended.float()])
        found.append(rows[:, batch.left > time])
        state = model.update(state, action, {name: value[:, time + 1] for name, value in batch.obs.items()})
    return torch.cat(found, 1).double().cpu().numpy()


def _rewards(dreamt: np.ndarray, real: np.ndarray) -> RewardCalibration:
    vary = np.ptp(dreamt) > 0 and np.ptp(real) > 0
    return RewardCalibration(
        len(real),
        float(np.abs(dreamt - real).mean()),
        float((dreamt - real).mean()),
        float(np.corrcoef(dreamt, real)[0, 1]) if vary else float("nan"),
        float(np.abs(real - real.mean()).mean()),
    )


def _ends(forecast: np.ndarray, ended: np.ndarray, threshold: float, bins: int) -> EndCalibration:
    place = np.clip((forecast * bins).astype(int), 0, bins - 1)
    groups = [place == number for number in range(bins)]
    said = np.array([forecast[group].mean() if group.any() else np.nan for group in groups])
    seen = np.array([ended[group].mean() if group.any() else np.nan for group in groups])
    made = forecast >= threshold
    return EndCalibration(
        len(ended),
        int(ended.sum()),
        float(np.square(forecast - ended).mean()),
        float(np.square(ended.mean() - ended).mean()),
        said,
        seen,
        float(ended[made].mean()) if made.any() else float("nan"),
        float(made[ended].mean()) if ended.any() else float("nan"),
        threshold,
    )
