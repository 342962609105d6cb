"""A two-jointed arm that is told no task: what goals are reached with."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Arm(gym.Env):
    """DeepMind Control's reacher without its target and without rewards.

    Observes ``pose`` (4,), cosine and sine of shoulder and wrist; speeds must be inferred from what came before.
    The action (2,) are torques in [-1, 1], held for ``repeat`` control steps of 0.02 s. An episode has ``steps``
    decisions. ``reset(options={"joints": (2,), "speeds": (2,)})`` begins in that state, in rad and rad/s, else
    in a random one. ``info["tip"]`` (2,) is where the tip is, in metres, ``info["speeds"]`` (2,) the joints' speeds.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, repeat: int = 2, steps: int = 100) -> None:
        from dm_control import suite

        if repeat < 1 or steps < 1:
            raise ValueError(f"repeat and steps must be 1 or more, got {repeat} and {steps}")
        self._suite = suite.load("reacher", "easy", task_kwargs={"random": 0})
        self._physics = self._suite.physics
        self._substeps = round(0.02 / self._physics.timestep()) * repeat
        self._steps, self._count = steps, 0
        self.observation_space = spaces.Dict({"pose": spaces.Box(-1.0, 1.0, (4,), np.float32)})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.render_mode = "rgb_array"
        self.metadata = {
            **type(self).metadata,
            "action_repeat": repeat,
            "episode_steps": steps,
            "render_fps": round(50 / repeat),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        given = options or {}
        joints = given.get("joints", (self.np_random.uniform(-np.pi, np.pi), self.np_random.uniform(-2.7, 2.7)))
        with self._physics.reset_context():
            self._physics.data.qpos[:] = joints
            self._physics.data.qvel[:] = given.get("speeds", (0.0, 0.0))
        return self._observe(), self._told()

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._physics.set_control(np.clip(action, -1, 1))
        self._physics.step(self._substeps)
        self._count += 1
        return self._observe(), 0.0, False, self._count >= self._steps, self._told()

    def render(self) -> np.ndarray:
        """Return the arm from above as RGB (480, 480, 3) uint8."""
        return self._physics.render(480, 480, camera_id=0)

    def _observe(self) -> dict[str, np.ndarray]:
        shoulder, wrist = self._physics.data.qpos
        pose = (np.cos(shoulder), np.sin(shoulder), np.cos(wrist), np.sin(wrist))
        return {"pose": np.array(pose, np.float32)}

    def _told(self) -> dict[str, Any]:
        tip = self._physics.named.data.geom_xpos["finger", :2].copy()
        return {"tip": tip, "speeds": self._physics.data.qvel.copy()}
