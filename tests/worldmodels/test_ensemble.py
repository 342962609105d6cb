"""PETS' ensemble on worlds with known answers."""

import copy
import functools
import math

import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from dreamsim.core.checks import check_world_model
from dreamsim.core.protocols import Decodes, FitsStatistics, Revises, Uncertain, find_power
from dreamsim.core.random import Stream
from dreamsim.core.types import Segment
from dreamsim.imagination.imagine import Script, imagine
from dreamsim.imagination.plan import CEM, MPPI, Deliberate
from dreamsim.training.learner import Learner, run_round
from worldmodels.ensemble import EachStep, Ensemble, Particles, WholeDream, mbpo, nano, pets

SPACE = spaces.Dict({"place": spaces.Box(-9, 9, (2,)), "speed": spaces.Box(-9, 9, (2, 1))})
ACTIONS = spaces.Box(-1, 1, (1,))
NOISE = torch.tensor([0.02, 0.1])


def small(**options) -> Ensemble:
    torch.manual_seed(3)
    return Ensemble(SPACE, ACTIONS, **{"members": 4, "elites": 3, "width": 16, "layers": 2, **options})


def windows(rows=8, steps=3, seed=0) -> Segment:
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(rows, steps)
    mask[-1, 1:] = 0
    index = torch.stack([torch.arange(rows), 5 * torch.arange(rows)], 1)
    obs = {"place": draw(rows, steps + 1, 2), "speed": draw(rows, steps + 1, 2, 1)}
    ended = torch.zeros(rows, steps, dtype=torch.bool)
    return Segment(obs, draw(rows, steps, 1), draw(rows, steps), ended, mask, {}, None, index)


class Linear:
    """x' = x + 0.3 a + noise of std (0.02, 0.1); the reward is x[0] with noise 0.05."""

    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,))})

    def __init__(self) -> None:
        self.random, self.drawn = torch.Generator().manual_seed(0), 0

    def batch(self, rows: int) -> Segment:
        draw = functools.partial(torch.randn, generator=self.random)
        x, action = draw(rows, 2), torch.rand(rows, 1, 1, generator=self.random) * 2 - 1
        after = x + 0.3 * action[:, 0] + NOISE * draw(rows, 2)
        index = torch.stack([torch.arange(self.drawn, self.drawn + rows), torch.zeros(rows, dtype=torch.long)], 1)
        self.drawn += rows
        reward = x[:, :1] + 0.05 * draw(rows, 1)
        ended = torch.zeros(rows, 1, dtype=torch.bool)
        return Segment({"x": torch.stack([x, after], 1)}, action, reward, ended, torch.ones(rows, 1), {}, None, index)


@pytest.fixture(scope="module")
def learned():
    """An ensemble after 800 steps in the linear world, and that world."""
    torch.manual_seed(0)
    world = Linear()
    model = Ensemble(world.space, ACTIONS, members=4, elites=2, width=32, layers=2)
    model.fit_statistics(world.batch(4096))
    run_round(Learner(model, rate=4e-3), (world.batch(128) for _ in range(800)))
    model.revise(world.batch(4096))
    return model.eval(), world


def test_the_likelihood_recovers_the_noise_of_the_world(learned):
    model, world = learned
    data = world.batch(512)
    state = model.start({"x": data.obs["x"][:, 0]})
    told = model._told(model.net(model._inputs(state["observation"], data.action[:, 0])))
    std = (torch.exp(0.5 * told.log_variance) * model.target_std).mean((0, 1)).detach()
    torch.testing.assert_close(std[:2], NOISE, rtol=0.2, atol=0)
    assert std[2] == pytest.approx(0.05, rel=0.2)
    with torch.no_grad():
        many = [model.step(state, data.action[:, 0])[0]["observation"] for _ in range(200)]
    torch.testing.assert_close(torch.stack(many).std(0).mean(0), NOISE, rtol=0.25, atol=0)
    expected = data.obs["x"][:, 0] + 0.3 * data.action[:, 0]
    assert (torch.stack(many).mean(0) - expected).abs().mean() < 0.02


def test_disagreement_grows_outside_the_data(learned):
    model, _ = learned
    action = torch.zeros(64, 1)
    inside, near, far = (torch.full((64, 2), place) + 0.1 * torch.randn(64, 2) for place in (0.0, 5.0, 20.0))
    doubts = [model.uncertainty({"observation": x}, action).mean().item() for x in (inside, near, far)]
    assert doubts[0] < 0.02 and 3 * doubts[0] < doubts[1] < doubts[2]


def test_uncertainty_is_the_spread_of_the_elites_in_units_of_the_data():
    model = small()
    model.spread.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    model.target_std.copy_(torch.tensor([1.0, 0.5, 1.0, 2.0, 9.0]))
    model.elites.copy_(torch.tensor([3, 0, 2]))
    x, action = torch.randn(6, 4), torch.randn(6, 1)
    means = torch.stack([model.net(torch.cat([x, action], 1))[m, :, :4] for m in (3, 0, 2)]) * model.target_std[:4]
    by_hand = ((means - means.mean(0)).square().mean(0) / model.spread.square()).mean(1).sqrt()
    torch.testing.assert_close(model.uncertainty({"observation": x}, action), by_hand)


def test_losses_equal_the_sums_by_hand():
    model, data = small(hold_out=0.2), windows()
    model.fit_statistics(data)
    flat = torch.cat([data.obs["place"], data.obs["speed"].flatten(2)], -1)
    counts, total = model._weights(data) * data.mask.sum(), 0.0
    assert (counts == 0).all(0).any() and (counts[:, -1] == 0).all()  # held out; padding
    for member in range(4):
        for row in range(8):
            for t in range(3):
                x = (torch.cat([flat[row, t], data.action[row, t]]) - model.mean) / model.std
                change = torch.cat([flat[row, t + 1] - flat[row, t], data.reward[row, t : t + 1]])
                target = (change - model.target_mean) / model.target_std
                for weight, bias in zip(model.net.weights, model.net.biases, strict=True):
                    x = x @ weight[member] + bias[member, 0]
                    x = F.silu(x) if weight is not model.net.weights[-1] else x
                high = 0.5 - torch.log1p(torch.exp(0.5 - x[5:]))
                log_variance = -10 + torch.log1p(torch.exp(high + 10))
                surprise = (x[:5] - target).square() / log_variance.exp() + log_variance
                total = total + counts[member, 3 * row + t] * surprise.mean() / data.mask.sum()
    losses = model.loss(data).losses
    torch.testing.assert_close(losses["likelihood"], total)
    torch.testing.assert_close(losses["bounds"], torch.tensor(0.01 * 5 * 10.5))
    squares = [weight.square().sum() / 2 for weight in model.net.weights]
    expected = 2.5e-5 * squares[0] + 5e-5 * squares[1] + 1e-4 * squares[2]
    torch.testing.assert_close(losses["decay"], expected)


def test_the_log_variance_never_leaves_its_soft_bounds():
    model = small()
    raw = torch.cat([torch.zeros(7, 5), torch.linspace(-1e4, 1e4, 7)[:, None].expand(-1, 5)], 1)
    found = model._told(raw).log_variance.detach()
    assert (found >= -10).all() and (found <= 0.5 + 1e-4).all()
    assert found[0, 0] == pytest.approx(-10, abs=1e-3) and found[-1, 0] == pytest.approx(0.5, abs=1e-3)
    middle = model._told(torch.cat([torch.zeros(1, 5), torch.full((1, 5), -5.0)], 1)).log_variance
    torch.testing.assert_close(middle, torch.full((1, 5), -5.0), atol=0.02, rtol=0)


def test_elites_are_the_members_that_err_least_where_none_has_learned():
    model, data = small(hold_out=0.5), windows(64)
    model.fit_statistics(data)
    with torch.no_grad():
        for member, worse in enumerate((3.0, 0.0, 2.0, 1.0)):
            model.net.biases[-1][member, 0, :5] = worse
            model.net.weights[-1][member] = 0
    model.revise(data)
    assert model.elites.tolist() == [1, 3, 2]
    errors = model.errors(data)
    held = model._held(data).flatten() & (data.mask.flatten() > 0)
    target = model._transitions(data)[1][held]
    torch.testing.assert_close(errors[3], (target - 1.0).square().mean())
    nothing = data._replace(mask=torch.zeros_like(data.mask))
    before = model.elites.clone()
    model.hold_out = 0.0
    assert model.errors(nothing) is None and torch.equal(model.elites, before)


def test_overlapping_windows_agree_on_who_learns_from_a_transition():
    model, data = small(), windows(1, 3)
    data = data._replace(mask=torch.ones_like(data.mask))
    now, later = (
        model._weights(each).view(4, 3) for each in (data, data._replace(index=data.index + torch.tensor([0, 1])))
    )
    assert torch.equal(now[:, 1:], later[:, :-1]) and not torch.equal(now, later)


def test_ts1_draws_another_elite_at_each_step_and_ts_infinity_keeps_it():
    action = torch.zeros(400, 1)
    for propagation, kept in ((EachStep, False), (WholeDream, True)):
        model = small(propagation=propagation)
        model.elites.copy_(torch.tensor([3, 0, 2]))
        state = model.start({"place": torch.zeros(400, 2), "speed": torch.zeros(400, 2, 1)})
        after, _, _ = model.step(state, action)
        assert set(state["member"].tolist()) == set(after["member"].tolist()) == {0, 2, 3}
        same = (state["member"] == after["member"]).float().mean()
        assert same == 1 if kept else abs(same - 1 / 3) < 0.1
        seen = model.update(state, action, {"place": torch.ones(400, 2), "speed": torch.ones(400, 2, 1)})
        assert torch.equal(seen["member"], state["member"])


def test_each_row_is_dreamt_by_its_own_member_alone():
    net = small().net
    x, member = torch.randn(9, 5, requires_grad=True), torch.tensor([2, 0, 2, 2, 1, 0, 2, 1, 2])
    every = net(x)
    torch.testing.assert_close(net.apart(x, member), every[member, torch.arange(9)])
    one, two = (torch.autograd.grad(y.sum(), x)[0] for y in (net.apart(x, member), net(x)[member, torch.arange(9)]))
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(net(x, torch.tensor([3, 1])), every[[3, 1]])


def test_it_keeps_the_contracts_in_every_size_and_has_its_powers():
    for make in (small, functools.partial(small, episodic=True, propagation=WholeDream)):
        assert check_world_model(make(), SPACE, ACTIONS)
    for preset in (nano, pets, mbpo):
        model = preset(SPACE, spaces.Discrete(3))
        assert all(find_power(model, power) for power in (Decodes, Uncertain, FitsStatistics, Revises))
    assert check_world_model(nano(SPACE, spaces.Discrete(3)), SPACE, spaces.Discrete(3))
    assert len(mbpo(SPACE, ACTIONS).elites) == 5 and mbpo(SPACE, ACTIONS).net.weights[0].shape == (7, 5, 200)


def test_termination_is_learned_and_otherwise_never_dreamt():
    torch.manual_seed(0)
    model, data = small(episodic=True, hold_out=0.0), windows(256, 1)
    ended = data.obs["place"][:, :1, 0] > 0
    data = data._replace(terminated=ended, mask=torch.ones(256, 1))
    model.fit_statistics(data)
    run_round(Learner(model, rate=3e-3), [data] * 300)
    state = model.start({name: value[:, 0] for name, value in data.obs.items()})
    proceed = model.step(state, data.action[:, 0])[2]
    assert ((proceed < 0.5) == ended[:, 0]).float().mean() > 0.95
    assert (small().step(state, data.action[:, 0])[2] == 1).all()


def test_it_is_a_planner_s_model(learned):
    """The reward is x[0], so the best plan pushes to the right."""
    model, _ = learned
    planner = MPPI(model, None, 1, horizon=4, samples=64, elites=8, iterations=3)
    with torch.no_grad(), Stream(0):
        act = planner.mode(model.start({"x": torch.zeros(5, 2)}))
    assert (act.action > 0.3).all()


def test_particles_judge_a_plan_by_their_mean(learned):
    """Reward x[0] with noise 0.05: twenty particles of one state agree on the mean, and their paths part."""
    world = Particles(learned[0], 20)
    with torch.no_grad(), Stream(0):
        state = world.start({"x": torch.ones(6, 2)})
        after, reward, proceed = world.step(state, torch.zeros(6, 1))
        act = Deliberate(world, MPPI(world, None, 1, horizon=3, samples=32, elites=4, iterations=2)).mode(
            {"x": torch.zeros(4, 2)}
        )
        planner = CEM(learned[0], None, 1, horizon=3, samples=32, elites=4, iterations=2, world=Particles)
        apart = planner.mode(learned[0].start({"x": torch.zeros(4, 2)}))
        lifted = world.lift(learned[0].start({"x": torch.ones(6, 2)}))
    assert (apart.action > 0).all() and lifted["observation"].shape == (6, 20, 2)
    assert all(len(row.unique()) > 1 for row in lifted["member"])  # as many worlds as were drawn, not one
    assert after["observation"].shape == (6, 20, 2) and (proceed == 1).all()
    torch.testing.assert_close(reward, torch.ones(6), atol=0.06, rtol=0)
    assert (after["observation"].std(1) > 0).all() and (act.action > 0).all()
    seen = world.update(after, torch.zeros(6, 1), {"x": torch.zeros(6, 2)})
    assert not seen["observation"].any() and torch.equal(seen["member"], after["member"])


def test_rollouts_have_gradients_and_equal_seeds_give_equal_dreams(learned):
    model = copy.deepcopy(learned[0])
    push = torch.zeros(3, 4, 1, requires_grad=True)
    rollouts = []
    for _ in range(2):
        with Stream(1):
            rollouts.append(imagine(model, Script(push), model.start({"x": torch.zeros(3, 2)}), 4))
    assert torch.equal(rollouts[0].reward, rollouts[1].reward)
    (slope,) = torch.autograd.grad(rollouts[0].reward.sum(), push)
    # A push of one now is worth 0.3 in each of the three later rewards.
    torch.testing.assert_close(slope[:, 0, 0], torch.full((3,), 0.9), atol=0.15, rtol=0)


def test_images_are_refused_with_advice():
    with pytest.raises(ValueError, match="latent world model"):
        Ensemble(spaces.Dict({"image": spaces.Box(0, 255, (3, 8, 8), "uint8")}), ACTIONS)
    with pytest.raises(ValueError, match="elites"):
        small(elites=9)


def test_weights_begin_as_published():
    weight = mbpo(SPACE, ACTIONS).net.weights[1].detach()
    std = 0.5 / math.sqrt(200)
    assert weight.abs().max() <= 2 * std + 1e-6 and weight.std() == pytest.approx(0.88 * std, rel=0.05)
