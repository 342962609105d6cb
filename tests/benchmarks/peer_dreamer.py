"""sheeprl's DreamerV3 (of the Nature paper), driven as its training loop drives it, without its loop, logger or replay.

The peer is favoured where there was a choice: its batch is already in tensors, it logs
nothing, and the imagination is timed without the casts around it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from tests.benchmarks.sizes import DreamerSize, dreamer_data


class Agent(NamedTuple):
    """What the peer trains, and how."""

    fabric: Any
    config: Any
    model: Any
    actor: Any
    critic: Any
    slow: Any
    optimiser: Any
    moments: Any


def build(size: DreamerSize, compiled: bool = False) -> Agent:
    """Return the peer's agent by its own configuration files."""
    import hydra
    import sheeprl
    from lightning.fabric import Fabric
    from sheeprl.algos.dreamer_v3_5.agent import build_agent
    from sheeprl.algos.dreamer_v3_5.utils import Moments

    torch.manual_seed(0)
    overrides = ["exp=dreamer_v3_5", f"algo=dreamer_v3_5_{size.name}", "env=dmc", f"algo.compile.enabled={compiled}"]
    overrides += ["algo.compile.mode=default", "algo.cnn_keys.encoder=[]", "algo.mlp_keys.encoder=[state]"]
    with hydra.initialize_config_dir(str(Path(sheeprl.__file__).parent / "configs"), version_base="1.3"):
        config = hydra.compose("config", overrides=overrides)
    fabric = Fabric(accelerator="cpu", devices=1)
    space = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (size.observation,), np.float32)})
    model, actor, critic, slow, _ = build_agent(fabric, (size.actions,), True, config, space)
    parameters = [p for part in (model, actor, critic) for p in part.parameters()]
    optimiser = hydra.utils.instantiate(config.algo.optimizer, params=parameters, _convert_="all")
    limits = config.algo.actor.moments
    moments = Moments(limits.decay, limits.max, limits.percentile.low, limits.percentile.high)
    return Agent(fabric, config, model, actor, critic, slow, fabric.setup_optimizers(optimiser), moments)


def parameters(agent: Agent) -> int:
    """Return how many numbers the peer learns."""
    return sum(p.numel() for part in (agent.model, agent.actor, agent.critic) for p in part.parameters())


def gradient_step(agent: Agent, size: DreamerSize) -> Callable[[], float]:
    """Return the peer's gradient step: all losses, backward, its LaProp, the slow critic."""
    from sheeprl.algos.dreamer_v3_5.dreamer_v3_5 import train, update_target_critic

    batch = _batch(size)
    rate = agent.config.algo.critic.tau

    def step() -> float:
        parts = agent.model, agent.actor, agent.critic, agent.slow, agent.optimiser, agent.moments
        train(agent.fabric, agent.config, *parts, dict(batch), None, (size.actions,))
        update_target_critic(agent.critic, agent.slow, rate)
        return 1

    return step


def dream(agent: Agent, size: DreamerSize) -> Callable[[], float]:
    """Return the peer's imagination from every state of a batch: states, actions, rewards, values and returns."""
    from sheeprl.algos.dreamer_v3_5.dreamer_v3_5 import imagine
    from sheeprl.utils.compile import compiled

    deter, stoch = starts(size)
    rows = size.batch * size.length
    deter, stoch = deter.view(size.length, size.batch, -1), stoch.flatten(1).view(size.length, size.batch, -1)
    run = compiled(imagine, agent.fabric, agent.config)

    @torch.no_grad()
    def dream() -> float:
        parts = agent.model, agent.actor, agent.critic, agent.slow
        run(*parts, stoch, deter, horizon=size.horizon, discount=1.0, lmbda=0.95)
        return rows * size.horizon

    return dream


def starts(size: DreamerSize) -> tuple[Tensor, Tensor]:
    """Return states to dream from that every side gets: memories (N, D) and one-hot samples (N, S, C)."""
    random = torch.Generator().manual_seed(2)
    rows = size.batch * size.length
    stoch = torch.randint(size.classes, (rows, size.stoch), generator=random)
    return torch.tanh(torch.randn(rows, size.deter, generator=random)), F.one_hot(stoch, size.classes).float()


def _batch(size: DreamerSize) -> dict[str, Tensor]:
    """Return the common windows as the peer's replay gives them: time first, a step of context, beliefs in float16."""
    data = dreamer_data(size)
    steps, batch = size.length + 1, size.batch
    zero = torch.zeros(steps, batch, 1)
    return {
        "state": data.obs.transpose(0, 1),
        "actions": torch.cat([data.action, data.action[:, -1:]], 1).transpose(0, 1),
        "rewards": torch.cat([data.reward[:, :1], data.reward], 1).transpose(0, 1)[..., None],
        "terminated": zero,
        "truncated": zero,
        "is_first": zero,
        "deter": torch.zeros(steps, batch, size.deter, dtype=torch.float16),
        "stoch": torch.zeros(steps, batch, size.stoch, dtype=torch.uint8),
    }
