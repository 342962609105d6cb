"""A sliding block whose dynamics are known, the model that is these dynamics, and wrong ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Episode, Learned, Obs

DRAG, PUSH, PACE = 0.9, 0.1, 0.1


class Slide(gym.Env):
    """Position and velocity of a block, pushed by actions in [-2, 2]; reward is 1 - |position|.

    Ends for good beyond ``edge``, is cut short after ``limit`` steps, and counts as a success
    if it was not pushed over the edge and ``judged``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = spaces.Dict(
        {name: spaces.Box(-np.inf, np.inf, (1,), np.float32) for name in ("position", "velocity")}
    )
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, limit: int = 40, edge: float = 100.0, judged: bool = False, visible: bool = True) -> None:
        self.limit, self.edge, self.judged = limit, edge, judged
        self.render_mode = "rgb_array" if visible else None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.x = np.float32(self.np_random.uniform(-0.5, 0.5))
        self.v = np.float32(self.np_random.uniform(-1, 1))
        self.t = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.v = np.float32(self.v * np.float32(DRAG) + np.float32(PUSH) * np.float32(action[0]))
        self.x = np.float32(self.x + np.float32(PACE) * self.v)
        self.t += 1
        over = bool(self.x > self.edge)
        info = {"is_success": not over} if self.judged else {}
        return self._obs(), float(1 - abs(self.x)), over, not over and self.t >= self.limit, info

    def render(self) -> np.ndarray:
        frame = np.full((48, 64, 3), 20, np.uint8)
        column = int(np.clip(32 + 16 * self.x, 2, 61))
        frame[20:28, column - 2 : column + 2] = (240, 160, 40)
        return frame

    def _obs(self) -> dict[str, np.ndarray]:
        return {"position": np.array([self.x], np.float32), "velocity": np.array([self.v], np.float32)}


class Exact(nn.Module):
    """The world model that is Slide; ``drag`` and ``bonus`` make it wrong, ``decodes`` lets it show observations."""

    def __init__(self, drag: float = DRAG, bonus: float = 0.0, edge: float = 100.0, decodes: bool = True) -> None:
        super().__init__()
        self.drag, self.bonus, self.edge = drag, bonus, edge
        if not decodes:
            self.decode = None

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return {"x": obs["position"], "v": obs["velocity"]}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return self.start(obs)

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        v = state["v"] * self.drag + PUSH * (2 * action)
        x = state["x"] + PACE * v
        reward = 1 - x.abs().squeeze(-1) + self.bonus
        return {"x": x, "v": v}, reward, (x <= self.edge).float().squeeze(-1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return {"latent": torch.cat([state["x"], state["v"]], -1)}

    def decode(self, state: dict[str, Tensor]) -> Obs:
        return {"position": state["x"], "velocity": state["v"]}

    def loss(self, batch: Any) -> Learned:
        raise NotImplementedError


class Wave(nn.Module):
    """A policy on latents that pushes to and fro; memory counts its steps."""

    def act(self, view: Obs, memory: Any = None, first: Any = None, applied: Any = None) -> Act:
        latent = view["latent"]
        count = torch.zeros(len(latent)) if memory is None else memory
        if first is not None:
            count = torch.where(first, torch.zeros_like(count), count)
        return Act(torch.sin(0.3 * count)[:, None] - 0.2 * latent[:, :1], count + 1)


class Push(nn.Module):
    """Pushes by a constant in [-1, 1], whatever it sees."""

    def __init__(self, force: float) -> None:
        super().__init__()
        self.force = force

    def act(self, view: Obs, memory: Any = None, first: Any = None, applied: Any = None) -> Act:
        return Act(torch.full((len(next(iter(view.values()))), 1), self.force))


class Toys:
    """What the tests of this folder build from."""

    Slide, Exact, Wave, Push = Slide, Exact, Wave, Push
    codec = Codec(Slide.observation_space, Slide.action_space)

    @staticmethod
    def episodes(count: int, lengths: tuple = (40,), edge: float = 100.0, force: float | None = None) -> list[Episode]:
        """Roll Slide by smooth random pushes (or a constant one), in raw units."""
        found = []
        for number in range(count):
            env = Slide(lengths[number % len(lengths)], edge)
            random = np.random.default_rng(number)
            obs, _ = env.reset(seed=number)
            rows, actions, rewards, over = [obs], [], [], False
            for t in range(env.limit):
                push = 2 * np.sin(0.4 * t + number) + random.normal(0, 0.3) if force is None else 2 * force
                actions.append(np.clip(np.array([push], np.float32), -2, 2))
                obs, reward, over, cut, _ = env.step(actions[-1])
                rows.append(obs)
                rewards.append(reward)
                if over or cut:
                    break
            fields = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            meta = {"seed": number, "origin": "real"}
            found.append(Episode(fields, np.stack(actions), np.array(rewards, np.float32), over, None, {}, meta))
        return found


@pytest.fixture
def toys() -> type[Toys]:
    return Toys
