"""Our TD-MPC2 at the sizes of a comparison, and the bare networks inside it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Segment
from dreamsim.training.learner import Learner
from dreamsim.training.objectives.policy_prior import PolicyPrior
from tests.benchmarks.sizes import Size, data
from worldmodels.actors import QEnsemble, SquashedGaussian
from worldmodels.decoder_free import DecoderFree


def build(
    size: Size,
    imagined: int = 0,
    activation: str = "mish",
    dropout: float = 0.01,
    average: float = 0.0,
    compiled: bool = False,
) -> Learner:
    """Return a learner with TD-MPC2's settings; ``imagined`` 0 is the paper's policy objective."""
    torch.manual_seed(0)
    observation_space = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (size.observation,), np.float32)})
    action_space = spaces.Box(-1.0, 1.0, (size.actions,), np.float32)
    widths = {"width": size.width, "activation": activation}
    model = DecoderFree(
        observation_space,
        action_space,
        latent=size.latent,
        encoder_width=size.encoder_width,
        bins=size.bins,
        **widths,
    )
    policy = SquashedGaussian(model.view_space, action_space, **widths)
    critic = functools.partial(QEnsemble, members=size.members, bins=size.bins, dropout=dropout, **widths)
    objective = PolicyPrior(model.view_space, action_space, critic, imagined=imagined)
    return Learner(model, policy, objective, average=average, compiled=compiled)


def build_lean(size: Size, imagined: int = 0) -> Learner:
    """Return the same networks as the main job has them: ReLU, no dropout, and the averaged policy."""
    return build(size, imagined, "relu", 0.0, 0.998)


def segment(size: Size) -> Segment:
    """Return the common batch as a Segment."""
    batch = data(size)
    b, t = batch.reward.shape
    return Segment(
        obs={"state": batch.obs},
        action=batch.action,
        reward=batch.reward,
        terminated=torch.zeros(b, t, dtype=torch.bool),
        mask=torch.ones(b, t),
        trace={},
        before=None,
        index=torch.zeros(b, 2, dtype=torch.int64),
    )


def gradient_step(learner: Learner, size: Size) -> Callable[[], float]:
    """Return our gradient step, as a round takes it."""
    batch = segment(size)

    def step() -> float:
        learner.update(batch)
        return 1

    return step


def bare_step(learner: Learner, size: Size) -> Callable[[], float]:
    """Return the least that any such step must do with these networks: their calls, backward and one fused Adam.

    Losses are plain means; targets, two-hot coding, weights, entropy, clipping and target
    copies are left out.
    """
    model, policy, critic = learner.model, learner.policy, learner.objective.critic  # type: ignore[union-attr]
    batch, pair = data(size), torch.tensor([0, 1])
    modules: tuple[Any, ...] = (model, policy, critic)
    parameters = [p for module in modules for p in module.parameters()]
    optimiser = torch.optim.Adam(parameters, fused=True)

    def step() -> float:
        first = model.encoder({"state": batch.obs[:, 0]})
        with torch.no_grad():
            later = model.encoder({"state": batch.obs[:, 1:]})
            critic.net(torch.cat([later, _half(policy.net(later))], -1), pair)
        latents, inputs = [first], []
        for t in range(size.horizon):
            inputs.append(torch.cat([latents[-1], batch.action[:, t]], -1))
            latents.append(model.dynamics(inputs[-1]))
        both, states = torch.stack(inputs, 1), torch.stack(latents, 1)
        losses = [model.reward(both).mean(), critic.net(both).mean(), states.square().mean()]
        _demand_gradients(critic, False)
        still = states.detach()
        losses.append(critic.net(torch.cat([still, _half(policy.net(still))], -1), pair).mean())
        _demand_gradients(critic, True)
        torch.stack(losses).sum().backward()
        optimiser.step()
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return 1

    return step


def _half(both: torch.Tensor) -> torch.Tensor:
    return torch.tanh(both.chunk(2, -1)[0])


def _demand_gradients(module: nn.Module, wanted: bool) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(wanted)
