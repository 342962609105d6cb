"""The mirror of a dream: a real environment seen through a model's belief, for policies trained in a dream."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core.protocols import WorldModel
from dreamsim.core.random import Stream, derive_seed
from dreamsim.core.run import view_box
from dreamsim.core.types import Obs, State
from dreamsim.envs.adapt import Adapted, adapt, unit_box

Info = dict[str, Any]


class Believed(gym.Wrapper):
    """``env`` as a policy sees it that knows only ``model``'s view: the spaces are those of a Dream of that model.

    Each real observation goes into the belief by ``start`` and ``update``, with the action that
    was really applied; what comes out is ``model.view`` of it, a dict of arrays. Reward and ends are the real ones.
    ``info["obs"]`` is the real observation in the codec's form. Random numbers of the model
    come from a stream of its own, seeded by ``reset``. The model is used as it is: put it in eval mode yourself.
    """

    def __init__(self, env: gym.Env, model: WorldModel, *, device: torch.device | str = "cpu") -> None:
        super().__init__(adapt(env))
        self._model, self._device = model, torch.device(device)
        self._stream = Stream(derive_seed("believed", 0), device)
        self._state: State = None
        self.codec = self._adapted.codec
        zero = {name: np.zeros(part.shape or (), part.dtype) for name, part in self.codec.observation_space.items()}
        view = self._believe(zero, None)
        self.observation_space = spaces.Dict({name: view_box(value[0]) for name, value in view.items()})
        self.action_space = asked_space(self.codec.raw_action_space, unit_box(self.codec))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, np.ndarray], Info]:
        obs, info = self._adapted.reset(seed=seed, options=options)
        if seed is not None:
            self._stream = Stream(derive_seed("believed", seed), self._device)
        return _row(self._believe(obs, None)), {**info, "obs": obs}

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        unit = asked_vector(self.action_space, action)
        obs, reward, terminated, truncated, info = self._adapted.step(unit)
        settled = info["applied"] if "applied" in info else self.codec.settle(unit)
        view = self._believe(obs, self.codec.scale.unit(settled))
        return _row(view), reward, terminated, truncated, {**info, "obs": obs}

    @property
    def _adapted(self) -> Adapted:
        assert isinstance(self.env, Adapted)
        return self.env

    @torch.no_grad()
    def _believe(self, obs: dict[str, np.ndarray], unit: np.ndarray | None) -> Obs:
        """Take an observation, and the action (A,) before it, into the belief; return the view (1, ...)."""
        seen = {name: torch.from_numpy(np.array(value)[None]).to(self._device) for name, value in obs.items()}
        with self._stream:
            if unit is None:
                self._state = self._model.start(seen)
            else:
                action = torch.from_numpy(np.asarray(unit, np.float32)[None]).to(self._device)
                self._state = self._model.update(self._state, action, seen)
            return self._model.view(self._state)


def asked_space(raw: spaces.Space, unit: spaces.Space) -> spaces.Space:
    """Return the space a single policy acts in: a choice stays a choice, all else is Box(-1, 1, (A,))."""
    return raw if isinstance(raw, spaces.Discrete) else unit


def asked_vector(space: spaces.Space, action: Any) -> np.ndarray:
    """Return an action of ``asked_space`` as the vector (A,) that dreams and adapted environments take."""
    if not isinstance(space, spaces.Discrete):
        return np.asarray(action, np.float32)
    if not space.contains(action):
        raise ValueError(f"the action must be in {space}, got {action!r}")
    return np.eye(int(space.n), dtype=np.float32)[int(action) - int(space.start)]


def _row(view: Obs) -> dict[str, np.ndarray]:
    return {name: value[0].cpu().numpy().copy() for name, value in view.items()}
