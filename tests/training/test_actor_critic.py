"""DreamerV3's actor-critic equals its equations written out plainly."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Act, Learned, Segment
from dreamsim.training.objectives.actor_critic import ActorCritic, ReturnRange
from worldmodels.recurrent_actors import BoundedNormal, OneHot, Value

VIEW, BOX = spaces.Dict({"latent": spaces.Box(-9, 9, (1,))}), spaces.Box(-1, 1, (1,))
DISCOUNT = 1 - 1 / 333


class Ramp(nn.Module):
    """A world whose state counts up by one a step; reward is the state reached; it may end with probability 0.1."""

    def step(self, state, action):
        state = {"latent": state["latent"] + 1}
        reward = state["latent"][..., 0]
        return state, reward, torch.full_like(reward, 0.9)

    def view(self, state):
        return state


class Const(nn.Module):
    """A critic that values a view at twice its number; its loss is the distance to a target."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Parameter(torch.tensor(2.0))

    def value(self, view):
        return self.twice * view["latent"][..., 0]

    def judge(self, view):
        value = self.value(view)
        return value.detach(), lambda target: (value - target).square()


class Steady(nn.Module):
    """A policy whose log-probability of anything is its one parameter, and its entropy ten times that."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.tensor(-1.0))

    def act(self, view, memory=None, first=None, applied=None):
        return Act(torch.zeros_like(view["latent"]))

    def log_prob(self, view, action):
        log = self.log.expand(view["latent"].shape[:-1])
        return log, 10 * log


def batch(states, reward, terminated, mask):
    rows, steps = reward.shape
    segment = Segment(
        {"latent": states}, torch.zeros(rows, steps, 1), reward, terminated, mask, {}, None, torch.zeros(rows, 2).long()
    )
    return segment, Learned({}, {"latent": states.requires_grad_()}, {"latent": states.detach()})


def test_every_loss_equals_its_equation():
    """Three real steps from 0, the last of the second row padding, and dreams of two steps from each."""
    objective = ActorCritic(VIEW, BOX, lambda space: Const(), imagined=2)
    states = torch.tensor([[0.0, 1, 2, 3], [5, 6, 7, 0]])[..., None]
    terminated = torch.tensor([[False, False, True], [False, False, False]])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    reward = torch.tensor([[0.5, 0.25, 4.5], [1, 2, 0]])
    data, learned = batch(states, reward, terminated, mask)
    policy = Steady()
    judged = objective.loss(Ramp(), policy, data, learned)
    returns = {}
    value_loss = policy_loss = 0.0
    samples = []
    for row in range(2):
        for t in range(3):
            x = float(states[row, t + 1, 0])
            r2 = (x + 2) + DISCOUNT * 0.9 * 2 * (x + 2)
            r1 = (x + 1) + DISCOUNT * 0.9 * (0.05 * 2 * (x + 1) + 0.95 * r2)
            returns[row, t] = r1
            going = float(mask[row, t]) * (not terminated[row, t])
            if going:
                samples += [r1, r2]
            for r, v, w in ((r1, 2 * x, going), (r2, 2 * (x + 1), going * DISCOUNT * 0.9)):
                value_loss += w * (v - r) ** 2 / (5 * 2)
                policy_loss += w * (r - v) / (5 * 2)
    ordered = torch.tensor(samples)
    low, high = 0.01 * torch.quantile(ordered, 0.05), 0.01 * torch.quantile(ordered, 0.95)
    scale = max(1.0, float(high - low))
    torch.testing.assert_close(objective.range.low, low)
    torch.testing.assert_close(judged.losses["value"].detach(), torch.tensor(value_loss))
    (slope,) = torch.autograd.grad(judged.losses["policy"], policy.log, retain_graph=True)
    weights = sum(
        (1 + DISCOUNT * 0.9) / 10 for row in range(2) for t in range(3) if mask[row, t] and not terminated[row, t]
    )
    torch.testing.assert_close(slope, torch.tensor(-(policy_loss / scale + 3e-3 * weights)))
    # Along the replay: values of the states 1 and 2 (6 and, padded after, 7) rest on the dreamt returns reached.
    last = 4.5  # the third step terminated
    first = 0.25 + DISCOUNT * (0.05 * returns[0, 1] + 0.95 * last)
    other = 2.0 + DISCOUNT * returns[1, 1]  # what follows is padding: no further sum
    expected = ((2 - first) ** 2 + (4 - last) ** 2 + (12 - other) ** 2) / 3
    torch.testing.assert_close(judged.losses["replay"].detach(), torch.tensor(0.3 * expected))
    (into_model,) = torch.autograd.grad(judged.losses["replay"], learned.states["latent"])
    assert (into_model[..., 0] != 0).tolist() == [[False, True, True, False], [False, True, False, False]]
    assert judged.imagined == 12


def test_the_range_of_returns_moves_from_zero_and_is_at_least_one():
    span = ReturnRange(0.5)
    span.update(torch.arange(101.0))
    torch.testing.assert_close(span.low, torch.tensor(2.5))
    torch.testing.assert_close(span.high, torch.tensor(47.5))
    assert span.value == 45.0 and ReturnRange().value == 1.0
    span.update(torch.empty(0))
    assert span.value == 45.0


def test_the_slow_critic_follows():
    objective = ActorCritic(VIEW, BOX, lambda space: Const())
    objective.critic.twice.data.fill_(3.0)
    objective.settle()
    torch.testing.assert_close(objective.slow.twice, torch.tensor(2.02))
    assert not objective.slow.twice.requires_grad


@pytest.mark.parametrize(("actor", "space"), [(BoundedNormal, BOX), (OneHot, spaces.Discrete(4))])
def test_an_actor_weighs_its_own_samples_as_it_traced_them(actor, space):
    torch.manual_seed(0)
    policy, view = actor(VIEW, space), {"latent": torch.randn(500, 1)}
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    act = policy.act(view)
    log_prob, entropy = policy.log_prob(view, act.trace.get("sample", act.action))
    torch.testing.assert_close(log_prob, act.trace["log_prob"])
    torch.testing.assert_close(entropy, act.trace["entropy"])
    assert act.action.abs().max() <= 1 and log_prob.requires_grad
    assert abs(float(-act.trace["log_prob"].mean() - entropy.mean())) < 0.15  # an entropy is a mean of -log


def test_the_normal_has_the_published_std_at_the_start_and_its_bounds():
    policy, view = BoundedNormal(VIEW, BOX), {"latent": torch.zeros(1, 1)}
    policy.net[-1].weight.data.zero_()
    mean, std = policy._normal(view)
    assert float(mean) == 0 and float(std) == pytest.approx(0.1 + 0.9 / (1 + 2.718281828**-2))


def test_a_value_starts_at_exactly_zero_and_learns_large_numbers():
    torch.manual_seed(0)
    critic, view = Value(VIEW), {"latent": torch.tensor([[-1.0], [1.0]])}
    assert critic.value(view).tolist() == [0.0, 0.0]
    optimiser = torch.optim.Adam(critic.parameters(), 3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        critic.fit(view, torch.tensor([-40.0, 700.0])).sum().backward()
        optimiser.step()
    torch.testing.assert_close(critic.value(view), torch.tensor([-40.0, 700.0]), rtol=0.05, atol=2.0)
