"""Environment steps per second: our vector of DeepMind Control under a Collector, and dm_control itself.

Steps are control steps of the suite, so that an action held twice counts two on both
sides. Ours draws random actions from a policy, checks numbers, stores whole episodes and
resets by seed; the bare side only steps and resets. With pixels the bare side renders
as dm_control does (``physics.render``), once for each action, as ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dreamsim.data.collect import Collector
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.control import DeepMindControl
from dreamsim.imagination.imagine import Uniform
from tests.benchmarks.measure import Effort, compare, effort, measure, publish

REPEAT = 2


class Case(NamedTuple):
    """One task; ``pixels`` 0: states."""

    domain: str
    task: str
    pixels: int


CASES = (
    Case("cartpole", "swingup", 0),
    Case("reacher", "easy", 0),
    Case("walker", "walk", 0),
    Case("cartpole", "swingup", 64),
)


def main() -> None:
    os.environ.setdefault("MUJOCO_GL", "egl")  # for dm_control's own rendering
    asked = effort(__doc__, turns=15, seconds=0.3)
    rows = [row for case in CASES for row in bench(case, asked)]
    publish("environment", rows, asked, environments=[1, 4], action_repeat=REPEAT)


def bench(case: Case, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one task: ours with 1 and 4 environments."""
    parties = {"1": _ours(case, 1), "4": _ours(case, 4), "dm_control": _bare(case)}
    rates = measure(parties, asked)
    name = f"{case.domain}-{case.task}" + (f", {case.pixels}x{case.pixels} pixels" if case.pixels else "")
    return [compare(f"{name}, {n} at once", rates[n], rates["dm_control"], "steps/s", "dm_control") for n in ("1", "4")]


def _ours(case: Case, count: int) -> Callable[[], float]:
    def make() -> DeepMindControl:
        return DeepMindControl(case.domain, case.task, REPEAT, case.pixels)

    envs = vectorise(make, count)
    collector = Collector(envs, envs.codec, seed=0)
    policy = Uniform(envs.codec.action_size)

    def live() -> float:
        before = collector.env_steps
        collector.collect(policy, 50 // count)
        return collector.env_steps - before

    return live


def _bare(case: Case) -> Callable[[], float]:
    from dm_control import suite

    env = suite.load(case.domain, case.task, task_kwargs={"random": 0})
    bounds, random = env.action_spec(), np.random.default_rng(0)
    env.reset()

    def live() -> float:
        steps = 0
        for _ in range(50):
            action = random.uniform(bounds.minimum, bounds.maximum)
            for _ in range(REPEAT):
                steps += 1
                if env.step(action).last():
                    env.reset()
                    break
            if case.pixels:
                env.physics.render(case.pixels, case.pixels, camera_id=0)
        return steps

    return live


if __name__ == "__main__":
    main()
