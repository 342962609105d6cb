"""Gradient steps and imagination of DreamerV3: ours against sheeprl's, the published 1M on states of cartpole-swingup.

Both sides learn from 16 windows of 64 steps, started from beliefs stored with them, and
dream 15 steps from each of the 1,024 real states. ``gradient step``: all losses, one
backward pass, adaptive clipping, LaProp and the slow critic. ``imagination``: the dreams
alone, without gradients, with actions, rewards, continuations, values and lambda-returns.
``eager`` parties run op by op, as both sides do by default; ``compiled`` ones have passed
their own losses through ``torch.compile``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core.types import Before, Segment
from dreamsim.imagination.imagine import imagine
from dreamsim.imagination.returns import lambda_returns
from dreamsim.training.laprop import LaProp
from dreamsim.training.learner import Learner
from dreamsim.training.objectives.actor_critic import ActorCritic
from tests.benchmarks import peer_dreamer
from tests.benchmarks.measure import Effort, compare, effort, measure, publish, quantity
from tests.benchmarks.sizes import DREAMER_1M, DreamerSize, dreamer_data
from worldmodels.recurrent import Recurrent
from worldmodels.recurrent_actors import BoundedNormal, Value


def main() -> None:
    asked = effort(__doc__, turns=9, seconds=2.0)
    publish("dreamer", bench(DREAMER_1M, asked), asked)


def bench(size: DreamerSize, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size."""
    ours, theirs = build(size), peer_dreamer.build(size)
    compiled = build(size, compiled=True)
    steps = {"eager": gradient_step(ours, size), "compiled": gradient_step(compiled, size)}
    seconds = {"gradient step": _first(steps["compiled"])}
    rates = measure({**steps, "peer": peer_dreamer.gradient_step(theirs, size)}, asked)
    label = f"gradient step, {size.name}, B {size.batch}, T {size.length}, H {size.horizon}"
    rows = [compare(f"{label}, {kind}", rates[kind], rates["peer"], "steps/s", "sheeprl") for kind in steps]
    dreams = {"eager": dream(ours, size), "compiled": dream(compiled, size, compiled=True)}
    seconds["imagination"] = _first(dreams["compiled"])
    rates = measure({**dreams, "peer": peer_dreamer.dream(theirs, size)}, asked)
    label = f"imagination, {size.name}, {size.batch * size.length} dreams of {size.horizon} steps"
    rows += [compare(f"{label}, {kind}", rates[kind], rates["peer"], "dreamt steps/s", "sheeprl") for kind in dreams]
    rows += [quantity(f"compiling: {name}", value, "s") for name, value in seconds.items()]
    rows += [
        quantity("learned numbers, ours", float(sum(p.numel() for p in _learned(ours))), "numbers"),
        quantity("learned numbers, sheeprl", float(peer_dreamer.parameters(theirs)), "numbers"),
    ]
    return rows


def build(size: DreamerSize, compiled: bool = False) -> Learner:
    """Return a learner with DreamerV3's settings at a size."""
    torch.manual_seed(0)
    observation_space = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (size.observation,), np.float32)})
    action_space = spaces.Box(-1.0, 1.0, (size.actions,), np.float32)
    widths = size.deter, size.hidden, size.classes, size.units, size.depth, size.stoch
    model = Recurrent(observation_space, action_space, *widths)
    policy = BoundedNormal(model.view_space, action_space, units=size.units)
    critic = functools.partial(Value, units=size.units)
    objective = ActorCritic(model.view_space, action_space, critic, imagined=size.horizon)
    return Learner(model, policy, objective, optimiser=LaProp, average=0.0, compiled=compiled)


def segment(size: DreamerSize) -> Segment:
    """Return the common batch as a Segment that starts from stored beliefs."""
    data = dreamer_data(size)
    b, t = data.reward.shape
    stoch = torch.nn.functional.one_hot(torch.zeros(b, size.stoch, dtype=torch.int64), size.classes).float()
    state = {"deter": torch.zeros(b, size.deter), "stoch": stoch.mT.contiguous()}
    return Segment(
        obs={"state": data.obs},
        action=data.action,
        reward=data.reward,
        terminated=torch.zeros(b, t, dtype=torch.bool),
        mask=torch.ones(b, t),
        trace={},
        before=Before(state, torch.ones(b, dtype=torch.bool)),
        index=torch.ones(b, 2, dtype=torch.int64),
    )


def gradient_step(learner: Learner, size: DreamerSize) -> Callable[[], float]:
    """Return our gradient step, as a round takes it."""
    batch = segment(size)

    def step() -> float:
        learner.update(batch)
        return 1

    return step


def dream(learner: Learner, size: DreamerSize, compiled: bool = False) -> Callable[[], float]:
    """Return our imagination with what the peer's function also finds: the critics' values and the returns."""
    model, policy, judge = learner.model, learner.policy, learner.objective
    deter, stoch = peer_dreamer.starts(size)
    classes = stoch.mT.contiguous()

    def whole() -> Any:
        dreamt = imagine(model, policy, {"deter": deter, "stoch": classes}, size.horizon)  # type: ignore[arg-type]
        value, slow = judge.critic.value(dreamt.view), judge.slow.value(dreamt.view)  # type: ignore[union-attr]
        returns = lambda_returns(dreamt.reward, dreamt.proceed, value[:, 1:], judge.discount, judge.lam)  # type: ignore
        return dreamt, slow, returns

    run = torch.compile(whole, dynamic=False) if compiled else whole

    @torch.no_grad()
    def step() -> float:
        run()
        return len(deter) * size.horizon

    return step


def _first(work: Callable[[], float]) -> float:
    """Return the seconds of a first call, which compiles."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _learned(learner: Learner) -> list[torch.nn.Parameter]:
    parts = learner.model, learner.policy, learner.objective
    return [p for part in parts for p in part.parameters() if p.requires_grad]  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
