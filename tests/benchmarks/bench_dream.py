"""Dream steps per second: ours in numpy and in tensors, the real environment, and torchrl's model-based environment.

A step is one action of one row, an action held twice being one. All dream with the same
networks of the same size without gradients, from the same latents, by the same given actions.
Ours draws ends, counts steps and, in numpy, checks actions and hands out copies; torchrl's
``ModelBasedEnvBase`` steps by ``step_and_maybe_reset`` with the same network calls as two
modules, and reports no ends. The real environment is DeepMind Control's cartpole-swingup,
held twice, in our vector without a policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from dreamsim.core.types import Segment
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.control import DeepMindControl
from dreamsim.envs.dream import Dream
from tests.benchmarks import ours
from tests.benchmarks.measure import Effort, compare, effort, measure, publish
from tests.benchmarks.sizes import NANO, PAPER, Size

ROWS = ((NANO, 1), (NANO, 64), (NANO, 512), (PAPER, 64))
FOREVER = 10**9


def main() -> None:
    asked = effort(__doc__, turns=15, seconds=0.1)
    rows = [row for case in ROWS for row in bench(*case, asked)]
    publish("dream", rows, asked)


def bench(size: Size, count: int, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size with ``count`` dreams side by side."""
    model = ours.build(size).model.eval()
    parties = {
        "numpy": _numpy(model, size, count),
        "tensors": _tensors(model, size, count),
        "torchrl": _torchrl(model, size, count),
    }
    if size is NANO:
        parties["real environment"] = _real(4)
    rates = measure(parties, asked)
    label = f"{size.name}, {count} at once"
    return [
        compare(f"{label}, {side}", rates[side], rates[other], "steps/s", other)
        for other in parties
        if other not in ("numpy", "tensors")
        for side in ("numpy", "tensors")
    ]


def _dream(model: nn.Module, size: Size, count: int) -> Dream:
    batch: Segment = ours.segment(size)
    dream = Dream(model, batch, count, FOREVER)
    dream.reset(seed=0)
    return dream


def _numpy(model: nn.Module, size: Size, count: int) -> Callable[[], float]:
    dream, actions = _dream(model, size, count), _actions(size, count).numpy()

    def step() -> float:
        dream.step(actions)
        return count

    return step


def _tensors(model: nn.Module, size: Size, count: int) -> Callable[[], float]:
    dream, actions = _dream(model, size, count), _actions(size, count)

    @torch.no_grad()
    def step() -> float:
        dream.step_torch(actions)
        return count

    return step


def _real(count: int) -> Callable[[], float]:
    envs = vectorise(lambda: DeepMindControl("cartpole", "swingup", 2), count)
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (4096, count, 1)).astype(np.float32)
    envs.reset(seed=0)
    steps = iter(range(FOREVER))

    def step() -> float:
        _, _, terminated, truncated, _ = envs.step(actions[next(steps) % 4096])
        over = terminated | truncated
        if over.any():
            envs.reset(options={"reset_mask": over})
        return count

    return step


class _Dynamics(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.dynamics = model.dynamics

    def forward(self, latent: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.dynamics(torch.cat([latent, action], -1))


class _Reward(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.reward, self.regression = model.reward, model.regression

    def forward(self, latent: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.regression.decode(self.reward(torch.cat([latent, action], -1))).unsqueeze(-1)


def _torchrl(model: Any, size: Size, count: int) -> Callable[[], float]:
    from tensordict import TensorDict, TensorDictBase
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.data import Composite, Unbounded
    from torchrl.envs.model_based import ModelBasedEnvBase

    latent = model.start({"state": ours.segment(size).obs["state"][:, 0]})["latent"].detach()
    latent = latent[torch.arange(count) % len(latent)]

    class Environment(ModelBasedEnvBase):
        def __init__(self, world_model: nn.Module) -> None:
            super().__init__(world_model, device="cpu", batch_size=torch.Size([count]))
            self.observation_spec = Composite(latent=Unbounded((count, size.latent)), shape=(count,))
            self.state_spec = Composite(latent=Unbounded((count, size.latent)), shape=(count,))
            self.action_spec = Unbounded((count, size.actions))
            self.reward_spec = Unbounded((count, 1))

        def _reset(self, tensordict: TensorDictBase | None, **_: Any) -> TensorDictBase:
            return TensorDict({"latent": latent}, [count])

    # The reward reads the latent before the step, so it comes first.
    reward = TensorDictModule(_Reward(model), ["latent", "action"], ["reward"])
    dynamics = TensorDictModule(_Dynamics(model), ["latent", "action"], ["latent"])
    env = Environment(TensorDictSequential(reward, dynamics))
    state, actions = [env.reset()], _actions(size, count)

    @torch.no_grad()
    def step() -> float:
        _, state[0] = env.step_and_maybe_reset(state[0].set("action", actions))
        return count

    return step


def _actions(size: Size, count: int) -> torch.Tensor:
    return torch.rand(count, size.actions, generator=torch.Generator().manual_seed(0)) * 2 - 1


if __name__ == "__main__":
    main()
