"""Imagined steps per second: ours, stable-worldmodel's, and bare calls of the same networks.

Dreams: ``imagine`` with a stochastic policy, without gradients; ours returns views, actions,
rewards, ends, log-probabilities and the last state. The peer's ``rollout`` returns actions
only and computes no rewards; the second row adds rewards to it with its own functions.
``our layers``: the same sizes with ReLU, as in our main job, where the peer has Mish.
Plans: one decision of MPPI at equal numbers of candidates, iterations, elites and critics.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.imagination.imagine import imagine
from dreamsim.imagination.plan import MPPI
from tests.benchmarks import ours, peer
from tests.benchmarks.measure import Effort, compare, effort, measure, publish
from tests.benchmarks.sizes import NANO, PAPER, PEER, Size, data

DREAMS = ((NANO, 64, 3), (NANO, 256, 15), (PEER, 256, 15), (PAPER, 256, 15))
PLANS = ((NANO, 3), (PEER, 5))
CANDIDATES, PROPOSALS, ELITES, ITERATIONS = 512, 24, 64, 6


def main() -> None:
    asked = effort(__doc__, turns=9, seconds=0.2)
    rows = [row for case in DREAMS for row in dreams(*case, asked)]
    rows += [row for case in PLANS for row in plans(*case, asked)]
    publish("imagination", rows, asked)


def dreams(size: Size, batch: int, horizon: int, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size, B dreams of H steps."""
    learner, theirs = ours.build(size), peer.build(size).eval()
    start = torch.softmax(torch.randn(batch, size.latent // 8, 8), -1).flatten(1)
    parties = {
        "ours": _imagine(learner, start, horizon),
        "rollout": peer.rollout(theirs, start, horizon),
        "rollout with rewards": peer.rollout_with_rewards(theirs, start, horizon),
        "bare networks": _bare(learner, start, horizon),
    }
    parties["our layers"] = _imagine(ours.build_lean(size), start, horizon)
    rates = measure(parties, asked)
    label = f"dream, {size.name}, B {batch}, H {horizon}"
    named = {"rollout": "stable-worldmodel, no rewards", "rollout with rewards": "stable-worldmodel"}
    others = [name for name in parties if name not in ("ours", "our layers")]
    rows = [compare(label, rates["ours"], rates[name], "steps/s", named.get(name, name)) for name in others]
    lean = rates["our layers"], rates["rollout with rewards"]
    return [*rows, compare(f"{label}, our layers", *lean, "steps/s", "stable-worldmodel")]


def plans(size: Size, horizon: int, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one size: decisions, counted in imagined candidate steps."""
    parties = {
        "": _our_plan(ours.build(size), size, horizon),
        ", our layers": _our_plan(ours.build_lean(size), size, horizon),
        "peer": _peer_plan(size, horizon),
    }
    rates = measure(parties, asked)
    label = f"plan, {size.name}, {CANDIDATES} x {ITERATIONS}, H {horizon}"
    kinds = ("", ", our layers")
    return [compare(label + kind, rates[kind], rates["peer"], "steps/s", "stable-worldmodel") for kind in kinds]


def _imagine(learner: Any, start: torch.Tensor, horizon: int) -> Callable[[], float]:
    learner.model.eval(), learner.policy.eval()

    @torch.no_grad()
    def dream() -> float:
        imagine(learner.model, learner.policy, {"latent": start}, horizon)
        return len(start) * horizon

    return dream


def _bare(learner: Any, start: torch.Tensor, horizon: int) -> Callable[[], float]:
    model, policy = learner.model, learner.policy

    @torch.no_grad()
    def dream() -> float:
        latent = start
        for _ in range(horizon):
            action = torch.tanh(policy.net(latent).chunk(2, -1)[0])
            both = torch.cat([latent, action], -1)
            model.reward(both)
            latent = model.dynamics(both)
        return len(start) * horizon

    return dream


def _our_plan(learner: Any, size: Size, horizon: int) -> Callable[[], float]:
    model, policy, critic = learner.model.eval(), learner.policy.eval(), learner.objective.critic.eval()
    planner = MPPI(
        model,
        policy,
        size.actions,
        horizon=horizon,
        samples=CANDIDATES,
        elites=ELITES,
        proposals=PROPOSALS,
        iterations=ITERATIONS,
        value=lambda view: critic.value(view, policy.mode(view).action).mean(0),
    )
    obs = {"state": data(size).obs[:1, 0]}

    @torch.no_grad()
    def decide() -> float:
        planner.plan(model.start(obs))
        return CANDIDATES * ITERATIONS * horizon

    return decide


def _peer_plan(size: Size, horizon: int) -> Callable[[], float]:
    from stable_worldmodel.solver import MPPISolver

    solver = MPPISolver(peer.build(size).eval(), num_samples=CANDIDATES, n_steps=ITERATIONS, topk=ELITES)
    box = spaces.Box(-1.0, 1.0, (1, size.actions), np.float32)
    solver.configure(action_space=box, n_envs=1, config=SimpleNamespace(horizon=horizon, action_block=1))
    obs = {"state": data(size).obs[:1, 0]}
    silent = io.StringIO()

    def decide() -> float:
        with contextlib.redirect_stdout(silent):  # it prints a line for each decision
            solver.solve(obs)
        return CANDIDATES * ITERATIONS * horizon

    return decide


if __name__ == "__main__":
    main()
