"""SAC's losses against sums by hand, and what they may move."""

import functools

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Act, Learned, Segment
from dreamsim.training.objectives.soft_actor_critic import SoftActorCritic
from worldmodels.actors import PlainQ, SquashedGaussian

SPACE, ACTIONS = spaces.Dict({"observation": spaces.Box(-1, 1, (3,))}), spaces.Box(-1, 1, (2,))


class Shown(nn.Module):
    """A model whose belief is its view."""

    def view(self, state):
        return state


class Fixed(nn.Module):
    """Acts by 0.1 times the first two observations and says a log-probability of 0.5 times the third."""

    def act(self, view, memory=None, first=None, applied=None):
        x = view["observation"]
        return Act(0.1 * x[..., :2], None, {"log_prob": 0.5 * x[..., 2]})


def windows(rows=6, steps=2) -> Segment:
    draw = functools.partial(torch.rand, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(rows, steps)
    mask[-1, 1:] = 0
    ended = torch.zeros(rows, steps, dtype=torch.bool)
    ended[0, -1] = True
    return Segment(
        {"observation": draw(rows, steps + 1, 3)}, draw(rows, steps, 2), draw(rows, steps), ended, mask, {}, None,
        torch.zeros(rows, 2, dtype=torch.long),
    )  # fmt: skip


def made(**options) -> SoftActorCritic:
    torch.manual_seed(1)
    found = SoftActorCritic(SPACE, ACTIONS, functools.partial(PlainQ, width=16), temperature=0.3, **options)
    for critic in (found.critic, found.target):
        nn.init.normal_(critic.net.weight3)
    return found


def judged(objective, policy, batch):
    return objective.loss(Shown(), policy, batch, Learned({}, batch.obs, batch.obs))


def test_losses_equal_the_sums_by_hand():
    objective, batch = made(discount=0.9), windows()
    losses = judged(objective, Fixed(), batch).losses
    value = policy = entropy = 0.0
    for row in range(6):
        for t in range(2):
            if not batch.mask[row, t]:
                continue
            x, after = batch.obs["observation"][row, t], batch.obs["observation"][row, t + 1]
            future = objective.target.value({"observation": after}, 0.1 * after[:2]).min() - 0.3 * 0.5 * after[2]
            target = batch.reward[row, t] + 0.9 * future * (not batch.terminated[row, t])
            both = objective.critic.value({"observation": x}, batch.action[row, t])
            value = value + ((both - target.detach()) ** 2).sum() / 11
            policy = policy + (0.3 * 0.5 * x[2] - objective.critic.value({"observation": x}, 0.1 * x[:2]).min()) / 11
            entropy = entropy - 0.5 * x[2] / 11
    torch.testing.assert_close(losses["value"], value)
    torch.testing.assert_close(losses["policy"], policy)
    torch.testing.assert_close(losses["temperature"], objective.log_temperature * (entropy + 2))


def test_a_terminated_step_has_no_future_and_a_truncated_one_has():
    objective, batch = made(), windows(2, 1)
    view, ended = batch.obs, torch.tensor([[True], [False]])
    target = objective._target(batch._replace(terminated=ended), view, Fixed().act(view), torch.tensor(0.3))
    assert target[0] == batch.reward[0] and (target[1] - batch.reward[1]).abs() > 1e-3


def test_padding_reaches_no_loss():
    objective, batch = made(), windows()
    wild = {"observation": batch.obs["observation"].clone()}
    wild["observation"][-1, 2] = 9.0
    noisy = batch._replace(obs=wild, action=batch.action.clone(), reward=batch.reward.clone())
    noisy.action[-1, 1], noisy.reward[-1, 1] = 1.0, 50.0
    torch.testing.assert_close(judged(objective, Fixed(), noisy).losses, judged(objective, Fixed(), batch).losses)


def test_each_loss_moves_its_own_part_only():
    objective, batch = made(), windows()
    policy = SquashedGaussian(SPACE, ACTIONS, width=16)
    parts = {"value": objective.critic, "policy": policy}
    for name in ("value", "policy", "temperature"):
        for module in (objective, policy):
            module.zero_grad()
        judged(objective, policy, batch).losses[name].backward()
        moved = {
            part: any(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
            for part, module in parts.items()
        }
        assert moved == {"value": name == "value", "policy": name == "policy"}
        assert (objective.log_temperature.grad is not None) == (name == "temperature")
        assert all(p.grad is None for p in objective.target.parameters())


def test_the_temperature_rises_while_the_policy_is_too_sure():
    objective, batch = made(), windows()
    for sure, sign in ((5.0, -1), (-5.0, 1)):  # log-probability far above, then far below, what the target wants
        policy = Fixed()
        policy.act = lambda view, *_, sure=sure: Act(
            view["observation"][..., :2], None, {"log_prob": torch.full(view["observation"].shape[:-1], sure)}
        )
        objective.log_temperature.grad = None
        judged(objective, policy, batch).losses["temperature"].backward()
        assert objective.log_temperature.grad * sign > 0


def test_target_critics_follow_slowly():
    objective = made(target_rate=0.25)
    before = objective.target.net.weight3.clone()
    objective.settle()
    expected = 0.75 * before + 0.25 * objective.critic.net.weight3
    torch.testing.assert_close(objective.target.net.weight3, expected)


def test_discrete_actions_and_recordings_without_rewards_are_refused():
    with pytest.raises(ValueError, match="Box"):
        SoftActorCritic(SPACE, spaces.Discrete(2), functools.partial(PlainQ, width=16))
    with pytest.raises(ValueError, match="rewards"):
        judged(made(), Fixed(), windows()._replace(reward=None))
