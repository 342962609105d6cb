"""Open-loop drift: how fast a dream leaves reality when it is given reality's own actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dreamsim.core import tree
from dreamsim.core.protocols import Decodes, WorldModel, find_power
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode, Obs, Rollout, State
from dreamsim.evaluation.cuts import Batch, Cut, choose, longest, spreads, take
from dreamsim.evaluation.errors import columns, end_counts, moments, observation_errors, reward_errors, view_distances
from dreamsim.imagination.imagine import Script, imagine

ROWS = 64  # windows dreamt at once, fewer where their observations would take more than
MEMORY = 256 * 2**20  # bytes


class Curve(NamedTuple):
    """Normalised errors (K,) by horizon: 0 is perfect, 1 is the spread of the data itself."""

    model: np.ndarray
    copy: np.ndarray  # of saying that nothing changes
    linear: np.ndarray  # of going on along the last observed change


class Rewards(NamedTuple):
    """Errors of imagined rewards (K,), in the environment's units."""

    step: np.ndarray  # mean absolute error of a step's reward, over the steps since the previous horizon
    total: np.ndarray  # mean absolute error of the sum over the first h steps
    constant: np.ndarray  # the same as ``total`` for a forecast that always says the mean reward


class Ends(NamedTuple):
    """Forecasts of termination: a step with proceed < 0.5 says that the episode ends here."""

    accuracy: np.ndarray  # (K,) share of right forecasts among the first h steps
    terminations: int  # that really happened inside the windows
    foreseen: float  # share of them forecast on their very step; NaN: none happened
    false_alarms: float  # share of the steps that did not terminate and were forecast to


class Drift(NamedTuple):
    """Open-loop errors of a model by horizon, beside two forecasts that know no dynamics."""

    horizons: tuple[int, ...]  # (K,) steps
    counts: np.ndarray  # (K,) windows long enough for each horizon
    context: int  # real steps seen before the dream begins
    observation: dict[str, Curve]  # by observation field; empty: the model shows no observations
    floor: dict[str, float]  # by observation field: the error before any dreaming, of showing the present
    latent: dict[str, Curve]  # by field of the model's view, against the belief that saw reality
    rewards: Rewards | None  # None: the recordings have none
    ends: Ends
    left_out: tuple[str, ...]  # observation fields without a distance (text)
    skipped: int  # episodes too short for one context


class _Asked(NamedTuple):
    """What all passes share."""

    horizons: tuple[int, ...]
    context: int
    scales: dict[str, Tensor]
    mean_reward: float


class _Errors(NamedTuple):
    """What one pass over (B,) windows measured; NaN where a window is too short."""

    shown: dict[str, np.ndarray]  # (3, B, K + 1) squared errors of model, copy, linear; the last axis begins at h = 0
    view: dict[str, np.ndarray]  # (3, B, K) squared distances, not yet normalised
    moments: dict[str, np.ndarray]  # (3, ...) count, sum and sum of squares of the real views
    reward: np.ndarray  # (3, B, K) step error, total error, total error of a constant
    ends: np.ndarray  # (5, B, K) steps, right, terminations, foreseen, false alarms


def drift(
    model: WorldModel,
    episodes: Sequence[Episode],
    codec: Codec,
    horizons: Sequence[int] | None = None,
    context: int = 5,
    windows: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Drift:
    """Dream along the recorded actions of real episodes and compare with what really came.

    A window sees ``context`` >= 1 real steps (start, then update), then ``imagine`` replays
    the recorded actions. ``horizons`` None: 1, 2, 4, ... and the longest possible. Every
    long enough episode gives one window from its beginning; the others, up to ``windows``
    in all, begin at random steps. At horizon h only windows with h real steps count.

    Observation errors are root mean squares in units of each component's standard
    deviation over the episodes (one deviation for all pixels of an image). Errors of the
    view are distances to the view of the belief that saw the real observations, in units
    of the root of that view's total variance. Raises ValueError if no episode is long enough.
    """
    cuts, skipped = choose(episodes, context, windows, seed)
    scales = tree.to(spreads(episodes, codec.observation_space), device)
    mean_reward = float(np.mean(np.concatenate([e.reward for e in episodes if e.reward is not None] or [np.zeros(1)])))
    asked = _Asked(_horizons(horizons, longest(cuts)), context, scales, mean_reward)
    length = context + asked.horizons[-1]
    rows = int(np.clip(MEMORY // (length * sum(part[0].nbytes for part in episodes[0].obs.values())), 1, ROWS))
    parts = []
    with torch.no_grad(), Stream(seed, device):
        for start in tqdm(range(0, len(cuts), rows), "open-loop drift", delay=10, unit="batch", leave=False):
            batch = take(episodes, cuts[start : start + rows], length, codec.scale, device)
            parts.append(_follow(model, batch, codec, asked))
    left_out = tuple(name for name in codec.observation_space.spaces if name not in scales)
    return _gather(parts, cuts, asked, episodes, left_out, skipped)


def shower(model: WorldModel, state: State, codec: Codec) -> Callable[[State], Obs] | None:
    """Return what turns states into observations: ``decode``, or ``view`` where it shows observations; else None."""
    decode = find_power(model, Decodes)
    if decode is not None:
        return decode
    return model.view if sees_observations(model.view(state), codec) else None


def sees_observations(view: Obs, codec: Codec) -> bool:
    """Say whether a model's view has the names and shapes of the real observations."""
    spaces = codec.observation_space.spaces
    return bool(view) and all(name in spaces and spaces[name].shape == v.shape[1:] for name, v in view.items())


def overall(found: Drift) -> tuple[str, Curve, float]:
    """Return what is judged ("observation", or "latent" where nothing is shown), its mean curve and its floor.

    Fields that never change and are never wrong, such as the name of a task, say nothing and do not count.
    """
    all_curves = found.observation or found.latent
    curves = {name: curve for name, curve in all_curves.items() if _tells(curve)} or all_curves
    mean = Curve(*(np.mean(sides, axis=0) for sides in zip(*curves.values(), strict=True)))
    floor = float(np.mean([found.floor[name] for name in curves])) if found.observation else 0.0
    return ("observation" if found.observation else "latent"), mean, floor


def limits(found: Drift, threshold: float = 0.5, negligible: float = 0.2) -> np.ndarray:
    """Return the largest error (K,) with which each measured horizon is trusted, in standard deviations of the data.

    It is the error of the better of two forecasts that know no dynamics (the last observation,
    a straight line), for a dream that is worse is worth nothing. Over a step or two of smooth
    motion no model beats a straight line and the difference does not matter, so it is never
    less than ``negligible`` (0.2: a twenty-fifth of the variance) above the error of showing
    the present; and it is never more than ``threshold`` (0.5: a quarter of the variance).
    """
    _, curve, floor = overall(found)
    simple = np.fmin(curve.copy, curve.linear)
    return np.minimum(threshold, np.fmax(simple, negligible + floor))


def trusted_horizon(found: Drift, threshold: float = 0.5, negligible: float = 0.2) -> int:
    """Return the largest measured horizon up to which every error is within its ``limits``; 0: none.

    The error is the mean over observation fields, over view fields where the model shows no observations.
    """
    within = overall(found)[1].model <= limits(found, threshold, negligible)  # False for NaN
    held = len(within) if within.all() else int(np.argmin(within))
    return found.horizons[held - 1] if held else 0


def check_horizons(wanted: Sequence[int] | None) -> None:
    """Raise ValueError for a horizon that is no number of steps."""
    wrong = [step for step in wanted or () if step < 1]
    if wrong:
        raise ValueError(f"a horizon is a number of steps, 1 or more; got {wrong[0]}")


def _tells(curve: Curve) -> bool:
    return bool((curve.copy > 0).any() or (curve.model > 0).any())  # False for NaN


def _horizons(wanted: Sequence[int] | None, reach: int) -> tuple[int, ...]:
    check_horizons(wanted)
    if wanted is None:
        wanted = [2**power for power in range(reach.bit_length()) if 2**power < reach] + [reach]
    steps = tuple(sorted({int(step) for step in wanted if step <= reach}))
    if not steps:
        raise ValueError(
            f"no horizon among {list(wanted)} can be measured: the longest window has {reach} steps after its "
            "context; record longer episodes or choose shorter horizons"
        )
    return steps


def _follow(model: WorldModel, batch: Batch, codec: Codec, asked: _Asked) -> _Errors:
    """Dream and really follow the same windows, comparing at every horizon."""
    context, horizons = asked.context, asked.horizons
    before, state = believe(model, batch, context)
    here, there = model.view(state), model.view(before)
    show = shower(model, state, codec)
    now, earlier = _at(batch.obs, context), _at(batch.obs, context - 1)
    shown, distances, views, rewards, proceeds = (
        [observation_errors(show, state, now, now, earlier, 0, asked.scales)],
        [],
        [],
        [],
        [],
    )
    for step, rollout, real in side_by_side(model, batch, state, horizons, context):
        target = _at(batch.obs, context + step)
        shown.append(observation_errors(show, rollout.final, target, now, earlier, step, asked.scales))
        if not sees_observations(here, codec):
            views.append(model.view(real))
            distances.append(view_distances(model.view(rollout.final), views[-1], here, there, step))
        rewards.append(rollout.reward)
        proceeds.append(rollout.proceed)
    valid = batch.left[:, None] >= torch.tensor(horizons, device=batch.left.device)
    proceed = torch.cat(proceeds, 1)
    return _Errors(
        columns(shown, torch.cat([torch.ones_like(valid[:, :1]), valid], 1)),
        columns(distances, valid),
        moments(views, valid),
        reward_errors(batch, torch.cat(rewards, 1), proceed, horizons, context, asked.mean_reward, valid),
        end_counts(batch, proceed, horizons),
    )


def side_by_side(
    model: WorldModel, batch: Batch, state: State, horizons: Sequence[int], context: int
) -> Iterator[tuple[int, Rollout, State]]:
    """Yield each horizon with the dream since the horizon before and the belief that saw reality."""
    dream, real, done = state, state, 0
    for step in horizons:
        rollout = imagine(model, Script(batch.action[:, context + done : context + step]), dream, step - done)
        for t in range(context + done, context + step):
            real = model.update(real, batch.action[:, t], _at(batch.obs, t + 1))
        yield step, rollout, real
        dream, done = rollout.final, step


def _at(obs: Obs, t: int) -> Obs:
    return tree.select(obs, (slice(None), t))


def believe(model: WorldModel, batch: Batch, context: int) -> tuple[State, State]:
    """Return the beliefs one step before and at the beginning of the dream."""
    state = before = model.start(_at(batch.obs, 0))
    for t in range(context):
        before, state = state, model.update(state, batch.action[:, t], _at(batch.obs, t + 1))
    return before, state


def _gather(
    parts: list[_Errors],
    cuts: Sequence[Cut],
    asked: _Asked,
    episodes: Sequence[Episode],
    left_out: tuple[str, ...],
    skipped: int,
) -> Drift:
    left = np.array([cut.left for cut in cuts])
    shown = {name: np.concatenate([part.shown[name] for part in parts], 1) for name in parts[0].shown}
    roots = {name: np.sqrt(np.nanmean(value, 1)) for name, value in shown.items()}
    rewards = None
    if all(episode.reward is not None for episode in episodes):
        rewards = Rewards(*np.nanmean(np.concatenate([part.reward for part in parts], 1), 1))
    return Drift(
        asked.horizons,
        (left[:, None] >= np.array(asked.horizons)).sum(0),
        asked.context,
        {name: Curve(*root[:, 1:]) for name, root in roots.items()},
        {name: float(root[0, 0]) for name, root in roots.items()},
        {name: _normalised(name, parts) for name in parts[0].view},
        rewards,
        _ends(np.concatenate([part.ends for part in parts], 1).sum(1)),
        left_out,
        skipped,
    )


def _normalised(name: str, parts: list[_Errors]) -> Curve:
    """Return distances of one field of the view in units of the root of its total variance."""
    count, total, squares = np.sum([part.moments[name] for part in parts], 0)
    variance = float((squares / count - (total / count) ** 2).clip(0).sum())
    distance = np.nanmean(np.concatenate([part.view[name] for part in parts], 1), 1)
    if (
        variance <= 1e-12
    ):  # a view that never varies tells nothing apart: no error of it means anything but that it is one
        return Curve(*np.where(distance > 1e-12, np.inf, np.nan))
    return Curve(*np.sqrt(distance / variance))


def _ends(counts: np.ndarray) -> Ends:
    steps, right, ended, foreseen, alarms = counts
    share = float(foreseen[-1] / ended[-1]) if ended[-1] else float("nan")
    return Ends(right / steps, int(ended[-1]), share, float(alarms[-1] / max(1, steps[-1] - ended[-1])))
