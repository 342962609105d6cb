"""The policy of the miniatures whose view is a latent: a noisy linear map."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Act, Obs


class Actor(nn.Module):
    """Acts on ``view["latent"]`` (B, F) and records its log-probability (B,)."""

    def __init__(self, view: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.net = nn.Linear(view["latent"].shape[0], action_space.shape[0])

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        normal = torch.distributions.Normal(torch.tanh(self.net(view["latent"])), 0.3)
        drawn = normal.sample()
        return Act(drawn.clamp(-1, 1), trace={"log_prob": normal.log_prob(drawn).sum(-1)})
