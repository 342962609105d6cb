"""Decisions a second: our planners and stable-worldmodel's, in the same network, with equal work.

Both sides search with as many plans, elites, iterations and steps, and judge a plan by its rewards and the
mean of all critics at the policy's typical action where it ends. The peer is given all environments in one
batch, and its printed lines are swallowed. ``as released``: TD-MPC2's own planner (24 of the plans dreamt by
the policy, leaf of two random critics at a sampled action) against the peer's MPPI. ``our layers``: the same
sizes with ReLU and the main job's bins, where the peer has Mish. ``compiled``: ours through torch.compile.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.imagination.plan import CEM, ICEM, MPPI, Gradient, PredictiveSampling
from dreamsim.imagination.score import Leaf
from tests.benchmarks import ours, peer
from tests.benchmarks.measure import Effort, compare, effort, measure, publish, quantity
from tests.benchmarks.sizes import NANO, PEER, Size, data

SIZES = ((NANO, 3), (PEER, 5))  # and the steps H of a plan
COMPILED = ("TD-MPC2 plan 512 x 6, as released", "CEM 512 x 6")
PLAN = {"horizon": 3, "samples": 256, "elites": 32, "iterations": 6, "proposals": 12}  # what 25 Hz is asked of


def main() -> None:
    asked = effort(__doc__, turns=9, seconds=0.3)
    rows = [row for size, horizon in SIZES for row in solves(size, horizon, asked)]
    rows += rate(asked)
    publish("plan", rows, asked)


def solves(size: Size, horizon: int, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size."""
    rows = []
    for name, (our, their) in pairs(size, horizon).items():
        torch.compiler.reset()
        parties = {"": our(ours.build(size)), "peer": their, ", our layers": our(ours.build_lean(size))}
        if name in COMPILED:
            parties[", compiled"] = our(ours.build(size), compiled=True)
        rates = measure(parties, asked)
        for kind in parties.keys() - {"peer"}:
            label = f"{name}, {size.name}, H {horizon}{kind}"
            rows.append(compare(label, rates[kind], rates["peer"], "decisions/s", "stable-worldmodel"))
    return sorted(rows, key=lambda row: row["name"])


def pairs(size: Size, horizon: int) -> dict[str, tuple[Callable[[Any], Callable], Callable]]:
    """Return, by name, what makes our decision from a learner, and the peer's decision."""
    from stable_worldmodel.solver import CEMSolver, GradientSolver, ICEMSolver, MPPISolver, PredictiveSamplingSolver

    same = {"horizon": horizon}
    elite = {"num_samples": 512, "n_steps": 6, "topk": 64}
    our = functools.partial(functools.partial, _our_plan, size=size)
    their = functools.partial(_their_plan, size=size, horizon=horizon)
    mppi = functools.partial(MPPI, samples=512, elites=64, iterations=6, **same)
    cem = functools.partial(CEM, samples=512, elites=64, iterations=6, **same)
    icem = functools.partial(ICEM, samples=512, elites=64, iterations=6, decay=1.0, keep=5 / 64, **same)
    gradient = {"n_steps": 10, "num_samples": 16, "optimizer_cls": torch.optim.Adam, "optimizer_kwargs": {"lr": 0.1}}
    return {
        "TD-MPC2 plan 512 x 6, as released": (our(mppi, released=True), their(MPPISolver, **elite)),
        "MPPI 512 x 6": (our(functools.partial(mppi, proposals=0)), their(MPPISolver, **elite)),
        "CEM 512 x 6": (our(cem), their(CEMSolver, **elite)),
        "CEM 512 x 6, 4 environments": (our(cem, rows=4), their(CEMSolver, rows=4, batch_size=4, **elite)),
        "iCEM 512 x 6": (our(icem), their(ICEMSolver, **elite)),
        "predictive sampling 512": (
            our(functools.partial(PredictiveSampling, samples=512, **same)),
            their(PredictiveSamplingSolver, num_samples=512),
        ),
        "gradient planning 16 x 10": (
            our(functools.partial(Gradient, samples=16, iterations=10, **same)),
            their(GradientSolver, **gradient),
        ),
    }


def rate(asked: Effort) -> list[dict[str, Any]]:
    """Return how often the main job's model plans, and how near that is to the machine's matrix products."""
    torch.compiler.reset()
    count = flops(NANO, **{name: PLAN[name] for name in ("horizon", "samples", "iterations")})
    learner, make = ours.build_lean(NANO), functools.partial(MPPI, **PLAN)
    parties = {
        "": _our_plan(make, learner, NANO, released=True),
        ", compiled": _our_plan(make, learner, NANO, released=True, compiled=True),
    }
    rates = measure({**parties, "product": _product(PLAN["samples"], NANO.width)}, asked)
    product = float(np.median(rates["product"].processor))
    label = f"TD-MPC2 plan {PLAN['samples']} x {PLAN['iterations']}, our layers, {NANO.name}, H {PLAN['horizon']}"
    rows = [
        quantity(f"{label}: its matrix products", count / 1e9, "GFLOP a decision"),
        quantity(f"matrix product {PLAN['samples']} x {NANO.width} x {NANO.width}", product / 1e9, "GFLOP/s"),
    ]
    for kind in parties:
        wall, processor = (float(np.median(side)) for side in rates[kind])
        rows.append(quantity(label + kind, wall, "decisions/s"))
        rows.append(quantity(f"{label}{kind}, of a core of its own", processor, "decisions/s"))
        rows.append(quantity(f"{label}{kind}, of the matrix product's rate", 100 * processor * count / product, "%"))
    return rows


def flops(size: Size, horizon: int, samples: int, iterations: int) -> float:
    """Return the floating point operations of the matrix products of one decision with two critics."""

    def net(inputs: int, outputs: int) -> int:
        return 2 * (inputs * size.width + size.width**2 + size.width * outputs)

    both = size.latent + size.actions
    step = net(both, size.latent) + net(both, 51)
    leaf = net(size.latent, 2 * size.actions) + 2 * net(both, 51)
    return samples * iterations * (horizon * step + leaf)


def _product(rows: int, width: int) -> Callable[[], float]:
    left, right, out = torch.randn(rows, width), torch.randn(width, width), torch.empty(rows, width)

    def multiply() -> float:
        for _ in range(50):
            torch.mm(left, right, out=out)
        return 50 * 2.0 * rows * width**2

    return multiply


def _our_plan(
    make: Callable[..., Any], learner: Any, size: Size, released: bool = False, rows: int = 1, compiled: bool = False
) -> Callable[[], float]:
    model, policy, critic = learner.model.eval(), learner.policy.eval(), learner.objective.critic.eval()

    def all_critics(view: Any) -> torch.Tensor:
        return critic.value(view, policy.mode(view).action).mean(0)

    value = Leaf(policy, critic) if released else all_critics
    planner = make(model, policy, size.actions, value=value, compiled=compiled)
    obs = {"state": data(size).obs[:rows, 0]}

    @torch.no_grad()
    def decide() -> float:
        planner.plan(model.start(obs))
        return rows

    return decide


def _their_plan(make: Callable[..., Any], size: Size, horizon: int, rows: int = 1, **asked: Any) -> Callable[[], float]:
    solver = make(peer.build(size).eval(), **asked)
    box = spaces.Box(-1.0, 1.0, (1, size.actions), np.float32)
    solver.configure(action_space=box, n_envs=rows, config=SimpleNamespace(horizon=horizon, action_block=1))
    obs = {"state": data(size).obs[:rows, 0]}
    silent = io.StringIO()

    def decide() -> float:
        with contextlib.redirect_stdout(silent):  # it prints a line for each decision
            solver.solve(obs)
        return rows

    return decide


if __name__ == "__main__":
    main()
