"""Worlds with known answers, for tests and documents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Clock(gym.Env):
    """The observation is the number of steps since reset; reward 1; ends at step ``end``.

    ``terminates`` False makes the end a truncation. ``options={"end": k}`` at reset changes
    the length of one episode, ``spread`` draws it from [end, end + spread] by the seed.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, end: int = 3, terminates: bool = True, spread: int = 0) -> None:
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._usual, self._terminates, self._spread = end, terminates, spread
        self._end, self._time = end, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self._spread + 1)) if self._spread else 0
        self._end, self._time = (options or {}).get("end", self._usual + drawn), 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        over = self._time >= self._end
        return self._observe(), 1.0, over and self._terminates, over and not self._terminates, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._time], np.float32)


class Line(gym.Env):
    """A point on [-1, 1] moves by action / 10; reward 1 - |position - goal|; truncated after ``end`` steps.

    The next position is clip(position + action / 10, -1, 1), so a model can be exactly right.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    GOAL = 0.5

    def __init__(self, end: int = 20) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._end, self._time, self._position = end, 0, np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._time = 0
        self._position = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._position.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        self._position = np.clip(self._position + np.float32(0.1) * np.asarray(action, np.float32), -1, 1)
        reward = 1.0 - abs(float(self._position[0]) - self.GOAL)
        return self._position.copy(), reward, False, self._time >= self._end, {}


class Echo(gym.Env):
    """A text world: the observation repeats the word that the action spells; truncated after ``end`` steps.

    An action is ``length`` bytes as a MultiDiscrete, padded with 255; reward 1 for a word that
    differs from the last one.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, length: int = 4, end: int = 5) -> None:
        self.observation_space = spaces.Text(length, min_length=0, charset="".join(map(chr, range(32, 127))))
        self.action_space = spaces.MultiDiscrete([256] * length)
        self._end, self._time, self._said = end, 0, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
        super().reset(seed=seed)
        self._time, self._said = 0, ""
        return self._said, {}

    def step(self, action: np.ndarray) -> tuple[str, float, bool, bool, dict]:
        from dreamsim.core.text import decode

        self._time += 1
        word = "".join(c for c in decode(np.asarray(action, np.uint8)[None])[0] if " " <= c <= "~")
        reward = float(word != self._said)
        self._said = word
        return self._said, reward, False, self._time >= self._end, {}


class Corridor(gym.Env):
    """Five cells in a row, one-hot; actions 0 left, 1 right; reaching the last cell gives 1 and ends.

    Truncated after ``end`` steps, so that a policy that never goes right has an end too.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    CELLS = 5

    def __init__(self, end: int = 50) -> None:
        self.observation_space = spaces.Discrete(self.CELLS)
        self.action_space = spaces.Discrete(2)
        self._end, self._time, self._cell = end, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self._time, self._cell = 0, 0
        return self._cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self._cell = int(np.clip(self._cell + (1 if int(action) == 1 else -1), 0, self.CELLS - 1))
        self._time += 1
        goal = self._cell == self.CELLS - 1
        return self._cell, float(goal), goal, self._time >= self._end and not goal, {"success": goal}
