"""One gradient step: flat parameters, clipping, averaging, and what stays still."""

import functools

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Learned, Segment
from dreamsim.training.flat import Flat
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.objectives.policy_prior import PolicyPrior, RunningScale, frozen
from tests.training.conftest import CRITIC
from worldmodels.actors import Categorical, SquashedGaussian
from worldmodels.decoder_free import DecoderFree

SPACE, ACTIONS = spaces.Dict({"observation": spaces.Box(-1, 1, (3,))}), spaces.Box(-1, 1, (2,))


def batch(seed=0, rows=8) -> Segment:
    generator = torch.Generator().manual_seed(seed)
    draw = functools.partial(torch.rand, generator=generator)
    return Segment(
        {"observation": draw(rows, 4, 3)}, draw(rows, 3, 2), draw(rows, 3), torch.zeros(rows, 3, dtype=torch.bool),
        torch.ones(rows, 3), {}, None, torch.zeros(rows, 2, dtype=torch.long),
    )  # fmt: skip


def parts(imagined=2, **options):
    torch.manual_seed(0)
    model = DecoderFree(SPACE, ACTIONS, latent=16, width=16, encoder_width=16)
    policy = SquashedGaussian(model.view_space, ACTIONS, width=16)
    return model, policy, PolicyPrior(model.view_space, ACTIONS, CRITIC, imagined=imagined, **options)


@pytest.mark.parametrize("imagined", [0, 2])
def test_flat_parameters_learn_exactly_as_separate_ones(imagined):
    """The same updates by torch's own tools, parameter by parameter."""
    learner = Learner(*parts(imagined), average=0.0)
    model, policy, objective = parts(imagined)
    groups = objective.groups(model, policy)
    adam = torch.optim.Adam([{"params": g["params"], "lr": g["lr"]} for g in groups])
    for seed in range(3):
        torch.manual_seed(seed)
        learner.update(batch(seed))
        torch.manual_seed(seed)
        learned = model.loss(batch(seed))
        judged = objective.loss(model, policy, batch(seed), learned)
        adam.zero_grad()
        sum([*learned.losses.values(), *judged.losses.values()]).backward()
        torch.nn.utils.clip_grad_norm_([p for g in groups[:3] for p in g["params"]], 20.0)
        torch.nn.utils.clip_grad_norm_(groups[3]["params"], 20.0)
        adam.step()
        objective.settle()
    for mine, plain in ((learner.model, model), (learner.policy, policy), (learner.objective, objective)):
        torch.testing.assert_close(mine.state_dict(), plain.state_dict(), atol=1e-6, rtol=1e-4)


def test_the_policy_s_loss_moves_neither_model_nor_critics():
    model, policy, objective = parts()
    losses = objective.loss(model, policy, batch(), model.loss(batch())).losses
    losses["policy"].backward()
    assert all(p.grad is None or p.grad.abs().sum() == 0 for p in [*model.parameters(), *objective.critic.parameters()])
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())


def test_the_critics_loss_shapes_the_encoder():
    model, policy, objective = parts()
    nn.init.normal_(objective.critic.net.weight3)
    objective.loss(model, policy, batch(), model.loss(batch())).losses["value"].backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.encoder.parameters())


def test_a_terminated_step_has_no_future_and_a_truncated_one_has():
    model, policy, objective = parts()
    nn.init.normal_(objective.target.net.weight3)
    data = batch()
    ended = data.terminated.clone()
    ended[0] = True
    view = model.view(model.loss(data).observed)
    following = {"latent": view["latent"][:, 1:]}
    target = objective._targets(policy, data._replace(terminated=ended), following)
    torch.testing.assert_close(target[0], data.reward[0])
    assert (target[1:] - data.reward[1:]).abs().min() > 0


def test_what_follows_a_termination_is_worth_what_the_user_says():
    """With costs for rewards and 0 behind the end, ending early would be the best; the absorbing value mends it."""
    model, policy, objective = parts(absorbing=-50.0)
    data = batch()
    ended = data.terminated.clone()
    ended[0] = True
    following = {"latent": model.loss(data).observed["latent"][:, 1:]}
    target = objective._targets(policy, data._replace(terminated=ended), following)
    torch.testing.assert_close(target[0], data.reward[0] - 0.99 * 50)


class ExactCorridor(nn.Module):
    """Corridor's five cells as a table: the step onto the last cell gives 1 and ends."""

    def step(self, state, action):
        cell = state["latent"]
        right = torch.cat([torch.zeros_like(cell[:, :1]), cell[:, :-1]], 1)
        left = torch.cat([cell[:, 1:], torch.zeros_like(cell[:, :1])], 1)
        following = action[:, 1:] * right + action[:, :1] * left
        return {"latent": following}, following[:, 4], 1 - following[:, 4]

    def view(self, state):
        return state

    def loss(self, batch):
        cells = batch.obs["observation"]
        return Learned({}, {"latent": cells}, {"latent": cells})


def test_the_last_action_before_the_goal_gets_its_credit():
    """Its own reward counts although it ends the episode, and what comes behind the end counts for nothing."""
    space, actions = spaces.Dict({"latent": spaces.Box(0, 1, (5,))}), spaces.Discrete(2)
    torch.manual_seed(0)
    policy = Categorical(space, actions, width=16)
    nn.init.normal_(policy.net[-1].weight)
    objective = PolicyPrior(space, actions, CRITIC, imagined=3, entropy=0.0, discount=0.5)
    nn.init.normal_(objective.critic.net.weight3)  # which has much to say of what comes behind
    before_goal = {"latent": torch.eye(5)[[3]]}
    gain, _ = objective._dream(ExactCorridor(), Right(policy), before_goal)
    assert float(gain) == 1.0
    data = Segment(
        {"observation": torch.eye(5)[torch.tensor([[3, 4]])]}, torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1),
        torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1), {}, None, torch.zeros(1, 2, dtype=torch.long),
    )  # fmt: skip
    model = ExactCorridor()
    objective.loss(model, policy, data, model.loss(data)).losses["policy"].backward()
    assert policy.net[-1].bias.grad[1] < 0 < policy.net[-1].bias.grad[0]


class Right(nn.Module):
    """Always goes right."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def act(self, view, memory=None, first=None, applied=None):
        act = self.policy.act(view)
        return act._replace(action=torch.tensor([[0.0, 1.0]]).expand_as(act.action))


def test_padding_changes_no_loss_of_the_objective():
    model, policy, objective = parts()
    nn.init.normal_(objective.critic.net.weight3)
    data = batch()
    data.mask[1, 1:] = 0

    def losses(data):
        torch.manual_seed(3)
        objective.scale.value.fill_(1.0)
        return objective.loss(model, policy, data, model.loss(data)).losses

    clean = losses(data)
    data.reward[1, 1:] = 100.0
    data.obs["observation"][1, 2:] = 7.0
    torch.testing.assert_close(clean, losses(data))


def test_without_imagination_the_policy_s_loss_is_the_paper_s():
    """-(Q / scale + entropy weight * entropy), weighted by 0.5 ** t over all latents of the window, Q a mean of two."""
    model, policy, objective = parts(imagined=0)
    nn.init.normal_(objective.critic.net.weight3)
    data = batch()
    learned = model.loss(data)
    torch.manual_seed(4)
    judged = objective.loss(model, policy, data, learned)
    torch.manual_seed(4)
    policy.act({"latent": learned.observed["latent"][:, 1:]})  # the draw of the critics' targets comes first
    latents = learned.states["latent"].detach().flatten(0, 1)
    act = policy.act({"latent": latents})
    value = objective.critic.value({"latent": latents}, act.action).mean(0).unflatten(0, (8, 4))
    low, high = torch.quantile(value[:, 0].detach(), torch.tensor([0.05, 0.95])).tolist()
    scale = 1 + 0.01 * (max(1.0, high - low) - 1)
    entropy = act.trace["entropy"].unflatten(0, (8, 4))
    by_hand = -((value / scale + 1e-4 * entropy).mean(0) * 0.5 ** torch.arange(4)).mean()
    torch.testing.assert_close(judged.losses["policy"], by_hand, atol=1e-5, rtol=1e-4)


def test_with_imagination_it_is_the_discounted_dream_and_its_leaf():
    """Two steps by hand: r0 + d r1 + d^2 Q, the model's own rewards, gradients only into the policy."""
    model, policy, objective = parts(imagined=2)
    nn.init.normal_(objective.critic.net.weight3)
    nn.init.normal_(model.reward[-1].weight)
    data = batch()
    learned = model.loss(data)
    torch.manual_seed(4)
    judged = objective.loss(model, policy, data, learned)
    torch.manual_seed(4)
    policy.act({"latent": learned.observed["latent"][:, 1:]})
    state, gain, entropy = {"latent": learned.observed["latent"][:, 0]}, 0.0, 0.0
    for k in range(2):
        act = policy.act(state)
        state, reward, _ = model.step(state, act.action)
        gain, entropy = gain + 0.99**k * reward, entropy + 0.99**k * act.trace["entropy"]
    act = policy.act(state)
    gain = gain + 0.99**2 * objective.critic.value(state, act.action).mean(0)
    entropy = entropy + 0.99**2 * act.trace["entropy"]
    by_hand = -(gain / objective.scale.value + 1e-4 * entropy).mean()
    torch.testing.assert_close(judged.losses["policy"], by_hand, atol=1e-5, rtol=1e-4)
    assert judged.imagined == 16


def test_shorter_dreams_are_weighed_in_as_lambda_returns_weigh_them():
    """By hand: (1 - b) Q0 + b (r0 + d ((1 - b) Q1 + b (r1 + d Q2))), the same actions judged and dreamt."""
    model, policy, objective = parts(imagined=2, blend=0.6)
    nn.init.normal_(objective.critic.net.weight3)
    nn.init.normal_(model.reward[-1].weight)
    data = batch()
    learned = model.loss(data)
    torch.manual_seed(4)
    judged = objective.loss(model, policy, data, learned)
    torch.manual_seed(4)
    policy.act({"latent": learned.observed["latent"][:, 1:]})
    state, values, rewards, entropy = {"latent": learned.observed["latent"][:, 0]}, [], [], 0.0
    for k in range(3):
        act = policy.act(state)
        values.append(objective.critic.value(state, act.action).mean(0))
        entropy = entropy + 0.99**k * act.trace["entropy"]
        if k < 2:
            state, reward, _ = model.step(state, act.action)
            rewards.append(reward)
    one = rewards[1] + 0.99 * values[2]
    zero = rewards[0] + 0.99 * (0.4 * values[1] + 0.6 * one)
    gain = 0.4 * values[0] + 0.6 * zero
    by_hand = -(gain / objective.scale.value + 1e-4 * entropy).mean()
    torch.testing.assert_close(judged.losses["policy"], by_hand, atol=1e-5, rtol=1e-4)


def test_the_target_follows_slowly():
    _, _, objective = parts(target_rate=0.25)
    before = objective.target.net.weight1.clone()
    with torch.no_grad():
        objective.critic.net.weight1.add_(1.0)
    objective.settle()
    torch.testing.assert_close(objective.target.net.weight1, before + 0.25)


def test_the_steady_policy_is_the_running_average():
    learner = Learner(*parts(), average=0.9)
    expected = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    for seed in range(3):
        learner.update(batch(seed))
        for name, value in learner.policy.state_dict().items():
            expected[name] = 0.9 * expected[name] + 0.1 * value
    torch.testing.assert_close(dict(learner.steady.state_dict()), expected)


def test_a_frozen_model_stays_as_it_is():
    model, policy, objective = parts()
    learner = Learner(model, policy, objective, learn_model=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_round(learner, [batch(), batch(1)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_rounds_draw_from_their_own_stream():
    one, two = Learner(*parts(), seed=5), Learner(*parts(), seed=5)
    run_round(one, [batch()])
    torch.rand(7)
    run_round(two, [batch()])
    assert torch.equal(one.policy.net[0].linear.weight, two.policy.net[0].linear.weight)


def test_freezing_is_undone_even_after_an_error():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), frozen(layer):
        assert not layer.weight.requires_grad
        raise RuntimeError
    assert layer.weight.requires_grad


def test_the_running_scale_is_the_middle_ninety_percent():
    scale = RunningScale(rate=1.0)
    scale.update(torch.arange(101.0))
    assert float(scale.value) == pytest.approx(90.0)
    scale.update(torch.zeros(10))
    assert float(scale.value) == 1.0


def test_a_flat_group_must_share_its_type():
    with pytest.raises(ValueError, match="dtype"):
        Flat([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="nothing to learn"):
        Flat([nn.Parameter(torch.zeros(2), requires_grad=False)])


def test_memory_stays_flat_and_no_loss_keeps_its_graph():
    learner = Learner(*parts())
    for seed in range(3):
        scalars, _, _ = learner.update(batch(seed))
        assert all(not value.requires_grad for value in scalars.values())
