"""DreamerV3's actors and critic, which read the state of ``worldmodels.recurrent`` (or any view of vectors)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Act, Obs
from worldmodels.actors import features, view_size
from worldmodels.blocks import layers, linear
from worldmodels.heads import TwoHot, one_hot_sample, unimix


class BoundedNormal(nn.Module):
    """A normal around tanh of a mean, with a std in [``low``, ``high``].

    A sample may lie outside [-1, 1]: the action is cut there, and the uncut sample, whose likelihood is learned
    from, is traced as ``sample`` (..., A) beside ``log_prob`` (...) and ``entropy`` (...).
    Source: DreamerV3's released code (``bounded_normal``, output layer scaled by 0.01).
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        units: int = 64,
        count: int = 3,
        low: float = 0.1,
        high: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Box):
            raise ValueError(
                f"BoundedNormal acts in a Box, got {action_space}; use worldmodels.recurrent_actors.OneHot"
            )
        self.net = nn.Sequential(
            layers(view_size(view_space), units, count), linear(units, 2 * action_space.shape[0], scale=0.01)
        )
        self.low, self.high = low, high

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Sample an action (..., A)."""
        mean, std = self._normal(view)
        sample = torch.addcmul(mean, std, torch.randn_like(mean))
        log_prob, entropy = _weigh(mean, std, sample)
        return Act(sample.clamp(-1, 1), None, {"log_prob": log_prob, "entropy": entropy, "sample": sample})

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the mean."""
        return Act(self._normal(view)[0])

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of samples (..., A) and the entropy (...)."""
        return _weigh(*self._normal(view), action)

    def _normal(self, view: Obs) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(features(view)).chunk(2, -1)
        return torch.tanh(mean), self.low + (self.high - self.low) * torch.sigmoid(raw + 2)


def _weigh(mean: Tensor, std: Tensor, sample: Tensor) -> tuple[Tensor, Tensor]:
    log_std, constant = std.log(), 0.5 * math.log(2 * math.pi)
    log_prob = -0.5 * ((sample - mean) / std).square() - log_std - constant
    return log_prob.sum(-1), (log_std + constant + 0.5).sum(-1)


class OneHot(nn.Module):
    """A policy over Discrete actions: one-hot samples, 1 % of uniform mixed in.

    Traces ``log_prob`` (...) and ``entropy`` (...). Source: DreamerV3's released code.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        units: int = 64,
        count: int = 3,
        uniform: float = 0.01,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(
                f"OneHot acts in a Discrete space, got {action_space}; use worldmodels.recurrent_actors.BoundedNormal"
            )
        self.net = nn.Sequential(
            layers(view_size(view_space), units, count), linear(units, int(action_space.n), scale=0.01)
        )
        self.uniform = uniform

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Sample a one-hot action (..., A)."""
        probs = unimix(self.net(features(view)), self.uniform)
        action = one_hot_sample(probs)
        log = probs.log()
        trace = {"log_prob": (action.detach() * log).sum(-1), "entropy": -(probs * log).sum(-1)}
        return Act(action, None, trace)

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the likeliest action, one-hot."""
        logits = self.net(features(view))
        return Act(F.one_hot(logits.argmax(-1), logits.shape[-1]).float())

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of one-hot actions (..., A) and the entropy (...)."""
        probs = unimix(self.net(features(view)), self.uniform)
        log = probs.log()
        return (action.detach() * log).sum(-1), -(probs * log).sum(-1)


class Value(nn.Module):
    """State values by two-hot regression over 255 bins, 0 at the start of training. Source: DreamerV3."""

    def __init__(self, view_space: spaces.Dict, units: int = 64, count: int = 3, bins: int = 255) -> None:
        super().__init__()
        self.regression = TwoHot(bins)
        self.net = nn.Sequential(layers(view_size(view_space), units, count), linear(units, bins, scale=0.0))

    def value(self, view: Obs) -> Tensor:
        """Return the values (...) of views (..., F)."""
        return self.regression.decode(self.net(features(view)))

    def fit(self, view: Obs, target: Tensor) -> Tensor:
        """Return losses (...) against targets (...)."""
        return self.regression.loss(self.net(features(view)), target)

    def judge(self, view: Obs) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the values (...), without graph, and a function from targets (...) to losses (...), in one pass."""
        return self.regression.judge(self.net(features(view)))
