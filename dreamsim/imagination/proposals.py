"""What proposes plans: how actions are laid out and drawn, the noise of a draw, and which draws follow which."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core.spaces import action_layout

UNIFORM = 0.02  # of the mass of a choice that no refit takes from the options it has not seen succeed


class Actions(nn.Module):
    """How the action vector (A,) of a space is laid out, so that plans can be drawn, averaged and acted on.

    Numbers lie in [-1, 1]. Discrete parts are one-hot pieces and MultiBinary parts 0 or 1, as the
    codec flattens them; both are averaged to probabilities, and drawn by them. A *centre* (..., A)
    holds means of numbers and probabilities of choices: the frequencies among elites are the mean
    of their one-hot vectors, so one refit serves every space. ``space`` as a number means so many numbers.
    """

    choice: Tensor
    neutral: Tensor

    def __init__(self, space: spaces.Space | int) -> None:
        super().__init__()
        self.size, self.pieces, self.binary = (space, [], []) if isinstance(space, int) else action_layout(space)
        if self.size < 1:
            raise ValueError(f"an action has 1 or more components, got {space}; give the action space or its size A")
        choice, neutral = torch.zeros(self.size, dtype=torch.bool), torch.zeros(self.size)
        for piece in self.pieces:
            choice[piece], neutral[piece] = True, 1 / (piece.stop - piece.start)
        choice[self.binary], neutral[self.binary] = True, 0.5
        self.register_buffer("choice", choice, persistent=False)
        self.register_buffer("neutral", neutral, persistent=False)
        self.numbers = not bool(choice.any())  # nothing but numbers

    def draw(self, centre: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return actions (B, S, H, A) around ``centre`` (B, H, A): numbers by ``noise`` (B, S, H, A) times ``std``."""
        plans = torch.addcmul(centre[:, None], std[:, None], noise).clamp_(-1, 1)
        for piece in self.pieces:  # the first of exponential clocks whose rates are the probabilities
            waits = torch.empty_like(plans[..., piece]).exponential_()
            plans[..., piece] = _largest(centre[:, None, :, piece] / waits)
        if self.binary:
            chance = centre[:, None, :, self.binary].expand(*plans.shape[:-1], -1)
            plans[..., self.binary] = (torch.rand_like(chance) < chance).to(plans.dtype)
        return plans

    def uniform(self, rows: int) -> Tensor:
        """Return random actions (B, A): numbers uniform in [-1, 1], every option of a choice as likely."""
        nothing = self.neutral.expand(rows, 1, -1)
        drawn = self.draw(nothing, torch.zeros_like(nothing), torch.zeros_like(nothing)[:, None])[:, 0, 0]
        return torch.where(self.choice, drawn, torch.rand_like(drawn) * 2 - 1)

    def disturb(self, action: Tensor, std: Tensor) -> Tensor:
        """Return actions (B, A) whose numbers have noise of ``std`` (B, A); choices stay as they are."""
        noisy = torch.addcmul(action, std, torch.randn_like(action)).clamp_(-1, 1)
        return noisy if self.numbers else torch.where(self.choice, action, noisy)

    def soften(self, centre: Tensor) -> Tensor:
        """Return a centre (..., A) in which no option is impossible."""
        return centre if self.numbers else torch.where(self.choice, centre.lerp(self.neutral, UNIFORM), centre)

    def harden(self, centre: Tensor) -> Tensor:
        """Return the likeliest action of a centre (..., A)."""
        action = centre.clamp(-1, 1)
        for piece in self.pieces:
            action[..., piece] = _largest(centre[..., piece])
        if self.binary:
            action[..., self.binary] = (centre[..., self.binary] > 0.5).to(action.dtype)
        return action

    def tangent(self, slope: Tensor) -> Tensor:
        """Return the part of a slope (..., A) that a choice can follow: what favours one option over others."""
        along = slope.clone()
        for piece in self.pieces:
            along[..., piece] -= slope[..., piece].mean(-1, keepdim=True)
        return along

    def project(self, centre: Tensor) -> Tensor:
        """Return the nearest centre (..., A): numbers within bounds, the options of a choice on their simplex."""
        nearest = centre.clamp(-1, 1)
        for piece in self.pieces:
            nearest[..., piece] = onto_simplex(centre[..., piece])
        if self.binary:
            nearest[..., self.binary] = centre[..., self.binary].clamp(0, 1)
        return nearest


class Noise(nn.Module):
    """Standard normal noise along plans whose power falls as frequency ** -``exponent``; 0 is white.

    Every step has variance 1. Source: iCEM (Pinneri et al. 2020), section 3.1; a plan is short, so
    the filter is a matrix product with (H, H) instead of a Fourier transform at each draw.
    """

    mixing: Tensor

    def __init__(self, horizon: int, exponent: float = 0.0) -> None:
        super().__init__()
        at_least_one(horizon=horizon)
        self.horizon, self.exponent = horizon, exponent
        frequency = torch.fft.rfftfreq(horizon).clamp(min=1 / horizon)
        spectrum = torch.fft.rfft(torch.eye(horizon), dim=0) * frequency[:, None] ** (-exponent / 2)
        mixing = torch.fft.irfft(spectrum, n=horizon, dim=0)
        self.register_buffer("mixing", mixing / mixing.norm(dim=1, keepdim=True), persistent=False)

    def forward(self, rows: int, samples: int, size: int) -> Tensor:
        """Return noise (B, S, H, A)."""
        white = torch.randn(rows, samples, self.horizon, size, device=self.mixing.device)
        return self.mixing @ white if self.exponent else white


class Fresh(nn.Module):
    """Proposes new plans around the belief at every iteration, each time 1 / ``decay`` of the last number.

    At least ``least`` of them; ``centred`` puts the belief's own likeliest plan among them.
    """

    def __init__(
        self, actions: Actions, noise: Noise, samples: int, decay: float = 1.0, least: int = 1, centred: bool = False
    ) -> None:
        super().__init__()
        self.actions, self.noise, self.samples = actions, noise, samples
        self.decay, self.least, self.centred = decay, least, centred

    def forward(self, mean: Tensor, std: Tensor, carried: Tensor | None, turn: int) -> Tensor:
        """Return plans (B, S, H, A) around ``mean`` (B, H, A) for iteration ``turn``."""
        count = max(int(self.samples * self.decay**-turn), self.least)
        draws = self.actions.draw(mean, std, self.noise(len(mean), count - int(self.centred), self.actions.size))
        return torch.cat([self.actions.harden(mean)[:, None], draws], 1) if self.centred else draws


class Carried(nn.Module):
    """Proposes draws once and from then on what the refit made of them, so that each plan is improved on its own."""

    def __init__(self, actions: Actions, noise: Noise, samples: int) -> None:
        super().__init__()
        self.actions, self.noise, self.samples = actions, noise, samples

    def forward(self, mean: Tensor, std: Tensor, carried: Tensor | None, turn: int) -> Tensor:
        """Return plans (B, S, H, A): ``carried``, or at first ``mean`` (B, H, A) and relaxed draws around it."""
        if carried is not None:
            return carried
        noise = self.noise(len(mean), self.samples, self.actions.size)
        noise[:, 0] = 0
        return self.actions.project(torch.addcmul(mean[:, None], std[:, None], noise))


def onto_simplex(x: Tensor) -> Tensor:
    """Return the nearest point (..., N) with nonnegative parts of sum 1. Source: Duchi et al. 2008, figure 1."""
    ordered = x.sort(-1, descending=True).values
    excess = (ordered.cumsum(-1) - 1) / torch.arange(1, x.shape[-1] + 1, device=x.device)
    last = (ordered > excess).sum(-1, keepdim=True) - 1
    return (x - excess.gather(-1, last)).clamp(min=0)


def at_least_one(**numbers: int) -> None:
    """Raise ValueError, naming it, for a number below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} of a search must be 1 or more, got {number}")


def _largest(weight: Tensor) -> Tensor:
    return F.one_hot(weight.argmax(-1), weight.shape[-1]).to(weight.dtype)
