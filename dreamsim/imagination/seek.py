"""Reaching goals without rewards: a model's world that carries a goal, and the policy that plans towards it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Obs, State
from dreamsim.imagination.plan import CEM, Deliberate
from dreamsim.imagination.score import Nearness

GOAL = "goal/"  # before the name of an observation: how it is where the row wants to be


class Toward(nn.Module):
    """A model's world in which each row has a goal, told by observations ``goal/NAME`` beside every NAME.

    State is ``{"world": the model's, "goal": (B, ...)}``: what the model's view shows as ``part`` of a belief that
    has seen the goal alone. The view is the model's own and ``goal``, so that ``score.Nearness`` can compare them.
    A goal may change from one observation to the next; within a dream it stays. Raises KeyError where a goal is
    missing.
    """

    def __init__(self, model: Any, part: str = "latent") -> None:
        super().__init__()
        self.model = model
        self.part = part

    def start(self, obs: Obs) -> State:
        """Return the belief after first observations (B, ...) and their goals."""
        own, goal = _apart(obs)
        return {"world": self.model.start(own), "goal": self._seen(goal)}

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after seeing ``obs`` follow ``action``, with the goal that is now told."""
        own, goal = _apart(obs)
        return {"world": self.model.update(state["world"], action, own), "goal": self._seen(goal)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step; the goal stays."""
        world, reward, proceed = self.model.step(state["world"], action)
        return {"world": world, "goal": state["goal"]}, reward, proceed

    def view(self, state: State) -> Obs:
        """Show what the model shows, and the goal."""
        return {**self.model.view(state["world"]), "goal": state["goal"]}

    def _seen(self, goal: Obs) -> Tensor:
        return self.model.view(self.model.start(goal))[self.part]


def seek(
    model: nn.Module,
    action_space: spaces.Space,
    part: str = "latent",
    whole: bool = False,
    planner: Callable[..., nn.Module] = CEM,
    **options: Any,
) -> Deliberate:
    """Return a policy on observations and goals (B, ...) that plans to where the two look alike to ``model``.

    The score of a plan is minus the squared distance between ``part`` of its last view and the goal's, or with
    ``whole`` the sum over all its steps. ``options`` are the planner's. Source: LeWM and DINO-WM (Zhou et al. 2024),
    which plan so by the cross-entropy method.
    """
    world = Toward(model, part)
    score = functools.partial(Nearness, part=part, whole=whole)
    return Deliberate(world, planner(world, None, action_space, score=score, **options))


def _apart(obs: Obs) -> tuple[Obs, Obs]:
    """Return the observations and those of the goal under the same names."""
    goal = {name.removeprefix(GOAL): part for name, part in obs.items() if name.startswith(GOAL)}
    own = {name: part for name, part in obs.items() if not name.startswith(GOAL)}
    if goal.keys() != own.keys():
        missing = ", ".join(sorted(GOAL + name for name in own.keys() - goal.keys())) or "no goal"
        raise KeyError(f"each observation wants its goal beside it: {sorted(obs)} lacks {missing}")
    return own, goal
