"""A dream judged by recordings alone: no environment is stepped."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamsim.core.protocols import WorldModel
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.store import Store
from dreamsim.data.windows import split
from dreamsim.evaluation.episodes import Outcome
from dreamsim.evaluation.judge import Judgement
from dreamsim.evaluation.openloop import drift, trusted_horizon
from dreamsim.evaluation.outcomes import foretell

NOTE = "No environment was stepped: the episodes are recordings, their returns those of whoever acted in them."


def held_out(about: dict[str, Any], count: int) -> list[Episode]:
    """Return the first ``count`` episodes that a pretraining held out, as its run's ``about`` tells them.

    Raises FileNotFoundError where the recordings are gone, ValueError where the run names none.
    """
    if "recordings" not in about:
        raise ValueError("this run names neither an environment nor recordings; name a world to judge in with --world")
    if not Path(about["recordings"]).is_dir():
        raise FileNotFoundError(
            f"the recordings {about['recordings']} that this run learned from are not here; run from the folder it was "
            "trained in, or name a world to judge in with --world"
        )
    store = Store(about["recordings"], mend=False)
    numbers = split(about["episodes"], about["hold_out"], about["seed"]).held_out
    return [store.episode(int(number)) for number in numbers[:count]]


def judge_recorded(
    world: WorldModel,
    episodes: Sequence[Episode],
    codec: Codec,
    horizons: Sequence[int] | None = None,
    seed: int = 0,
    *,
    task: str = "",
    world_name: str = "",
    context: int = 5,
    threshold: float = 0.5,
    negligible: float = 0.2,
    device: torch.device | str = "cpu",
    about: dict[str, Any] | None = None,
) -> Judgement:
    """Judge the dreams of ``world`` along the actions of recorded episodes: drift, rewards and ends."""
    returns = np.array([np.nan if e.reward is None else float(np.sum(e.reward, dtype=np.float64)) for e in episodes])
    lengths = np.array([len(episode.action) for episode in episodes])
    numbers = tuple(int(episode.meta.get("seed", number)) for number, episode in enumerate(episodes))
    outcome = Outcome(returns, lengths, None, "", numbers, 0, 0.0, list(episodes))
    context = min(context, int(lengths.max()) - 1)
    found = drift(world, episodes, codec, horizons, context, seed=seed, device=device)
    when = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return Judgement(
        task=task,
        policy="as recorded, held out from training",
        world=world_name,
        outcome=outcome,
        drift=found,
        trusted=trusted_horizon(found, threshold, negligible),
        threshold=threshold,
        negligible=negligible,
        beside=[],
        film=None,
        delayed={},
        learning=[],
        about={"evaluation seed": seed, "evaluated at": when, **(about or {})},
        notes=[NOTE],
        tags=[],
        outcomes=foretell(world, episodes, codec, seed=seed, device=device),
    )
