"""K-frame pixels: the state is the last images as they were seen, the view the newest of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Act, Learned, Obs, Segment
from dreamsim.imagination.imagine import Believer

FRAMES = 3
actor = Believer


class Dot(gym.Env):
    """A dot on an 8 x 8 grid goes left, stays or goes right, and ends at the right border."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._row, self._column, self._time = int(self.np_random.integers(8)), int(self.np_random.integers(2, 6)), 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._column, self._time = max(0, self._column + int(action) - 1), self._time + 1
        over = self._column >= 7
        return self._draw(), float(over), over, self._time >= 6 and not over, {}

    def _draw(self) -> np.ndarray:
        image = np.zeros((8, 8, 1), np.uint8)
        image[self._row, min(self._column, 7)] = 255
        return image


make_env = Dot


class Model(nn.Module):
    """State: ``{"frames": (B, K, C, H, W)}`` uint8, oldest first."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.image = observation_space["image"].shape
        size = int(np.prod(self.image))
        self.net = nn.Linear(FRAMES * size + int(action_space.n), size + 2)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return {"frames": obs["image"][:, None].repeat(1, FRAMES, 1, 1, 1)}

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return {"frames": torch.cat([state["frames"][:, 1:], obs["image"][:, None]], 1)}

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        image, reward, logit = self._tell(state, action)
        drawn = (image + 0.1 * torch.rand_like(image)).clamp(0, 1).mul(255).round().to(torch.uint8)
        return self.update(state, action, {"image": drawn}), reward, torch.sigmoid(logit + 1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return {"image": state["frames"][:, -1]}

    def loss(self, batch: Segment) -> Learned:
        state = self.start({"image": batch.obs["image"][:, 0]})
        errors = []
        for t in range(batch.action.shape[1]):
            image, reward, _ = self._tell(state, batch.action[:, t])
            following = batch.obs["image"][:, t + 1]
            errors.append((image - following / 255).square().mean((1, 2, 3)) + (reward - batch.reward[:, t]).square())
            state = self.update(state, batch.action[:, t], {"image": following})
        return Learned({"image": (torch.stack(errors, 1) * batch.mask).sum() / batch.mask.sum()}, None)

    def _tell(self, state: dict[str, Tensor], action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        told = self.net(torch.cat([state["frames"].flatten(1) / 255, action], -1))
        return torch.sigmoid(told[:, :-2]).unflatten(-1, self.image), told[:, -2], told[:, -1]


class Policy(nn.Module):
    """A choice among n, one-hot, from the newest image."""

    def __init__(self, view: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.net = nn.Linear(int(np.prod(view["image"].shape)), int(action_space.n))

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        choice = torch.distributions.OneHotCategorical(logits=self.net(view["image"].flatten(1) / 255))
        drawn = choice.sample()
        return Act(drawn, trace={"log_prob": choice.log_prob(drawn)})
