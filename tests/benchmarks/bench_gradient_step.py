"""Gradient steps per second of TD-MPC2: ours, stable-worldmodel's, and the bare networks.

Everywhere the same sizes and the same batch. ``same mathematics``: Mish, dropout and the
paper's policy objective on both sides. ``our layers``: the same objective with the layers
of our main job, ReLU and no dropout. ``dreaming``: our main job's whole step, which also
imagines three steps from each window and averages the policy, and so does more than the
peer's. ``bare networks`` is what calls, backward and Adam alone cost with Mish and dropout.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks import ours, peer
from tests.benchmarks.measure import Effort, compare, effort, measure, publish
from tests.benchmarks.sizes import SIZES, Size


def main() -> None:
    asked = effort(__doc__, turns=9, seconds=0.3)
    rows = [row for size in SIZES for row in bench(size, asked)]
    publish("gradient_step", rows, asked)


def bench(size: Size, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size."""
    parties = {
        "same mathematics": ours.gradient_step(ours.build(size), size),
        "our layers": ours.gradient_step(ours.build_lean(size), size),
        "dreaming": ours.gradient_step(ours.build_lean(size, imagined=3), size),
        "peer": peer.gradient_step(size),
        "bare": ours.bare_step(ours.build(size), size),
    }
    rates = measure(parties, asked)
    label = f"{size.name}, B {size.batch}, T {size.horizon}"
    rows = [
        compare(f"{label}, {kind}", rates[kind], rates["peer"], "steps/s", "stable-worldmodel")
        for kind in ("same mathematics", "our layers", "dreaming")
    ]
    return [
        *rows,
        compare(f"{label}, same mathematics", rates["same mathematics"], rates["bare"], "steps/s", "bare networks"),
    ]


if __name__ == "__main__":
    main()
