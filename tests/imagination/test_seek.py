"""Planning towards a goal by latent distance, in a world whose best plan is known."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.imagination.plan import MPPI, Gradient
from dreamsim.imagination.seek import Toward, seek


class Plane(nn.Module):
    """A point that moves by a tenth of the action; its latent is twice where it is."""

    def start(self, obs):
        return {"at": obs["at"]}

    def update(self, state, action, obs):
        return {"at": obs["at"]}

    def step(self, state, action):
        return {"at": state["at"] + 0.1 * action}, action.new_zeros(len(action)), action.new_ones(len(action))

    def view(self, state):
        return {"latent": 2 * state["at"]}


ACTIONS = spaces.Box(-1, 1, (2,))


def test_the_view_carries_the_goal_as_the_model_sees_it_and_a_dream_keeps_it():
    world = Toward(Plane())
    obs = {"at": torch.zeros(3, 2), "goal/at": torch.ones(3, 2)}
    state = world.start(obs)
    assert torch.equal(world.view(state)["goal"], torch.full((3, 2), 2.0))
    state, _, _ = world.step(state, torch.ones(3, 2))
    assert torch.equal(world.view(state)["goal"], torch.full((3, 2), 2.0))
    torch.testing.assert_close(world.view(state)["latent"], torch.full((3, 2), 0.2))
    state = world.update(state, torch.ones(3, 2), {"at": torch.zeros(3, 2), "goal/at": -torch.ones(3, 2)})
    assert torch.equal(world.view(state)["goal"], torch.full((3, 2), -2.0))


@pytest.mark.parametrize("planner", [None, MPPI, Gradient])
def test_every_row_reaches_its_own_goal_and_stays(planner):
    torch.manual_seed(0)
    options = {"planner": planner} if planner else {"samples": 64, "elites": 8, "iterations": 6}
    policy = seek(Plane(), ACTIONS, whole=True, horizon=4, **options)
    at = torch.zeros(3, 2)
    goal = torch.tensor([[0.5, -0.5], [0.0, 0.3], [-0.4, 0.1]])
    memory = None
    for _ in range(9):
        act = policy.mode({"at": at, "goal/at": goal}, memory)
        memory = act.memory
        at = at + 0.1 * act.action
    assert (at - goal).norm(dim=-1).max() < 0.08


def test_an_observation_without_its_goal_is_refused():
    with pytest.raises(KeyError, match="goal/at"):
        Toward(Plane()).start({"at": torch.zeros(1, 2)})
