"""What a dreamt plan is worth, by hand."""

import pytest
import torch
from torch import nn

from dreamsim.core.protocols import MissingPower
from dreamsim.core.types import Act, Rollout
from dreamsim.imagination.score import Cautious, Effort, Leaf, Nearness, Return, Weighted


def dream(**fields):
    """One plan of two steps: rewards 1 and 2, chances of going on 0.5 and 0.8."""
    view = {"latent": torch.tensor([[[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]]]), "goal": torch.zeros(1, 3, 2)}
    action = torch.tensor([[[0.5, 0.0], [1.0, -1.0]]])
    found = Rollout(view, action, torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.8]]), {}, None)
    return found._replace(**fields)


def test_a_return_counts_later_rewards_by_the_chance_to_live_for_them():
    plain, led = Return(0.9)(dream()), Return(0.9, lambda view: view["latent"][:, 0])(dream())
    torch.testing.assert_close(plain, torch.tensor([1 + 0.9 * 0.5 * 2]))
    torch.testing.assert_close(led, plain + 0.9**2 * 0.5 * 0.8 * 3)  # the last view's first number is 3
    ends = Return(0.9, absorbing=-4.0)(dream())
    torch.testing.assert_close(ends, plain - 4 * (0.9 * 0.5 + 0.9 * 0.5 * 0.9 * 0.2))


def test_distances_and_effort():
    torch.testing.assert_close(Nearness()(dream()), torch.tensor([-25.0]))
    torch.testing.assert_close(Nearness(whole=True)(dream()), torch.tensor([-26.0]))
    torch.testing.assert_close(Effort()(dream()), torch.tensor([-2.25]))
    both = Weighted([Nearness, Effort], [1.0, 0.1])
    torch.testing.assert_close(both(dream()), torch.tensor([-25.225]))
    with pytest.raises(KeyError, match="no part 'goal'"):
        Nearness()(dream(view={"latent": torch.zeros(1, 3, 2)}))


def test_a_leaf_is_the_mean_of_two_random_critics_at_the_policy_s_action():
    class Critic:
        members = 5

        def value(self, view, action, members=None):
            chosen = torch.arange(self.members) if members is None else members
            return 10.0 ** chosen.float()[:, None] * action[:, 0]

    class Half(nn.Module):
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.full((len(view["latent"]), 1), 0.5))

    torch.manual_seed(0)
    view = {"latent": torch.zeros(3, 2)}
    pairs = {float(Leaf(Half(), Critic())(view)[0]) for _ in range(200)}
    assert pairs == {0.25 * (10**i + 10**j) for i in range(5) for j in range(i)}
    every = Leaf(Half(), Critic(), count=5)(view)
    torch.testing.assert_close(every, torch.full((3,), 0.1 * 11111))


def test_doubt_costs_reward():
    class Doubtful(nn.Module):
        def step(self, state, action):
            return state + 1, torch.ones(2), torch.ones(2)

        def uncertainty(self, state, action):
            return state[:, 0] * action[:, 0]

        def view(self, state):
            return {"latent": state}

    world = Cautious(Doubtful(), 0.5)
    state, reward, proceed = world.step(torch.tensor([[2.0], [4.0]]), torch.tensor([[1.0], [0.5]]))
    assert reward.tolist() == [0.0, 0.0] and state.tolist() == [[3.0], [5.0]] and proceed.sum() == 2
    with pytest.raises(MissingPower, match="uncertainty"):
        Cautious(nn.Identity())
