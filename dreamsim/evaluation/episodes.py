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
from dreamsim.core.random import Stream, derive_seed
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Episode, Obs
from dreamsim.data.collect import ENDLESS, Collector
from dreamsim.envs.adapt import Together, vectorise
from dreamsim.evaluation.intervals import Interval, interval

__all__ = ["Interval", "Outcome", "evaluate_policy", "interval", "overlap", "play_episode"]

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


def play_episode(make_env: Callable[[], gym.Env], policy: Policy, seed: int = 0, steps: int | None = None) -> Episode:
    """Return one real episode that begins with ``reset(seed=seed)``, of at most ``steps`` steps; None: a whole one.

    Raises ValueError for fewer than 1 step, RuntimeError when the episode lasts ENDLESS steps.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    envs = vectorise(make_env, 1)
    try:
        with Stream(derive_seed(seed, "policy")), torch.no_grad():
            return _played(envs, policy, seed, steps or ENDLESS)
    finally:
        envs.close()


def _played(envs: Any, policy: Policy, seed: int, most: int) -> Episode:
    codec: Codec = envs.codec
    obs, _ = envs.reset(seed=[seed])
    seen, over = [obs], np.zeros(1, bool)
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    memory, applied = None, np.zeros((1, codec.action_size), np.float32)
    while not over[0] and len(actions) < most:
        view = {name: torch.from_numpy(np.array(value)) for name, value in seen[-1].items()}
        act = policy.act(view, memory, torch.tensor([not actions]), torch.from_numpy(applied))
        memory, sent = act.memory, act.action.cpu().numpy()
        obs, reward, terminated, truncated, infos = envs.step(sent)
        raw = np.asarray(infos.get("applied", codec.settle(sent)), np.float32)
        applied, over = codec.scale.unit(raw), terminated | truncated
        seen.append(obs)
        actions.append(raw[0])
        rewards.append(reward[0])
    if most == ENDLESS and not over[0]:
        raise RuntimeError(f"the episode has lasted {ENDLESS:,} steps and nothing ends it; name a number: --steps N")
    fields = {name: np.stack([one[name][0] for one in seen]) for name in seen[0]}
    meta = {"seed": seed, "origin": "real"}
    ended = bool(over[0] and terminated[0])
    return Episode(fields, np.stack(actions), np.array(rewards, np.float32), ended, None, {}, meta)


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
