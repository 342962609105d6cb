"""Actors and critics: what acts on a view and what judges it. Built by import path from a config."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.types import Act, Obs
from worldmodels.heads import DiscreteRegression
from worldmodels.nets import StackedMLP, mlp

ACTS = "acts"  # part (..., A) of a view: 1 where a component of the action counts, 0 where it is padding
UNREAD = (ACTS, "discount")  # parts that say how to act and to learn; no network reads them


def features(view: Obs) -> Tensor:
    """Return the parts of a view that networks read as one vector (..., F); a latent passes untouched."""
    parts = [part for name, part in view.items() if name not in UNREAD]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def joined(view: Obs, action: Tensor) -> Tensor:
    """Return what a critic reads (..., F + A): a view and an action, 0 where it does not count."""
    return torch.cat([features(view), action * view[ACTS] if ACTS in view else action], -1)


def view_size(view_space: spaces.Dict) -> int:
    """Return F of a view, or refuse a view with images."""
    for name, part in view_space.spaces.items():
        if len(part.shape or ()) != 1:
            raise ValueError(
                f"this actor reads vectors; view {name!r} has shape {part.shape}. Choose one with an image encoder"
            )
    return sum(part.shape[0] for name, part in view_space.spaces.items() if name not in UNREAD)


class SquashedGaussian(nn.Module):
    """TD-MPC2's stochastic policy: tanh of a normal whose log std lies in [low, high].

    Acting gives gradients to the actor (reparameterised) and traces ``log_prob`` (...)
    and ``entropy`` (...), the sample's own -log_prob times A. ``squashed`` False takes the latter from the normal
    before its tanh, which is what the released code's scaled entropy comes to. Where the view says which components
    ``acts``, the others are 0, weigh nothing, and A counts without them.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        width: int = 512,
        layers: int = 2,
        activation: str = "mish",
        log_std_low: float = -10.0,
        log_std_high: float = 2.0,
        squashed: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Box):
            raise ValueError(f"SquashedGaussian acts in a Box, got {action_space}; use worldmodels.actors.Categorical")
        self.net = mlp(view_size(view_space), [width] * layers, 2 * action_space.shape[0], activation)
        self.low, self.span, self.squashed = log_std_low, log_std_high - log_std_low, squashed

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Sample an action (..., A)."""
        mean, log_std = self._normal(view)
        acts = view.get(ACTS)
        noise = torch.randn_like(mean) if acts is None else torch.randn_like(mean) * acts
        action = torch.tanh(torch.addcmul(mean, noise, log_std.exp()))
        log_prob = _squashed(noise, log_std, action, acts)
        told = log_prob if self.squashed else _counted(_normal_log_prob(noise, log_std), acts)
        count = mean.shape[-1] if acts is None else acts.sum(-1)
        return Act(action, None, {"log_prob": log_prob, "entropy": -count * told})

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return tanh of the mean."""
        return Act(torch.tanh(self._normal(view)[0]))

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of actions (..., A), and the entropy (...) by one sample drawn anew.

        What was squashed is found back by atanh, of at most 1 - 1e-6: nearer to a bound a float32 does not tell.
        """
        mean, log_std = self._normal(view)
        acts = view.get(ACTS)
        before = torch.atanh(action.clamp(-1 + 1e-6, 1 - 1e-6))
        fresh = torch.randn_like(mean)
        drawn = torch.tanh(torch.addcmul(mean, fresh, log_std.exp()))
        noise = (before - mean) / log_std.exp()
        return _squashed(noise, log_std, action, acts), -_squashed(fresh, log_std, drawn, acts)

    def _normal(self, view: Obs) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(features(view)).chunk(2, -1)
        log_std = self.low + 0.5 * self.span * (torch.tanh(raw) + 1)
        return (mean * view[ACTS], log_std * view[ACTS]) if ACTS in view else (mean, log_std)


def _squashed(noise: Tensor, log_std: Tensor, action: Tensor, acts: Tensor | None) -> Tensor:
    """Return the log-probability (...) of actions (..., A) that are tanh of a normal's mean + ``noise`` stds."""
    return _counted(_normal_log_prob(noise, log_std) - torch.log(F.relu(1 - action.square()) + 1e-6), acts)


def _normal_log_prob(noise: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)


def _counted(parts: Tensor, acts: Tensor | None) -> Tensor:
    """Return the sum (...) of (..., A) over the components that count."""
    return parts.sum(-1) if acts is None else (parts * acts).sum(-1)


class Gaussian(nn.Module):
    """PPO's usual policy: a normal whose std is learned but the same in every state.

    A sample may lie outside [-1, 1]: the action is cut there, and the uncut sample, whose likelihood is
    learned from, is traced as ``sample`` (..., A) beside ``log_prob`` (...) and ``entropy`` (...). The last
    layer starts near zero (Andrychowicz et al., "What Matters in On-Policy Reinforcement Learning?", 2021).
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        width: int = 64,
        layers: int = 2,
        activation: str = "relu",
        std: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Box):
            raise ValueError(f"Gaussian acts in a Box, got {action_space}; use worldmodels.actors.Categorical")
        self.net = mlp(view_size(view_space), [width] * layers, action_space.shape[0], activation)
        with torch.no_grad():
            self.net[-1].weight.mul_(0.01)
        self.log_std = nn.Parameter(torch.full(action_space.shape, math.log(std)))

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Sample an action (..., A)."""
        mean = self.net(features(view))
        sample = torch.addcmul(mean, self.log_std.exp(), torch.randn_like(mean))
        log_prob, entropy = self._weigh(mean, sample)
        return Act(sample.clamp(-1, 1), None, {"log_prob": log_prob, "entropy": entropy, "sample": sample})

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the mean, cut to [-1, 1]."""
        return Act(self.net(features(view)).clamp(-1, 1))

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of samples (..., A) and the entropy (...)."""
        return self._weigh(self.net(features(view)), action)

    def _weigh(self, mean: Tensor, sample: Tensor) -> tuple[Tensor, Tensor]:
        constant = 0.5 * math.log(2 * math.pi)
        log_prob = -0.5 * ((sample - mean) * torch.exp(-self.log_std)).square() - self.log_std - constant
        entropy = (self.log_std + constant + 0.5).sum(-1)
        return log_prob.sum(-1), entropy.expand(mean.shape[:-1])


class Categorical(nn.Module):
    """A policy over Discrete actions: one-hot samples with straight-through gradients and 1 % uniform mix.

    The uniform mix is DreamerV3's; the straight-through sample lets objectives that
    differentiate through a model treat discrete and continuous actions alike.
    """

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        width: int = 512,
        layers: int = 2,
        activation: str = "mish",
        uniform: float = 0.01,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"Categorical acts in a Discrete space, got {action_space}; use SquashedGaussian")
        self.count = int(action_space.n)
        self.uniform = uniform
        self.net = mlp(view_size(view_space), [width] * layers, self.count, activation, zero=True)

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Sample a one-hot action (..., A)."""
        probs = self._probs(view)
        log = probs.log()
        gumbel = -torch.empty_like(probs).exponential_().log()
        choice = F.one_hot((log + gumbel).argmax(-1), self.count).to(probs.dtype)
        trace = {"log_prob": (choice * log).sum(-1), "entropy": -(probs * log).sum(-1)}
        return Act(choice + probs - probs.detach(), None, trace)

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the likeliest action, one-hot."""
        return Act(F.one_hot(self.net(features(view)).argmax(-1), self.count).float())

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of one-hot actions (..., A) and the entropy (...)."""
        probs = self._probs(view)
        log = probs.log()
        return (action.detach() * log).sum(-1), -(probs * log).sum(-1)

    def _probs(self, view: Obs) -> Tensor:
        probs = torch.softmax(self.net(features(view)), -1)
        return (1 - self.uniform) * probs + self.uniform / self.count


class QEnsemble(nn.Module):
    """TD-MPC2's critics: N action values by discrete regression, run as one batched network."""

    def __init__(
        self,
        view_space: spaces.Dict,
        action_size: int,
        members: int = 5,
        width: int = 512,
        activation: str = "mish",
        dropout: float = 0.01,
        bins: int = 101,
        low: float = -10.0,
        high: float = 10.0,
    ) -> None:
        super().__init__()
        self.members = members
        self.regression = DiscreteRegression(bins, low, high)
        self.net = StackedMLP(members, view_size(view_space) + action_size, width, bins, activation, dropout)

    def value(self, view: Obs, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the values (N, ...) of actions (..., A), of all members or those numbered."""
        return self.regression.decode(self.net(joined(view, action), members))

    def fit(self, view: Obs, action: Tensor, target: Tensor) -> Tensor:
        """Return each member's loss (N, ...) against targets (...)."""
        return self.regression.loss(self.net(joined(view, action)), target)


class PlainQ(nn.Module):
    """SAC's critics: N action values by plain regression, run as one batched network with layer norms."""

    def __init__(
        self,
        view_space: spaces.Dict,
        action_size: int,
        members: int = 2,
        width: int = 256,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.members = members
        self.net = StackedMLP(members, view_size(view_space) + action_size, width, 1, activation)

    def value(self, view: Obs, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the values (N, ...) of actions (..., A), of all members or those numbered."""
        return self.net(joined(view, action), members).squeeze(-1)

    def fit(self, view: Obs, action: Tensor, target: Tensor) -> Tensor:
        """Return each member's squared error (N, ...) against targets (...)."""
        return (self.value(view, action) - target).square()


class PlainV(nn.Module):
    """PPO's critic: state values by plain regression, in multiples of ``unit``, which is about what they reach."""

    def __init__(
        self, view_space: spaces.Dict, width: int = 64, layers: int = 2, activation: str = "relu", unit: float = 1.0
    ) -> None:
        super().__init__()
        self.net = mlp(view_size(view_space), [width] * layers, 1, activation)
        self.unit = unit

    def value(self, view: Obs) -> Tensor:
        """Return the values (...) of views (..., F)."""
        return self.unit * self.net(features(view)).squeeze(-1)

    def fit(self, view: Obs, target: Tensor) -> Tensor:
        """Return squared errors (...) against targets (...), in squared units."""
        return ((self.value(view) - target) / self.unit).square()
