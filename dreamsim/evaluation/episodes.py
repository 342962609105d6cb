"""A policy's return and success in the real environment, over whole episodes from known seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dreamsim.core.protocols import Policy
from dreamsim.core.types import Act, Episode, Obs
from dreamsim.data.collect import Collector
from dreamsim.envs.adapt import Together, vectorise
from dreamsim.evaluation.intervals import Interval, interval

__all__ = ["Interval", "Outcome", "evaluate_policy", "interval", "overlap"]

AT_ONCE = 16  # environments stepped side by side


class Outcome(NamedTuple):
    """What a policy did in n real episodes."""

    returns: np.ndarray  # (n,) undiscounted sums of rewards
    lengths: np.ndarray  # (n,) steps
    successes: np.ndarray | None  # (n,) 1, 0 or NaN where an episode does not say; None: nobody says what success is
    success_rule: str  # who says so: "given by the environment", "return of at least 700", ""
    seeds: tuple[int, ...]  # of the resets, one per episode
    env_steps: int  # of the raw environment, repeated ones counted
    seconds: float
    episodes: list[Episode]  # whole, in raw units; their obs[0] are the starts


def evaluate_policy(
    make_env: Callable[[], gym.Env],
    policy: Policy,
    episodes: int = 10,
    seed: int = 0,
    processes: int = 0,
    success_return: float | None = None,
    device: torch.device | str = "cpu",
) -> Outcome:
    """Run ``policy`` (on real observations) for whole episodes, side by side in one vector environment.

    Episode i begins from a seed derived from (seed, "evaluate", i), which no training
    collector derives, so equal calls give equal episodes. Success is what the environment's
    last info says ("success" or "is_success"); where it says nothing, a return of at least
    ``success_return``, if given; else it is absent. A progress bar appears after 10 seconds.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least 1 episode, got {episodes}")
    begun = time.perf_counter()
    count = min(episodes, AT_ONCE)
    envs = vectorise(make_env, count, processes)
    try:
        collector = Collector(envs, envs.codec, seed=seed, device=device)
        with tqdm(
            total=_vector_steps(envs, episodes), desc="evaluating", delay=10, mininterval=0.5, unit="step", leave=False
        ) as bar:
            found = collector.episodes(_Watched(policy, bar, count), episodes)
    finally:
        envs.close()
    returns = np.array([_total(episode) for episode in found])
    successes, rule = _successes(found, returns, success_return)
    return Outcome(
        returns,
        np.array([len(episode.action) for episode in found]),
        successes,
        rule,
        tuple(episode.meta["seed"] for episode in found),
        sum(len(episode.action) * episode.meta.get("action_repeat", 1) for episode in found),
        time.perf_counter() - begun,
        found,
    )


def overlap(evaluated: Sequence[int], trained: Sequence[int]) -> list[int]:
    """Return the seeds that both the evaluation and the training began episodes from."""
    return sorted(set(evaluated) & set(trained))


def _total(episode: Episode) -> float:
    assert episode.reward is not None  # a collector always has rewards
    return float(episode.reward.sum(dtype=np.float64))


def _successes(
    episodes: Sequence[Episode], returns: np.ndarray, success_return: float | None
) -> tuple[np.ndarray | None, str]:
    told = np.array([float(episode.meta.get("success", np.nan)) for episode in episodes])
    if not np.isnan(told).all():
        return told, "given by the environment"
    if success_return is None:
        return None, ""
    return (returns >= success_return).astype(float), f"return of at least {success_return:g}"


def _vector_steps(envs: Any, episodes: int) -> int | None:
    """Return how many vector steps are to come at most, where the environment declares its time limit."""
    spec = envs.envs[0].spec if isinstance(envs, Together) else None
    limit = envs.metadata.get("episode_steps") or (None if spec is None else spec.max_episode_steps)
    return None if limit is None else -(-episodes // envs.num_envs) * int(limit)


class _Watched:
    """A policy that moves a progress bar at every step and tells how many episodes have ended."""

    def __init__(self, policy: Policy, bar: tqdm, running: int) -> None:
        self.policy, self.bar, self.running = policy, bar, running
        self.begun = 0

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act as the policy does."""
        self.begun += 0 if first is None else int(first.sum())
        self.bar.set_postfix_str(f"{max(0, self.begun - self.running)} episodes ended", refresh=False)
        self.bar.update()
        return self.policy.act(view, memory, first, applied)
