"""One judgement of a policy and the dream it may live in: reality first, then the dream beside it."""

from __future__ import annotations

import csv
import datetime
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from dreamsim.core.protocols import MissingPower, Policy, Uncertain, WorldModel, find_power
from dreamsim.core.spaces import Codec
from dreamsim.evaluation.calibration import Calibration, calibrate
from dreamsim.evaluation.delay import delayed_returns
from dreamsim.evaluation.episodes import Outcome, evaluate_policy, overlap
from dreamsim.evaluation.film import CannotFilm, Film, dream_film, film_of_reality
from dreamsim.evaluation.openloop import Drift, check_horizons, drift, trusted_horizon
from dreamsim.evaluation.outcomes import Outcomes, foretell
from dreamsim.evaluation.trust import Beside, compare

SHORT = 15  # steps: the first horizon of the comparison of returns, a usual length of imagination


class Judgement(NamedTuple):
    """Everything that a report tells."""

    task: str
    policy: str
    world: str | None  # None: no dream was judged
    outcome: Outcome
    drift: Drift | None
    trusted: int | None  # steps; 0: none
    threshold: float
    negligible: float
    beside: list[Beside]
    film: Film | None
    delayed: dict[int, np.ndarray]  # real returns (n,) when every action comes so many steps late
    learning: list[tuple[float, float]]  # (environment steps, mean return) while the run was trained
    about: dict[str, Any]
    notes: list[str]  # what is missing, and why
    tags: list[str]  # what makes the result doubtful
    calibration: Calibration | None = None  # of the world's uncertainty; None: it tells none, or shows no observations
    outcomes: Outcomes | None = None  # how right single rewards and ends are, from real beliefs


def judge(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    world: WorldModel | None = None,
    episodes: int = 10,
    seed: int = 0,
    horizons: Sequence[int] | None = None,
    folder: str | Path | None = None,
    *,
    task: str = "",
    policy_name: str = "",
    world_name: str = "",
    codec: Codec | None = None,
    success_return: float | None = None,
    context: int = 5,
    dream_context: int = 0,
    threshold: float = 0.5,
    negligible: float = 0.2,
    film: bool = True,
    delays: Sequence[int] = (1, 2),
    processes: int = 0,
    device: torch.device | str = "cpu",
    about: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Judgement:
    """Judge ``policy`` (on real observations) in the real environment and, if there is one, in ``world``.

    ``folder`` is the run that trained them, for its learning curve and its training seeds;
    ``codec`` that of the world, to check that it fits the environment. ``horizons`` are those
    of the open-loop drift, None: powers of two and the whole episode. The dream is compared
    with reality over the first 15 steps, the trusted horizon and the whole episode. The real
    episodes are repeated with every action ``delays`` steps late, for what works only without
    delay does not work on a robot.
    """
    check_horizons(horizons)
    own = _codec(make_env)
    if codec is not None:
        _check_fits(codec, own)
    outcome = evaluate_policy(make_env, policy, episodes, seed, processes, success_return, device)
    late = delayed_returns(make_env, policy, delays, episodes, seed, processes, device)
    told, tags = list(notes), _tags(outcome, folder)
    found, trusted, doubted, foretold, beside = None, None, None, None, []
    if world is None:
        told.append("No world model was given, so there is no dream to compare with.")
    else:
        found, reason = _drift(world, outcome, own, horizons, context, seed, device)
        trusted = None if found is None else trusted_horizon(found, threshold, negligible)
        told += [reason] if reason else []
        doubted = _calibration(world, outcome, own, threshold, seed, device)
        foretold = foretell(world, outcome.episodes, own, seed=seed, device=device)
        wanted = {f"{SHORT} steps": SHORT, "trusted": trusted or 0, "full": int(outcome.lengths.max())}
        try:
            beside = compare(world, policy, outcome.episodes, own, wanted, dream_context, seed, device)
        except MissingPower as error:
            told.append(f"No return in the dream: {error}")
    seen = None
    if film:
        try:
            seen = _film(make_env, world, outcome, own, context, seed, device)
        except CannotFilm as error:
            told.append(f"No film: {error}.")
    return Judgement(
        task,
        policy_name,
        None if world is None else world_name,
        outcome,
        found,
        trusted,
        threshold,
        negligible,
        beside,
        seen,
        late,
        learning_curve(folder),
        {
            "evaluation seed": seed,
            "evaluated at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "evaluation seconds": round(outcome.seconds, 1),
            "environment steps evaluated": outcome.env_steps,
            **(about or {}),
        },
        told,
        tags,
        doubted,
        foretold,
    )


def learning_curve(folder: str | Path | None) -> list[tuple[float, float]]:
    """Return (environment steps, mean return) from a run's metrics.csv; empty where there is none."""
    file = Path(folder or ".") / "metrics.csv"
    if folder is None or not file.is_file():
        return []
    points = []
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            step = row.get("env_steps") or row.get("step")
            value = row.get("return_mean") or row.get("return")
            if step and value:
                points.append((float(step), float(value)))
    return sorted(points)


def training_seeds(folder: str | Path | None) -> list[int]:
    """Return the seeds of the episodes in a run's store; empty where it has none."""
    place = Path(folder or ".") / "store"
    if folder is None or not place.is_dir():
        return []
    from dreamsim.data.store import Store

    store = Store(place, mend=False)
    metas = (store.episode(number).meta for number in range(len(store)))
    return [int(meta["seed"]) for meta in metas if "seed" in meta]


def _tags(outcome: Outcome, folder: str | Path | None) -> list[str]:
    shared = overlap(outcome.seeds, training_seeds(folder))
    if not shared:
        return []
    tag = (
        f"{len(shared)} of {len(outcome.seeds)} evaluation episodes begin from seeds that training used "
        f"({', '.join(map(str, shared[:5]))}{', ...' if len(shared) > 5 else ''}): this is no held-out result; "
        "choose another evaluation seed"
    )
    warnings.warn(tag, stacklevel=3)
    return [tag]


def _codec(make_env: Callable[[], gym.Env]) -> Codec:
    env = make_env()
    try:
        return Codec(env.observation_space, env.action_space)
    finally:
        env.close()


def _check_fits(world: Codec, real: Codec) -> None:
    for name in ("observation_space", "raw_action_space"):
        expected, came = getattr(world, name), getattr(real, name)
        if expected != came:
            raise ValueError(
                f"the world was trained with the {name.removeprefix('raw_').replace('_', ' ')} {expected}, "
                f"this environment has {came}; judge it in the environment it was trained on"
            )


def _drift(
    world: WorldModel,
    outcome: Outcome,
    codec: Codec,
    horizons: Sequence[int] | None,
    context: int,
    seed: int,
    device: torch.device | str,
) -> tuple[Drift | None, str]:
    """Return the drift, or why it cannot be measured; a context too long for the episodes is cut."""
    context = min(context, int(outcome.lengths.max()) - 1)
    if context < 1:
        return None, "No open-loop drift: every episode ended after one step."
    found = drift(world, outcome.episodes, codec, horizons, context, seed=seed, device=device)
    left = sorted(set(horizons or ()) - set(found.horizons))
    reach = int(outcome.lengths.max()) - context
    told = f"Horizons {left} were not measured: the longest episode leaves {reach} steps after {context} seen ones."
    return found, told if left else ""


def _calibration(
    world: WorldModel, outcome: Outcome, codec: Codec, tolerance: float, seed: int, device: torch.device | str
) -> Calibration | None:
    """Return how well the world's uncertainty foretells its errors on the real episodes."""
    if find_power(world, Uncertain) is None or outcome.lengths.max() < 2:
        return None
    try:
        return calibrate(world, outcome.episodes, codec, tolerance=tolerance, seed=seed, device=device)
    except MissingPower:
        return None


def _film(
    make_env: Callable[[], gym.Env],
    world: WorldModel | None,
    outcome: Outcome,
    codec: Codec,
    context: int,
    seed: int,
    device: torch.device | str,
) -> Film:
    """Film the episode whose return is the median."""
    number = int(np.argsort(outcome.returns)[len(outcome.returns) // 2])
    if world is None:
        return film_of_reality(make_env, outcome.episodes[number])
    return dream_film(make_env, world, codec, outcome.episodes, number, context, seed, device)
