"""Any Gymnasium environment as models and policies see it: named arrays in, one vector in [-1, 1] out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dreamsim.core.spaces import Codec

Info = dict[str, Any]


class Adapted(gym.Wrapper):
    """An environment behind a ``Codec``: flat dict of arrays, action vector (A,) float32 in [-1, 1].

    The vector of a Discrete action is read by its largest component. An action that is not
    finite raises ValueError naming the environment and the step. An environment that did
    something else than it was asked (a real robot) says so by ``info["applied"]``, an action
    in its own form, which leaves here as a vector (A,) in raw units.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.codec = Codec(env.observation_space, env.action_space)
        self.observation_space = self.codec.observation_space
        self.action_space = unit_box(self.codec)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, np.ndarray], Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self.codec.encode_obs(obs), info

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        if not np.isfinite(action).all():
            raise ValueError(f"{self.env} was given the action {action} at step {self._steps}: it must be finite")
        return self.take(self.codec.settle(action))

    def take(self, raw: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        """Step by a settled action vector (A,) in raw units."""
        obs, reward, terminated, truncated, info = self.env.step(self.codec.unflatten_action(raw))
        self._steps += 1
        if "applied" in info:
            info = {**info, "applied": self.codec.flatten_action(info["applied"])}
        return self.codec.encode_obs(obs), float(reward), bool(terminated), bool(truncated), info


def adapt(env: gym.Env) -> Adapted:
    """Return an environment in adapted form; one that is already adapted is returned as it is."""
    return env if isinstance(env, Adapted) else Adapted(env)


def unit_box(codec: Codec) -> spaces.Box:
    """Return the space of action vectors, Box(-1, 1, (A,)), whatever the environment's own actions are."""
    return spaces.Box(-1.0, 1.0, (codec.action_size,), np.float32)


class Repeat(gym.Wrapper):
    """Hold each action for ``times`` steps and sum the rewards; ends where the environment ends."""

    def __init__(self, env: gym.Env, times: int) -> None:
        if times < 1:
            raise ValueError(f"an action must be held for 1 or more steps, got {times}")
        super().__init__(env)
        self._times = times
        self.metadata = {**env.metadata, "action_repeat": times * env.metadata.get("action_repeat", 1)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Chunk(gym.Wrapper):
    """K actions a step, as a model of K-frame chunks acts: reality for such a model.

    The action is a tuple of K raw actions. Each observation name holds the K newest ones in
    order, (K, ...), of which the first ``frames`` are real and the rest zeros: one after a
    reset, fewer than K where the episode ended within the chunk. Rewards are summed.
    """

    def __init__(self, env: gym.Env, length: int) -> None:
        if length < 1:
            raise ValueError(f"a chunk holds 1 or more actions, got {length}")
        super().__init__(env)
        self._codec = Codec(env.observation_space, env.action_space)
        self._length = length
        self.action_space = spaces.Tuple([env.action_space] * length)
        parts = {_plain(name): part for name, part in self._codec.observation_space.items()}
        if "frames" in parts or len(parts) < len(self._codec.observation_space.spaces):
            raise ValueError(
                f"observations {sorted(self._codec.observation_space)} cannot be chunked: two become one name when "
                '"/" is written ".", or one is "frames", which counts the real ones; rename it'
            )
        self.observation_space = spaces.Dict(
            {name: batch_space(part, length) for name, part in parts.items()}
            | {"frames": spaces.Box(1, length, (1,), np.float32)}
        )
        self.metadata = {**env.metadata, "action_repeat": length * env.metadata.get("action_repeat", 1)}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, np.ndarray], Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._stack([obs]), info

    def step(self, action: Sequence[Any]) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        seen, applied, total, reported = [], [*action], 0.0, False
        for place, part in enumerate(action):
            obs, reward, terminated, truncated, info = self.env.step(part)
            seen.append(obs)
            total += float(reward)
            if "applied" in info:
                applied[place], reported = info["applied"], True
            if terminated or truncated:
                break
        info = {**info, "applied": tuple(applied)} if reported else info
        return self._stack(seen), total, terminated, truncated, info

    def _stack(self, seen: list[Any]) -> dict[str, np.ndarray]:
        rows = [self._codec.encode_obs(obs) for obs in seen]
        stacked = {"frames": np.array([len(rows)], np.float32)}
        for name, first in rows[0].items():
            stack = np.zeros((self._length, *first.shape), first.dtype)
            stack[: len(rows)] = [row[name] for row in rows]
            stacked[_plain(name)] = stack
        return stacked


class Together(VectorEnv):
    """Adapted environments stepped one after another in this process; autoreset is DISABLED.

    Observations are fresh dicts of (N, ...) arrays, actions (N, A) in [-1, 1]. A row that has
    ended must be reset by ``reset(seed=[...], options={"reset_mask": mask (N,) bool})``.
    """

    def __init__(self, make_envs: Sequence[Callable[[], gym.Env]]) -> None:
        self.envs = [adapt(make_env()) for make_env in make_envs]
        first = self.envs[0]
        _check_equal_spaces(self.envs)
        self.num_envs = len(self.envs)
        self.codec = first.codec
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        single = self.codec.observation_space
        self._obs = {name: np.zeros((self.num_envs, *(p.shape or ())), p.dtype) for name, p in single.items()}
        self._over = np.ones(self.num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None
    ) -> tuple[dict[str, np.ndarray], Info]:
        options = dict(options or {})
        mask = checked_mask(options.pop("reset_mask", np.ones(self.num_envs, bool)), self.num_envs)
        seeds = row_seeds(seed, self.num_envs)
        infos: Info = {}
        for row in np.flatnonzero(mask).tolist():
            obs, info = self.envs[row].reset(seed=seeds[row], options=options or None)
            self._write(row, obs)
            infos = self._add_info(infos, info, row) if info else infos
        self._over &= ~mask
        return self._read(), infos

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, Info]:
        if self._over.any():
            ended = np.flatnonzero(self._over).tolist()
            raise RuntimeError(f"environments {ended} have ended; reset them by options['reset_mask'] before stepping")
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: Info = {}
        finite = np.isfinite(actions).all(-1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise ValueError(f"row {row}, {self.envs[row]}, was given the action {actions[row]}: it must be finite")
        for row, (env, raw) in enumerate(zip(self.envs, self.codec.settle(actions), strict=True)):
            obs, rewards[row], terminated[row], truncated[row], info = env.take(raw)
            self._write(row, obs)
            infos = self._add_info(infos, info, row) if info else infos
        self._over = terminated | truncated
        return self._read(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **_: Any) -> None:
        for env in self.envs:
            env.close()

    def _write(self, row: int, obs: dict[str, np.ndarray]) -> None:
        for name, value in obs.items():
            self._obs[name][row] = value

    def _read(self) -> dict[str, np.ndarray]:
        return {name: value.copy() for name, value in self._obs.items()}


class Apart(AsyncVectorEnv):
    """Adapted environments in processes of their own, at most ``at_once`` of them running; DISABLED."""

    def __init__(self, make_envs: Sequence[Callable[[], gym.Env]], at_once: int) -> None:
        makers = [functools.partial(_make_adapted, make_env) for make_env in make_envs]
        super().__init__(makers, context="spawn", autoreset_mode=AutoresetMode.DISABLED, max_concurrency=at_once)
        self.codec: Codec = self.call("codec")[0]


def vectorise(make_env: Callable[[], gym.Env], count: int, processes: int = 0) -> Together | Apart:
    """Return ``count`` adapted environments as one vector environment in DISABLED mode.

    ``processes`` 0 steps them in this process, the fastest for cheap environments; more gives
    each a process of its own and lets that many run at once. Both give equal episodes.
    """
    if count < 1:
        raise ValueError(f"the number of environments must be 1 or more, got {count}")
    return Apart([make_env] * count, processes) if processes else Together([make_env] * count)


class Translated(VectorWrapper):
    """A foreign vector environment in adapted form; it goes on resetting itself in its own mode."""

    def __init__(self, envs: VectorEnv, codec: Codec) -> None:
        super().__init__(envs)
        self.codec = codec
        self._raw_obs_space, self._raw_single_action = envs.observation_space, envs.single_action_space
        self.single_observation_space, self.single_action_space = codec.observation_space, unit_box(codec)
        self.observation_space = batch_space(self.single_observation_space, envs.num_envs)
        self.action_space = batch_space(self.single_action_space, envs.num_envs)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[dict[str, np.ndarray], Info]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._encode(obs), infos

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], Any, Any, Any, Info]:
        rows = [self.codec.decode_action(action) for action in actions]
        empty: Any = create_empty_array(self._raw_single_action, len(rows))
        raw = concatenate(self._raw_single_action, rows, empty)
        obs, reward, terminated, truncated, infos = self.env.step(raw)
        if "final_obs" in infos:
            final = np.full(self.num_envs, None, object)
            for row in np.flatnonzero(infos["_final_obs"]):
                final[row] = self.codec.encode_obs(infos["final_obs"][row])
            infos = {**infos, "final_obs": final}
        return self._encode(obs), reward, terminated, truncated, infos

    def _encode(self, obs: Any) -> dict[str, np.ndarray]:
        rows = [self.codec.encode_obs(row) for row in iterate(self._raw_obs_space, obs)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def speak(envs: VectorEnv, codec: Codec) -> VectorEnv:
    """Return a vector environment in the codec's form, whether it speaks that or its raw form."""
    spoken = (envs.single_observation_space, envs.single_action_space)
    if spoken == (codec.observation_space, unit_box(codec)):
        return envs
    if spoken == (codec.raw_observation_space, codec.raw_action_space):
        return Translated(envs, codec)
    raise ValueError(
        f"{envs} has observations {spoken[0]} and actions {spoken[1]}, the codec translates "
        f"{codec.raw_observation_space} and {codec.raw_action_space}; make the codec from these environments"
    )


def _plain(name: str) -> str:
    """A nested observation's name as one that may be joined again."""
    return name.replace("/", ".")


def _make_adapted(make_env: Callable[[], gym.Env]) -> Adapted:
    return adapt(make_env())


def _check_equal_spaces(envs: Sequence[Adapted]) -> None:
    for number, env in enumerate(envs):
        for name in ("raw_observation_space", "raw_action_space"):
            expected, came = (getattr(e.codec, name) for e in (envs[0], env))
            if came != expected:
                raise ValueError(f"environment {number} has {name} {came}, environment 0 {expected}; all must be equal")


def row_seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return one seed for each row, as Gymnasium counts them up from a single one."""
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + row for row in range(count)]
    if len(seed) != count:
        raise ValueError(f"expected one seed for each of {count} environments, got {len(seed)}")
    return list(seed)


def checked_mask(mask: Any, count: int) -> np.ndarray:
    """Return a reset mask (N,) bool, or raise ValueError saying what it must be."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (count,) or not mask.any():
        raise ValueError(f"reset_mask must be a bool array ({count},) with at least one True, got {mask!r}")
    return mask
