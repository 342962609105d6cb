"""Errors of one pass of dreams along real windows, kept by window until all are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dreamsim.core.types import Obs, State
from dreamsim.evaluation.cuts import Batch


def observation_errors(
    show: Callable[[State], Obs] | None, state: State, target: Obs, origin: Obs, past: Obs, step: int, scales: dict
) -> dict[str, Tensor]:
    """Return squared errors (3, B) of model, copy and linear by field, in units of the spread."""
    if show is None:
        return {}
    found = {}
    for name, guess in show(state).items():
        if name not in scales:
            continue
        truth, now, earlier = (part[name].float() for part in (target, origin, past))
        line = now + step * (now - earlier)
        if target[name].dtype == torch.uint8:
            line = line.clamp(0, 255)
        errors = [((each.float() - truth) / scales[name]).flatten(1).square().mean(1) for each in (guess, now, line)]
        found[name] = torch.stack(errors)
    return found


def view_distances(dream: Obs, real: Obs, here: Obs, there: Obs, step: int) -> dict[str, Tensor]:
    """Return squared distances (3, B) of model, copy and linear by field of the view."""
    found = {}
    for name, value in real.items():
        now, earlier = here[name].float(), there[name].float()
        guesses = (dream[name].float(), now, now + step * (now - earlier))
        found[name] = torch.stack([(each - value.float()).flatten(1).square().sum(1) for each in guesses])
    return found


def columns(steps: list[dict[str, Tensor]], valid: Tensor) -> dict[str, np.ndarray]:
    """Return {name: (3, B, K)} with NaN where a window is too short."""
    names = steps[0] if steps else {}
    stacked = {name: torch.stack([step[name] for step in steps], -1).double() for name in names}
    return {name: value.masked_fill(~valid, float("nan")).cpu().numpy() for name, value in stacked.items()}


def moments(views: list[Obs], valid: Tensor) -> dict[str, np.ndarray]:
    """Return count, sum and sum of squares of the real views by field, for their total variance."""
    names = views[0] if views else {}
    found = {}
    for name in names:
        rows = torch.cat([view[name].flatten(1)[ok].double() for view, ok in zip(views, valid.T, strict=True)])
        count = torch.full_like(rows[:1].sum(0), len(rows))
        found[name] = torch.stack([count, rows.sum(0), rows.square().sum(0)]).cpu().numpy()
    return found


def reward_errors(
    batch: Batch,
    reward: Tensor,
    proceed: Tensor,
    horizons: Sequence[int],
    context: int,
    mean_reward: float,
    valid: Tensor,
) -> np.ndarray:
    """Return (3, B, K): error of a step's reward, of the sum, and of the sum of a constant forecast."""
    if batch.reward is None:
        return np.full((3, *valid.shape), np.nan)
    real = batch.reward[:, context : context + horizons[-1]].double()
    alive = torch.cat([torch.ones_like(proceed[:, :1]), proceed.cumprod(1)[:, :-1]], 1)
    error = (reward.double() - real).abs()
    totals = ((reward * alive).double().cumsum(1) - real.cumsum(1)).abs()
    count = torch.arange(1, horizons[-1] + 1, device=real.device)
    constants = (mean_reward * count - real.cumsum(1)).abs()
    pieces = [error[:, low:high].mean(1) for low, high in zip((0, *horizons), horizons, strict=False)]
    last = [step - 1 for step in horizons]
    found = torch.stack([torch.stack(pieces, 1), totals[:, last], constants[:, last]])
    return found.masked_fill(~valid, float("nan")).cpu().numpy()


def end_counts(batch: Batch, proceed: Tensor, horizons: Sequence[int]) -> np.ndarray:
    """Return (5, B, K) counts over the first h steps: steps, right, terminations, foreseen, false alarms."""
    count = torch.arange(1, horizons[-1] + 1, device=proceed.device)
    real = count <= batch.left[:, None]
    ended = (count == batch.left[:, None]) & batch.terminated[:, None]
    said = proceed < 0.5
    flags = torch.stack([real, real & (said == ended), ended, ended & said, real & said & ~ended])
    return flags.double().cumsum(2)[:, :, [step - 1 for step in horizons]].cpu().numpy()
