"""Several tasks as one environment, for a model and a policy that learn all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamsim.envs.adapt import Adapted, adapt

Obs = dict[str, np.ndarray]


class Tasks(gym.Env):
    """K tasks, one of which an episode has: the one asked for by ``reset(options={"task": k})``, else a random one.

    Vector observations and actions are padded with zeros to those of the largest task. What a model must know of
    its task are observations: ``task/name`` (K,) one-hot, ``task/acts`` (A,), 1 where a component of the
    action does something, and ``task/steps`` (1,), the decisions of an episode; ``observation`` (O,) is the rest.
    Actions are in [-1, 1] for every task; what padding is set to changes nothing. ``info["task"]`` is k.

    ``steps`` is the length of an episode for tasks that do not say theirs in their metadata (``episode_steps``) or
    their registration. Raises ValueError for tasks with images, with actions that are not a Box, of unknown length,
    or of different action repeat.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, tasks: list[Callable[[], gym.Env]], steps: int | None = None) -> None:
        if not tasks:
            raise ValueError("Tasks needs at least one task, got none")
        self._tasks = [adapt(task()) for task in tasks]
        self._steps = [_episode_steps(task, number, steps) for number, task in enumerate(self._tasks)]
        self._sizes = [_vector_size(task, number) for number, task in enumerate(self._tasks)]
        self._acts = [task.codec.action_size for task in self._tasks]
        repeats = {task.metadata.get("action_repeat", 1) for task in self._tasks}
        if len(repeats) > 1:
            raise ValueError(f"all tasks must hold an action equally long, got repeats {sorted(repeats)}")
        count, most, widest = len(self._tasks), max(self._acts), max(self._sizes)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(-np.inf, np.inf, (widest,), np.float32),
                "task/name": spaces.Box(0, 1, (count,), np.float32),
                "task/acts": spaces.Box(0, 1, (most,), np.float32),
                "task/steps": spaces.Box(1, np.inf, (1,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (most,), np.float32)
        self.metadata = {
            **type(self).metadata,
            "action_repeat": repeats.pop(),
            "episode_steps": max(self._steps),
            "render_fps": self._tasks[0].metadata.get("render_fps", 30),
        }
        self.render_mode = "rgb_array"
        self._now = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        count = len(self._tasks)
        asked = None if options is None else options.get("task")
        if asked is not None and not 0 <= int(asked) < count:
            raise ValueError(f"there are tasks 0 to {count - 1}, asked for {asked}")
        self._now = int(self.np_random.integers(count)) if asked is None else int(asked)
        own = int(self.np_random.integers(2**31)) if seed is not None else None
        obs, info = self._tasks[self._now].reset(seed=own)
        return self._told(obs), {**info, "task": self._now}

    def step(self, action: np.ndarray) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._tasks[self._now].step(action[: self._acts[self._now]])
        info.pop("applied", None)  # in the task's own units and without padding
        return self._told(obs), reward, terminated, truncated, {**info, "task": self._now}

    def render(self) -> Any:
        """Return the picture of the task that is being lived."""
        return self._tasks[self._now].render()

    def close(self) -> None:
        for task in self._tasks:
            task.close()

    def _told(self, obs: Obs) -> Obs:
        now = self._now
        vector = np.concatenate([np.asarray(part, np.float32).reshape(-1) for part in obs.values()])
        padded = np.zeros(max(self._sizes), np.float32)
        padded[: len(vector)] = vector
        return {
            "observation": padded,
            "task/name": np.eye(len(self._tasks), dtype=np.float32)[now],
            "task/acts": (np.arange(max(self._acts)) < self._acts[now]).astype(np.float32),
            "task/steps": np.array([self._steps[now]], np.float32),
        }


def _vector_size(task: Adapted, number: int) -> int:
    """Return how many numbers a task observes. Raises ValueError for images and for actions that are not numbers."""
    for name, part in task.codec.observation_space.spaces.items():
        if part.dtype == np.uint8:
            raise ValueError(f"task {number} observes {name!r} as {part}; only vectors can be padded to one length")
    if not isinstance(task.codec.raw_action_space, spaces.Box):
        raise ValueError(
            f"task {number} acts in {task.codec.raw_action_space}; only the numbers of a Box can be padded"
        )
    return sum(int(np.prod(part.shape or ())) for part in task.codec.observation_space.spaces.values())


def _episode_steps(task: Adapted, number: int, steps: int | None) -> int:
    registered = None if task.spec is None else task.spec.max_episode_steps
    known = task.metadata.get("episode_steps") or registered or steps
    if not known:
        raise ValueError(f"task {number} does not say how long an episode is; give Tasks steps=")
    return int(known)
