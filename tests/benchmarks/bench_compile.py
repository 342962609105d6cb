"""Whether torch.compile pays on this machine: model loss with its backward, one dreamt step, the whole gradient step.

Rows compare compiled with eager code of ours (ratio above 1: compiling is faster), and say
how long compiling took and after how many calls that time is earned back. The objective is
not compiled whole: it freezes parameters while gradients flow through them, where the
compiler splits the graph in many pieces. The whole step is that of TD-MPC2 at the same
mathematics as stable-worldmodel's, which it is compared with as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.benchmarks import ours, peer
from tests.benchmarks.measure import Effort, compare, effort, measure, publish
from tests.benchmarks.sizes import NANO, SMALL, Size

BATCH = 256  # dreams


def main() -> None:
    asked = effort(__doc__, turns=15, seconds=0.2)
    rows = [row for size in (NANO, SMALL) for row in bench(size, asked)]
    publish("compile", [*rows, *_whole(NANO, asked)], asked)


def bench(size: Size, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size."""
    return [
        _row(f"model loss and backward, {size.name}, B {size.batch}", _loss(size), asked),
        _row(f"dreamt step, {size.name}, B {BATCH}", _step(size), asked),
    ]


def _whole(size: Size, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of a whole gradient step, its losses compiled, against eager and against the peer."""
    compiled = ours.gradient_step(ours.build(size, compiled=True), size)
    begin = time.perf_counter()
    compiled()
    seconds = time.perf_counter() - begin
    others = {"eager": ours.gradient_step(ours.build(size), size), "stable-worldmodel": peer.gradient_step(size)}
    rates = measure({"compiled": compiled, **others}, asked)
    name = f"gradient step, {size.name}, B {size.batch}, same mathematics"
    print(f"{name}: compiled in {seconds:.0f} s")
    rows = [compare(name, rates["compiled"], rates[other], "steps/s", other) for other in others]
    return [row | {"compile_seconds": seconds} for row in rows]


def _row(name: str, make: Callable[[Callable], Callable[[], float]], asked: Effort) -> dict[str, Any]:
    eager, compiled = make(lambda function: function), make(torch.compile)
    begin = time.perf_counter()
    compiled()
    seconds = time.perf_counter() - begin
    rates = measure({"compiled": compiled, "eager": eager}, asked)
    row = compare(name, rates["compiled"], rates["eager"], "calls/s", "eager")
    saved = float(np.median(1 / rates["eager"].wall - 1 / rates["compiled"].wall))
    pays = f"{seconds / saved:,.0f} calls" if saved > 0 else "never"
    print(f"{name}: compiled in {seconds:.0f} s, earned back after {pays}")
    return row | {"compile_seconds": seconds, "earned_back_after": pays}


def _loss(size: Size) -> Callable[[Callable], Callable[[], float]]:
    model, batch = ours.build_lean(size).model, ours.segment(size)

    def make(wrap: Callable) -> Callable[[], float]:
        total = wrap(lambda: torch.stack(list(model.loss(batch).losses.values())).sum())

        def step() -> float:
            total().backward()
            return 1

        return step

    return make


def _step(size: Size) -> Callable[[Callable], Callable[[], float]]:
    learner = ours.build_lean(size)
    state = {"latent": torch.full((BATCH, size.latent), 1 / 8)}

    def make(wrap: Callable) -> Callable[[], float]:
        def dream(state: dict[str, torch.Tensor]) -> Any:
            act = learner.policy.act(learner.model.view(state))
            return act, learner.model.step(state, act.action)

        wrapped = wrap(dream)

        @torch.no_grad()
        def step() -> float:
            wrapped(state)
            return 1

        return step

    return make


if __name__ == "__main__":
    main()
