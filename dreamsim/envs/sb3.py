"""The thin door for Stable-Baselines3, which takes no Gymnasium vector environment (extra: foreign).

from stable_baselines3 import PPO
PPO("MlpPolicy", SB3Envs(load("runs/cartpole_swingup").as_env(16, horizon=100))).learn(100_000)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from dreamsim.envs.adapt import Apart, Together
from dreamsim.envs.believed import asked_space, asked_vector
from dreamsim.envs.dream import Dream
from dreamsim.envs.run_dream import row_info

Indices = None | int | Iterable[int]


class SB3Envs(VecEnv):
    """A Dream, or what ``vectorise`` returns, as Stable-Baselines3's ``VecEnv``.

    Rows that end are reset here by mask: their last observation is in
    ``info["terminal_observation"]`` and a cut in ``info["TimeLimit.truncated"]``, as SB3
    expects. A Dict of a single vector is passed on as that Box, which MlpPolicy takes; a
    Discrete action stays Discrete, all others are Box(-1, 1, (A,)).
    """

    def __init__(self, envs: Dream | Together | Apart) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.DISABLED:
            raise ValueError(f"SB3Envs resets rows itself and wants AutoresetMode.DISABLED, got {mode}")
        self.envs = envs
        self.render_mode = envs.render_mode
        parts = list(envs.codec.observation_space.spaces.items())
        self._alone = parts[0][0] if len(parts) == 1 else None
        observation = envs.codec.observation_space if self._alone is None else parts[0][1]
        action = asked_space(envs.codec.raw_action_space, envs.single_action_space)
        super().__init__(envs.num_envs, observation, action)
        self._vectors = np.zeros(envs.action_space.shape or (), np.float32)

    def reset(self) -> Any:
        seeds = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        obs, infos = self.envs.reset(seed=seeds)
        self.reset_infos = [row_info(infos, row) for row in range(self.num_envs)]
        self._reset_seeds()
        return self._shown(obs)

    def step_async(self, actions: np.ndarray) -> None:
        if isinstance(self.action_space, spaces.Discrete):
            actions = np.stack([asked_vector(self.action_space, action) for action in actions])
        self._vectors = np.asarray(actions, np.float32)

    def step_wait(self) -> Any:
        obs, rewards, terminated, truncated, infos = self.envs.step(self._vectors)
        over = terminated | truncated
        rows = [row_info(infos, row) for row in range(self.num_envs)]
        for row, info in enumerate(rows):
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
        if over.any():
            for row in np.flatnonzero(over).tolist():
                rows[row]["terminal_observation"] = self._shown({name: value[row] for name, value in obs.items()})
            obs, begun = self.envs.reset(options={"reset_mask": over})
            for row in np.flatnonzero(over).tolist():
                self.reset_infos[row] = row_info(begun, row)
        return self._shown(obs), rewards.astype(np.float32), over, rows

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        raise NotImplementedError(f"the rows of one dream share all attributes; set {attr_name} where it is made")

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **options: Any) -> list[Any]:
        raise NotImplementedError(f"the rows of one dream have no methods of their own, such as {method_name}")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Indices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        return list(self.envs.render() or [])

    def _shown(self, obs: dict[str, np.ndarray]) -> Any:
        return obs if self._alone is None else obs[self._alone]
