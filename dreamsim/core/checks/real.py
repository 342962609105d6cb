"""Checks of what is real: environments and stored episodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamsim.core.checks.expect import expect, misfit, spaces_in_words
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode


def check_env(make_env: Callable[[], gym.Env], steps: int = 200, seed: int = 0) -> list[str]:
    """Check that an environment keeps Gymnasium's contract as far as dreamsim relies on it."""
    first, second = make_env(), make_env()
    expect(isinstance(first, gym.Env), "a gymnasium.Env", type(first).__name__, "derive the class from gymnasium.Env")
    codec = Codec(first.observation_space, first.action_space)
    outside = _global_numbers()
    walks = [_Walk(env, codec, seed) for env in (first, second)]
    actions = _action_source(first.action_space, seed)
    began, differs = time.perf_counter(), walks[0].differs(walks[1])
    while walks[0].count < steps:
        action = next(actions)
        for walk in walks:  # interleaved: neither may feel the other
            walk.step(action)
        differs = differs or walks[0].differs(walks[1])
    rate = 2 * steps / (time.perf_counter() - began)
    for env in (first, second):
        env.close()
    touched = _global_numbers() != outside
    return [
        f"observations {spaces_in_words(codec.observation_space)}",
        f"actions {codec.raw_action_space} as {codec.action_size} numbers",
        f"{walks[0].ends} episode ends in {steps} random steps ({walks[0].terminations} of them terminations)"
        + ("" if walks[0].ends else "; wrap it in gymnasium.wrappers.TimeLimit if it never ends"),
        f"equal seeds give {'different episodes: a resumed run starts fresh ones' if differs else 'equal episodes'}",
        *(["it draws from numpy's global generator; draw from self.np_random"] if touched else []),
        f"about {rate:.0f} steps/s",
    ]


def check_episodes(episodes: Iterable[Episode], codec: Codec) -> list[str]:
    """Check stored episodes against the alignment rule and the spaces of their codec."""
    lengths, returns, ended, seen = [], [], 0, set()
    low, high = codec.scale.raw(-np.ones(codec.action_size)), codec.scale.raw(np.ones(codec.action_size))
    for number, episode in enumerate(episodes):
        where = f"episode {number}"
        _check_fields(episode, codec, where)
        inside = (episode.action >= low - 1e-4).all() and (episode.action <= high + 1e-4).all()
        expect(inside, f"{where}: actions in raw units within the space", "some outside", "store what was applied")
        print_of = (len(episode.action), *(hash(value.tobytes()) for value in episode.obs.values()))
        expect(print_of not in seen, f"{where} to differ from all others", "the same again", "drop the duplicate")
        seen.add(print_of)
        lengths.append(len(episode.action))
        ended += episode.terminated
        if episode.reward is not None:
            returns.append(float(episode.reward.sum()))
    expect(lengths, "at least one episode", "none", "collect or convert some first")
    spread = f"{min(lengths)} to {max(lengths)} steps" if min(lengths) < max(lengths) else f"{lengths[0]} steps each"
    return [
        f"{len(lengths)} episodes of {spread}, {sum(lengths)} in all",
        f"{ended} terminated, {len(lengths) - ended} cut short",
        f"returns {min(returns):.1f} to {max(returns):.1f}, mean {np.mean(returns):.1f}" if returns else "no rewards",
    ]


class _Walk:
    """One environment, stepped and reset, every answer checked."""

    def __init__(self, env: gym.Env, codec: Codec, seed: int) -> None:
        self.env, self.codec, self.seed = env, codec, seed
        self.count = self.ends = self.terminations = 0
        self._begin()

    def _begin(self) -> None:
        answer = self.env.reset(seed=self.seed + self.ends)
        expect(
            isinstance(answer, tuple) and len(answer) == 2,
            "reset(seed=...) to return (observation, info)",
            type(answer).__name__,
            "return both",
        )
        self.reward, self.ended = 0.0, False
        self._see(answer[0], "reset")

    def _see(self, raw: Any, where: str) -> None:
        wrong = misfit(self.env.observation_space, raw)
        expect(
            wrong is None,
            f"{where} to return an observation in the declared space",
            f"at step {self.count}: {wrong}",
            "correct its shape, dtype or range, or the space",
        )
        self.obs = self.codec.encode_obs(raw)
        for name, value in self.obs.items():
            finite = bool(np.isfinite(value).all())
            expect(
                finite, f"finite numbers in observation {name!r} at step {self.count}", "NaN or infinity", "find where"
            )

    def step(self, action: Any) -> None:
        if self.ended:
            self._begin()
        held = self.obs
        kept = {name: value.copy() for name, value in held.items()}
        answer = self.env.step(action)
        expect(
            isinstance(answer, tuple) and len(answer) == 5,
            "step to return (observation, reward, terminated, truncated, info)",
            f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__,
            "return all five",
        )
        raw, reward, terminated, truncated, _ = answer
        for name, value in held.items():
            expect(
                np.array_equal(value, kept[name]),
                f"observation {name!r} to stay as returned",
                "it changed with the next step",
                "return a copy",
            )
        expect(
            np.isfinite(float(reward)), f"a finite reward at step {self.count}", reward, "find the step that makes it"
        )
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            expect(
                isinstance(flag, (bool, np.bool_)),
                f"{name} to be a bool",
                type(flag).__name__,
                "return True or False",
            )
        self.reward, self.ended = float(reward), bool(terminated or truncated)
        self._see(raw, "step")
        self.count += 1
        self.ends += self.ended
        self.terminations += bool(terminated)

    def differs(self, other: _Walk) -> bool:
        """Say whether two walks stand at different places."""
        same = all(np.array_equal(value, other.obs[name]) for name, value in self.obs.items())
        return not same or (self.reward, self.ended) != (other.reward, other.ended)


def _action_source(space: spaces.Space, seed: int) -> Iterator[Any]:
    space.seed(seed)
    while True:
        yield space.sample()


def _check_fields(episode: Episode, codec: Codec, where: str) -> None:
    count = len(episode.action)
    expect(count > 0, f"{where}: at least one step", "none", "drop it")
    expect(
        episode.action.shape == (count, codec.action_size),
        f"{where}: actions (T, {codec.action_size})",
        episode.action.shape,
        "flatten with the codec",
    )
    expect(
        episode.obs.keys() == codec.observation_space.spaces.keys(),
        f"{where}: observations {sorted(codec.observation_space.spaces)}",
        sorted(episode.obs),
        "encode with the codec",
    )
    for name, value in episode.obs.items():
        shape = (count + 1, *(codec.observation_space[name].shape or ()))
        expect(
            value.shape == shape,
            f"{where}: observation {name!r} of shape (T+1, ...) = {shape}",
            value.shape,
            "keep the last observation",
        )
        expect(np.isfinite(value).all(), f"{where}: finite observation {name!r}", "NaN or infinity", "drop the episode")
    for name, row in (("reward", episode.reward), *episode.trace.items()):
        expect(
            row is None or len(row) == count,
            f"{where}: {name} of length T = {count}",
            None if row is None else len(row),
            "one value a step",
        )
    expect(
        episode.reward is None or np.isfinite(episode.reward).all(),
        f"{where}: finite rewards",
        "NaN or infinity",
        "drop the episode",
    )
    if episode.time is not None:
        expect(
            len(episode.time) == count + 1 and (np.diff(episode.time) > 0).all(),
            f"{where}: T+1 rising times in seconds",
            episode.time[:4],
            "sort them",
        )
    json.dumps(episode.meta)


def _global_numbers() -> bytes:
    return repr(np.random.get_state(legacy=False)).encode()
