"""The last K latents and actions as a state of fixed shape, for models that predict from a short history.

``{"latents": (B, K, ...), "actions": (B, K, A), "count": (B,)}``: the ``count`` known latents come first, oldest
first, and each has beside it the action that followed; the rest is zero. A sequence model that reads it causally never
feels the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

State = dict[str, Tensor]


def begin(latent: Tensor, length: int, action_size: int) -> State:
    """Return a history of ``length`` that holds a single latent (B, ...)."""
    rest = latent.new_zeros(len(latent), length - 1, *latent.shape[1:])
    return {
        "latents": torch.cat([latent[:, None], rest], 1),
        "actions": latent.new_zeros(len(latent), length, action_size),
        "count": torch.ones(len(latent), dtype=torch.int64, device=latent.device),
    }


def act(state: State, action: Tensor) -> State:
    """Return the history with the action (B, A) that follows its newest latent."""
    return {**state, "actions": _put(state["actions"], state["count"] - 1, action)}


def follow(state: State, latent: Tensor) -> State:
    """Return the history with the latent (B, ...) that came next; the oldest is forgotten where it is full."""
    length = state["latents"].shape[1]
    full = state["count"] == length
    place = state["count"].clamp(max=length - 1)
    moved = {name: _forget(state[name], full) for name in ("latents", "actions")}
    return {
        "latents": _put(moved["latents"], place, latent),
        "actions": moved["actions"],
        "count": place + 1,
    }


def newest(values: Tensor, state: State) -> Tensor:
    """Return of values (B, K, ...) those (B, ...) beside the newest latent."""
    return values[torch.arange(len(values), device=values.device), state["count"] - 1]


def _forget(values: Tensor, full: Tensor) -> Tensor:
    moved = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    return torch.where(full.reshape(-1, *(1,) * (values.dim() - 1)), moved, values)


def _put(values: Tensor, place: Tensor, value: Tensor) -> Tensor:
    here = torch.arange(values.shape[1], device=values.device) == place[:, None]
    return torch.where(here.reshape(*here.shape, *(1,) * (values.dim() - 2)), value[:, None], values)
