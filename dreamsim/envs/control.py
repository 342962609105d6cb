"""DeepMind Control as a plain Gymnasium environment, in the suite's own names and units."""

from __future__ import annotations

import difflib
import os
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FRAME = 480


class DeepMindControl(gym.Env):
    """A task of ``dm_control.suite``; one step holds the action for ``repeat`` control steps.

    Observations are the suite's own, float64 made float32; ``pixels`` = N replaces them by
    ``{"image": (N, N, 3)}`` uint8, and ``frames`` = K > 1 by the newest K of these,
    (K, N, N, 3), oldest first; at a reset all K are the first one. Rewards of the repeated
    steps are summed. The suite's time limit truncates; its discount 0 terminates.
    ``reset(seed=s)`` gives the same episode bit for bit whatever went before. Raises ValueError, with the nearest
    name, for an unknown task.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "action_repeat": 1}

    def __init__(
        self,
        domain: str = "cartpole",
        task: str = "swingup",
        repeat: int = 2,
        pixels: int = 0,
        camera: int = 0,
        frames: int = 1,
    ) -> None:
        if repeat < 1:
            raise ValueError(f"repeat must be 1 or more control steps, got {repeat}")
        if frames < 1 or (frames > 1 and not pixels):
            raise ValueError(f"frames must be 1 or more, and 1 without pixels, got {frames} with pixels={pixels}")
        self._suite = _load(domain, task)
        self._name = f"{domain}-{task}"
        self._physics, self._task = self._suite.physics, self._suite.task
        self._inner = round(self._suite.control_timestep() / self._physics.timestep())
        self._limit = self._suite._step_limit  # in control steps; the suite has no public name for it
        self._count = 0
        self._repeat, self._pixels, self._camera = repeat, pixels, camera
        self._recent: deque[np.ndarray] = deque(maxlen=frames)
        self._eye: Any = None
        self.render_mode = "rgb_array"
        self.metadata = {
            **type(self).metadata,
            "action_repeat": repeat,
            "episode_steps": -(-self._limit // repeat) if np.isfinite(self._limit) else None,
            "render_fps": round(1 / (self._suite.control_timestep() * repeat)),
        }
        bounds = self._suite.action_spec()
        self.action_space = spaces.Box(
            np.broadcast_to(bounds.minimum, bounds.shape).astype(np.float32),
            np.broadcast_to(bounds.maximum, bounds.shape).astype(np.float32),
            dtype=np.float32,
        )
        self.observation_space = self._observed_space()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._task.random.seed(seed % 2**32)
        self._count = 0
        # The context resets every number of the simulation, warm start, controls and mocap included.
        with self._physics.reset_context():
            self._task.initialize_episode(self._physics)
        self._recent.clear()
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = 0.0, False, False
        for _ in range(self._repeat):
            # As the suite's own Environment.step, without an observation that nobody reads in between.
            self._task.before_step(action, self._physics)
            self._physics.step(self._inner)
            self._task.after_step(self._physics)
            reward += self._task.get_reward(self._physics)
            self._count += 1
            truncated = self._count >= self._limit
            if not truncated:
                discount = self._task.get_termination(self._physics)
                terminated, truncated = discount == 0.0, discount is not None and discount != 0.0
            if terminated or truncated:
                break
        return self._observe(), reward, terminated, truncated, {}

    def render(self) -> np.ndarray:
        """Return the scene as RGB (480, 480, 3) uint8."""
        return self._look(FRAME)

    def close(self) -> None:
        if self._eye is not None:
            self._eye.close()
            self._eye = None

    def _observed_space(self) -> spaces.Dict:
        if self._pixels:
            stack = () if self._recent.maxlen == 1 else (self._recent.maxlen,)
            return spaces.Dict({"image": spaces.Box(0, 255, (*stack, self._pixels, self._pixels, 3), np.uint8)})
        shapes = {name: np.shape(value) for name, value in self._task.get_observation(self._physics).items()}
        return spaces.Dict({name: spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()})

    def _observe(self) -> dict[str, np.ndarray]:
        if self._pixels:
            return {"image": self._newest(self._look(self._pixels))}
        return {name: np.asarray(v, np.float32) for name, v in self._task.get_observation(self._physics).items()}

    def _newest(self, frame: np.ndarray) -> np.ndarray:
        self._recent.extend([frame] * (1 if self._recent else self._recent.maxlen or 1))
        return frame if self._recent.maxlen == 1 else np.stack(self._recent)

    def _look(self, size: int) -> np.ndarray:
        from dreamsim.envs.render import Eye

        if self._eye is None:
            self._eye = Eye(self._physics.model.ptr)
        return self._eye.see(self._physics.data.ptr, size, size, self._camera)


def _load(domain: str, task: str) -> Any:
    suite = _import_suite()
    names = [f"{d}-{t}" for d, t in suite.ALL_TASKS]
    if f"{domain}-{task}" not in names:
        near = difflib.get_close_matches(f"{domain}-{task}", names, 3, 0.4)
        raise ValueError(f"DeepMind Control has no task {domain}-{task}; nearest: {', '.join(near) or names}")
    return suite.load(domain, task)


def _import_suite() -> Any:
    """Import the suite without an OpenGL back end: frames are drawn by ``dreamsim.envs.render``."""
    import mujoco  # noqa: F401  first and under the user's own setting, so that mujoco.Renderer stays usable

    quiet = "MUJOCO_GL" not in os.environ
    if quiet:
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        from dm_control import suite
    except ImportError as error:
        raise ImportError(
            "DeepMind Control is not installed; pip install -c constraints.txt -e '.[control]'"
        ) from error
    finally:
        if quiet:
            del os.environ["MUJOCO_GL"]
    return suite
