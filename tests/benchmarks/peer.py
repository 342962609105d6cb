"""stable-worldmodel's TD-MPC2, driven as its training script drives it, without its trainer.

The peer is favoured where there was a choice: no Lightning, no Hydra or OmegaConf lookups
(its settings are plain attributes), no logging, state observations only.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.benchmarks.sizes import Size, data


class Settings(SimpleNamespace):
    """Attributes with the ``get`` that the peer's code expects of its configuration."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or ``default``."""
        return getattr(self, name, default)


def settings(size: Size) -> Settings:
    """Return the peer's configuration for a size; all else as in its own configuration file."""
    model = Settings(
        horizon=size.horizon,
        mlp_dim=size.width,
        enc_dim=size.encoder_width,
        simnorm_dim=8,
        num_q=size.members,
        rho=0.5,
        tau=0.01,
        consistency_coef=20.0,
        reward_coef=0.1,
        value_coef=0.1,
        discount=0.99,
        uncertainty_penalty=0.5,
        entropy_coef=1e-4,
        num_bins=size.bins,
        vmin=-10,
        vmax=10,
        encoding={"state": size.latent},
    )
    return Settings(wm=model, action_dim=size.actions, extra_dims={"state": size.observation}, num_pi_trajs=1)


def build(size: Size) -> torch.nn.Module:
    """Return the peer's network."""
    from stable_worldmodel.wm.tdmpc2 import TDMPC2

    torch.manual_seed(0)
    return TDMPC2(settings(size))


def gradient_step(size: Size) -> Callable[[], float]:
    """Return the peer's gradient step: losses, backward, clipping at 20, AdamW with its three groups."""
    from stable_worldmodel.wm.tdmpc2 import tdmpc2_forward

    config, model, batch = settings(size), build(size).train(), data(size)
    host = SimpleNamespace(model=model, log_dict=lambda *_, **__: None)
    # Its windows carry T+1 actions and rewards, the last of which it does not use.
    action = torch.cat([batch.action, batch.action[:, -1:]], 1)
    reward = torch.cat([batch.reward, batch.reward[:, -1:]], 1)
    rest = [p for part in (model.dynamics, model.reward, model.qs) for p in part.parameters()]
    groups = [
        {"params": list(model.extra_encoders.parameters()), "lr": 3e-4 * 0.3},
        {"params": rest, "lr": 3e-4},
        {"params": list(model.pi.parameters()), "lr": 3e-5, "eps": 1e-5},
    ]
    learned = [p for group in groups for p in group["params"]]
    optimiser = torch.optim.AdamW(groups)

    def step() -> float:
        loss = tdmpc2_forward(host, {"state": batch.obs, "action": action, "reward": reward}, "train", config)["loss"]
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 20.0)
        optimiser.step()
        return 1

    return step


def rollout(model: Any, latent: Tensor, horizon: int) -> Callable[[], float]:
    """Return the peer's own imagination: actions of its actor and latents, neither rewards nor log-probabilities."""

    @torch.no_grad()
    def dream() -> float:
        model.rollout(latent, horizon)
        return len(latent) * horizon

    return dream


def rollout_with_rewards(model: Any, latent: Tensor, horizon: int) -> Callable[[], float]:
    """Return what a user of the peer writes to get rewards too, from the peer's own functions."""
    from stable_worldmodel.wm.tdmpc2 import log_std, two_hot_inv

    config = model.cfg

    @torch.no_grad()
    def dream() -> float:
        state, rewards, actions, states = latent, [], [], [latent]
        for _ in range(horizon):
            mean, raw = model.pi(state).chunk(2, -1)
            action = torch.tanh(mean + log_std(raw).exp() * torch.randn_like(mean))
            state, logits = model.forward(state, action)
            rewards.append(two_hot_inv(logits, config))
            actions.append(action)
            states.append(state)
        torch.stack(states, 1), torch.stack(actions, 1), torch.stack(rewards, 1)
        return len(latent) * horizon

    return dream


def score_candidates(model: Any, size: Size, candidates: int, horizon: int) -> Callable[[], float]:
    """Return the peer's scoring of action sequences, as its planners call it."""
    obs = {"state": data(size).obs[:1, 0].expand(candidates, -1)[None]}
    plans = torch.rand(1, candidates, horizon, size.actions) * 2 - 1

    @torch.inference_mode()
    def score() -> float:
        model.get_cost(obs, plans)
        return candidates * horizon

    return score
