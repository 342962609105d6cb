"""Any environment that Gymnasium knows by id, with action repeat and pixels."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import error, spaces
from gymnasium.envs.registration import registry

from dreamsim.envs.adapt import Repeat


class Named(gym.Wrapper):
    """``gymnasium.make(id, **options)``; an action is held for ``repeat`` steps and rewards are summed.

    ``pixels`` = N replaces the observation by ``{"image": (N, N, 3)}`` uint8: a MuJoCo scene is
    drawn in that size from ``camera``, other frames are averaged down to it. An id of another
    package is written "package:Id-v0", which imports that package. Raises ValueError with the
    nearest ids for an unknown id and ImportError naming what to install for a missing package.
    """

    def __init__(
        self,
        id: str,
        repeat: int = 1,
        pixels: int = 0,
        camera: int | str = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        made = _make(id, options or {})
        super().__init__(Repeat(made, repeat) if repeat != 1 else made)
        self._pixels, self._camera = pixels, camera
        self._eye: Any = None
        if pixels:
            self.observation_space = spaces.Dict({"image": spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observe(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(obs), float(reward), terminated, truncated, info

    def render(self) -> np.ndarray:
        """Return a frame, RGB (H, W, 3) uint8."""
        return self._look(480) if self._scene() else self._frame()

    def close(self) -> None:
        if self._eye is not None:
            self._eye.close()
            self._eye = None
        super().close()

    def _observe(self, obs: Any) -> Any:
        if not self._pixels:
            return obs
        if self._scene():
            return {"image": self._look(self._pixels)}
        return {"image": shrink(self._frame(), self._pixels)}

    def _look(self, size: int) -> np.ndarray:
        from dreamsim.envs.render import Eye

        model, data = self._scene() or (None, None)
        if self._eye is None:
            self._eye = Eye(model)
        return self._eye.see(data, size, size, self._camera)

    def _frame(self) -> np.ndarray:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[-1] != 3:
            raise RuntimeError(
                f"{self.env} draws no RGB frames (its render modes: {self.env.metadata['render_modes']})"
            )
        return frame

    def _scene(self) -> tuple[Any, Any] | None:
        """Return the MuJoCo model and data of an environment that has them: we draw these ourselves."""
        mujoco = sys.modules.get("mujoco")
        inner = self.env.unwrapped
        model, data = getattr(inner, "model", None), getattr(inner, "data", None)
        if mujoco is None or not isinstance(model, mujoco.MjModel) or not isinstance(data, mujoco.MjData):
            return None
        return model, data


def shrink(frame: np.ndarray, size: int) -> np.ndarray:
    """Return a frame (H, W, 3) averaged down to (size, size, 3) uint8."""
    if min(frame.shape[:2]) < size:
        raise ValueError(f"frames are {frame.shape[0]} x {frame.shape[1]}; pixels must be at most that, got {size}")
    total = frame.astype(np.float64)
    for axis in (0, 1):
        edges = np.linspace(0, frame.shape[axis], size + 1).astype(np.int64)
        counts = np.diff(edges).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        total = np.add.reduceat(total, edges[:-1], axis=axis) / counts
    return np.rint(total).astype(np.uint8)


def _make(id: str, options: dict[str, Any]) -> gym.Env:
    package, _, name = id.rpartition(":")
    try:
        if package:
            importlib.import_module(package)
        # Frames cost nothing until they are asked for, but the mode must be chosen here.
        mode = {"render_mode": "rgb_array"} if "rgb_array" in _render_modes(name) else {}
        return gym.make(name, **{**mode, **options})
    except error.UnregisteredEnv as problem:
        raise ValueError(_unknown(id)) from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise ImportError(
            f"environment {id!r} needs a package that is not installed ({problem}); for Gymnasium's own: "
            "pip install -c constraints.txt -e '.[gym]', for others install the package named before the colon"
        ) from problem


def _render_modes(id: str) -> list[str]:
    entry = gym.spec(id).entry_point
    creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return getattr(creator, "metadata", {}).get("render_modes", [])


def _unknown(id: str) -> str:
    name = id.rpartition(":")[2]
    lower = {known.lower(): known for known in registry}
    near = [lower[key] for key in difflib.get_close_matches(name.lower(), lower, 4, 0.5)]
    suggestion = f"nearest: {', '.join(near)}" if near else "no id is near it"
    return f'Gymnasium knows no environment {id!r}; {suggestion}. An id of another package is written "package:Id-v0"'
