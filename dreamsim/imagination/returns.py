"""Returns of real and imagined steps. Time is axis 1; everything is (B, H)."""

from __future__ import annotations

import torch
from torch import Tensor

from dreamsim.core.types import Obs


def discounts(view: Obs, usual: float) -> float | Tensor:
    """Return ``usual``, or the discounts (...) of a view that has its own as its part ``discount`` (..., 1)."""
    return view["discount"].squeeze(-1) if "discount" in view else usual


def lambda_returns(
    reward: Tensor, proceed: Tensor, following: Tensor, discount: float | Tensor, lam: float | Tensor
) -> Tensor:
    """Return R_t = r_t + d_t ((1 - lam) v_{t+1} + lam R_{t+1}), with R_H = v_H and d_t = discount * proceed_t.

    ``following`` is v_{t+1}, the value of the state that step t reached; ``discount`` and ``lam`` are one
    number or one for each step. All are (B, H). Source: DreamerV3, equation 9.
    """
    carry = discount * proceed
    share = torch.as_tensor(lam, dtype=reward.dtype, device=reward.device).expand_as(reward)
    steps = reward + carry * (1 - share) * following
    kept = carry * share
    value = following[:, -1]
    returns = []
    for t in reversed(range(reward.shape[1])):
        value = torch.addcmul(steps[:, t], kept[:, t], value)
        returns.append(value)
    return torch.stack(returns[::-1], 1)


def gae(
    reward: Tensor, terminated: Tensor, ended: Tensor, value: Tensor, following: Tensor, discount: float, lam: float
) -> Tensor:
    """Return generalised advantages (B, T) of real steps.

    ``value`` (B, T) is that of the state acted in, ``following`` (B, T) that of the state
    reached, the last one of an episode included. ``terminated`` cuts the value of the
    future; ``ended`` (terminated or truncated) only stops the sum, so that a truncated
    episode still counts on its future. Source: Schulman et al. 2016, equation 16.
    """
    delta = reward + discount * following * (~terminated) - value
    advantage = torch.zeros_like(reward[:, 0])
    out = []
    for t in reversed(range(reward.shape[1])):
        advantage = delta[:, t] + discount * lam * (~ended[:, t]) * advantage
        out.append(advantage)
    return torch.stack(out[::-1], 1)
