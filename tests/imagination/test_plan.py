"""Planners in worlds whose best plan is known, and every rule of the kernel they share."""

import functools
import math
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.parts import build, describe
from dreamsim.core.plain import from_plain, to_plain
from dreamsim.core.random import Stream
from dreamsim.core.run import load, save
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act
from dreamsim.imagination.imagine import Greedy
from dreamsim.imagination.plan import CEM, ICEM, MPPI, Deliberate, Gradient, PredictiveSampling
from dreamsim.imagination.score import Return
from dreamsim.imagination.search import Centre
from worldmodels.actors import SquashedGaussian
from worldmodels.decoder_free import DecoderFree

SAMPLING = {
    "MPPI": functools.partial(MPPI, samples=300, elites=30, iterations=8, temperature=5.0),
    "CEM": functools.partial(CEM, samples=300, elites=30, iterations=8),
    "ICEM": functools.partial(ICEM, samples=300, elites=20, iterations=12, exponent=1.0),
    "PredictiveSampling": functools.partial(PredictiveSampling, samples=300, iterations=40, std=0.1),
}
ALL = {**SAMPLING, "Gradient": functools.partial(Gradient, samples=8, iterations=60)}


class Cart(nn.Module):
    """A double integrator: v' = v + a / 2, p' = p + v' / 2; every step costs p'^2 + v'^2 / 10 + a^2 / 10."""

    def start(self, obs):
        return {"p": obs["p"], "v": torch.zeros_like(obs["p"])}

    def update(self, state, action, obs):
        return self.step(state, action)[0]

    def step(self, state, action):
        v = state["v"] + 0.5 * action[:, 0]
        p = state["p"] + 0.5 * v
        return {"p": p, "v": v}, -(p**2) - 0.1 * v**2 - 0.1 * action[:, 0] ** 2, torch.ones_like(p)

    def view(self, state):
        return {"latent": torch.stack([state["p"], state["v"]], -1)}


class Hall(nn.Module):
    """The toy world Corridor as chances of being in its five cells; reaching the last one earns 1 and ends."""

    def start(self, obs):
        return obs["cell"]

    def step(self, state, action):
        left, right = action[:, :1], action[:, 1:]
        back = torch.cat([state[:, :1] + state[:, 1:2], state[:, 2:], torch.zeros_like(state[:, :1])], 1)
        on = torch.cat([torch.zeros_like(state[:, :1]), state[:, :-2], state[:, -2:].sum(1, keepdim=True)], 1)
        state = left * back + right * on
        return state, state[:, -1], 1 - state[:, -1]

    def view(self, state):
        return {"latent": state}


class Taste(nn.Module):
    """A world of one number that never moves; what an action earns is ``worth(action)``, and whether life goes on."""

    def __init__(self, worth, goes_on=lambda action: torch.ones(len(action))):
        super().__init__()
        self.worth, self.goes_on, self.dreamt = worth, goes_on, []

    def step(self, state, action):
        self.dreamt.append(len(action))
        return state, self.worth(action), self.goes_on(action)

    def view(self, state):
        return {"latent": state}


def far_cart(horizon, start):
    """Return the best plan by least squares: p and v are linear in the actions."""
    rows, target = [], []
    for t in range(1, horizon + 1):
        speed = np.array([0.5 if k < t else 0.0 for k in range(horizon)])
        place = np.array([0.25 * (t - k) if k < t else 0.0 for k in range(horizon)])
        effort = np.eye(horizon)[t - 1]
        rows += [place, math.sqrt(0.1) * speed, math.sqrt(0.1) * effort]
        target += [-start, 0.0, 0.0]
    return np.linalg.lstsq(np.array(rows), np.array(target), rcond=None)[0]


def still(rows=1):
    return torch.zeros(rows, 1)


@pytest.mark.parametrize("name", ALL)
def test_the_best_plan_of_a_cart_is_the_least_squares_solution(name):
    torch.manual_seed(0)
    starts = torch.tensor([0.5, -0.3])
    planner = ALL[name](Cart(), None, 1, horizon=4, discount=1.0)
    act = planner.mode(Cart().start({"p": starts}))
    for row, start in enumerate(starts.tolist()):
        best = far_cart(4, start)
        assert abs(best).max() < 1
        np.testing.assert_allclose(act.memory["mean"][row, :, 0], best, atol=0.06)
        assert abs(act.action[row, 0] - best[0]) < 0.06


@pytest.mark.parametrize("name", ALL)
def test_the_shortest_way_out_of_a_corridor(name):
    """From each cell the way is right, right, ..., and a discount makes each step to the left cost."""
    torch.manual_seed(0)
    planner = ALL[name](Hall(), None, spaces.Discrete(2), horizon=5, discount=0.9)
    act = planner.mode(torch.eye(5)[:4])
    assert act.action.tolist() == [[0, 1]] * 4
    assert (act.memory["mean"][0, :4, 1] > 0.5).all()
    explored = planner.plan(torch.eye(5)[:4])
    assert set(map(tuple, explored.action.tolist())) <= {(0.0, 1.0), (1.0, 0.0)}


@pytest.mark.parametrize("name", ALL)
def test_numbers_choices_and_flags_in_one_action(name):
    """Gear 2 wants a push of 0.4, gear 1 one of -0.8 and earns less; the first flag shall be up, the second down."""
    torch.manual_seed(0)
    parts = {"gear": spaces.Discrete(3), "push": spaces.Box(-2, 2, (1,)), "flags": spaces.MultiBinary(2)}
    codec = Codec(spaces.Box(-1, 1, (1,)), spaces.Dict(parts))
    places = {part: codec._action_slices[part] for part in parts}

    def worth(action):
        gear, push, flags = (action[:, places[part]] for part in ("gear", "push", "flags"))
        wanted = gear @ torch.tensor([0.0, -0.8, 0.4])
        return gear @ torch.tensor([0.0, 1.0, 2.0]) - (push[:, 0] - wanted) ** 2 + flags[:, 0] - flags[:, 1]

    planner = ALL[name](Taste(worth), None, codec.raw_action_space, horizon=2)
    for choose in (planner.mode, planner.plan):
        real = codec.decode_action(choose(still()).action[0].numpy())
        assert codec.raw_action_space.contains(real)
    real = codec.decode_action(planner.mode(still()).action[0].numpy())
    assert real["gear"] == 2 and real["flags"].tolist() == [1, 0]
    assert abs(real["push"][0] - 0.8) < 0.3  # 0.4 of the half range 2


def test_proposals_that_a_policy_dreams_win_where_chance_finds_nothing():
    class Knows(nn.Module):
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.full((len(view["latent"]), 2), 0.777))

        def value(self, view):
            return torch.full((len(view["latent"]),), 7.0)

    world = Taste(lambda action: ((action - 0.777).abs() < 1e-6).all(1).float())
    planner = MPPI(world, Knows(), 2, samples=32, proposals=8, elites=4, iterations=2, temperature=50.0, std_low=0.01)
    torch.manual_seed(0)
    assert (planner.mode(still()).action - 0.777).abs().max() < 1e-3
    assert world.dreamt == [8] * 3 + [24] * 6  # the policy's plans are dreamt, and scored, once
    torch.testing.assert_close(planner.score.value({"latent": still(3)}), torch.full((3,), 7.0))


def test_a_plan_goes_on_where_the_last_one_stood_and_rows_that_begin_start_from_nothing():
    planner = PredictiveSampling(Taste(lambda action: action[:, 0]), None, 1, horizon=3, samples=1)
    memory = {"mean": torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])[..., None]}
    act = planner.mode(still(2), memory, torch.tensor([False, True]))
    torch.testing.assert_close(act.memory["mean"][..., 0], torch.tensor([[0.2, 0.3, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(act.action, torch.tensor([[0.2], [0.0]]))


def test_icem_keeps_its_elites_and_draws_fewer_plans_each_time():
    torch.manual_seed(0)
    world = Taste(lambda action: -(action[:, 0] - 0.5).abs())
    planner = ICEM(world, None, 1, horizon=2, samples=40, elites=5, iterations=4, decay=2.0, keep=0.4)
    act = planner.mode(still())
    assert world.dreamt[::2] == [40, 20, 10, 10]  # never fewer than twice the elites
    assert act.memory["kept"].shape == (1, 2, 2, 1)
    world.dreamt.clear()
    again = planner.mode(still(), act.memory)
    assert world.dreamt[::2] == [42, 20, 10, 10]  # and the two that were kept
    moved = planner._kept(act.memory["mean"], act.memory, torch.tensor([False]))
    torch.testing.assert_close(moved[:, :, :1], act.memory["kept"][:, :, 1:])
    assert abs(again.action - 0.5) < 0.05
    began = planner._kept(act.memory["mean"], act.memory, torch.tensor([True]))
    assert not torch.equal(began[:, :, :1], act.memory["kept"][:, :, 1:])


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_give_equal_plans_and_rows_know_nothing_of_each_other(name):
    planner = ALL[name](Cart(), None, 1, horizon=3)

    def decide(second):
        with Stream(7):
            return planner.plan(Cart().start({"p": torch.tensor([0.5, second])}))

    one, same, other = decide(0.1), decide(0.1), decide(-0.9)
    assert torch.equal(one.action, same.action) and torch.equal(one.memory["mean"], same.memory["mean"])
    torch.testing.assert_close(one.memory["mean"][0], other.memory["mean"][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(one.action[0], other.action[0], atol=1e-5, rtol=0)
    assert not torch.allclose(one.memory["mean"][1], other.memory["mean"][1])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_never_wins(name, broken):
    torch.manual_seed(0)
    wrong = torch.tensor(broken)
    world = Taste(lambda action: torch.where(action[:, 0] > 0.3, wrong, action[:, 0]))
    planner = ALL[name](world, None, 1, horizon=1)
    act = planner.mode(still())
    assert -0.2 < act.action[0, 0] <= 0.3 + 0.02
    act = ALL[name](Taste(lambda action: action[:, 0] * wrong), None, 1, horizon=1).plan(still())
    assert torch.isfinite(act.action).all() and torch.isfinite(act.memory["mean"]).all()


def test_an_early_end_saves_the_costs_that_would_have_come():
    """Every step costs 1, a push ends it all: the best plan gives up, unless what follows is known to be worse."""

    def planner(**score):
        world = Taste(lambda action: -torch.ones(len(action)), lambda action: (action[:, 0] < 0.5).float())
        make = functools.partial(Return, 1.0, **score)
        return CEM(world, None, 1, horizon=5, samples=200, elites=20, score=make)

    torch.manual_seed(0)
    assert planner().mode(still()).action > 0.5
    assert planner(absorbing=-10.0).mode(still()).action < 0.5


def test_a_budget_ends_in_time_and_returns_what_was_found():
    def worth(action):
        time.sleep(0.01)
        return -(action[:, 0] - 0.5).abs()

    torch.manual_seed(0)
    planner = CEM(Taste(worth), None, 1, horizon=1, samples=64, elites=8, milliseconds=120)
    begin = time.perf_counter()
    act = planner.mode(still(2))
    assert time.perf_counter() - begin < 0.3
    done = act.trace["iterations"]
    assert done.shape == (2,) and 2 <= done[0] <= 12
    assert (act.action - 0.5).abs().max() < 0.1
    hurried = CEM(Taste(worth), None, 1, horizon=1, milliseconds=0.0).mode(still())
    assert hurried.trace["iterations"].tolist() == [1] and torch.isfinite(hurried.action).all()
    assert CEM(Taste(worth), None, 1, horizon=1, iterations=1).mode(still()).trace == {}


def test_deliberating_explores_by_act_and_not_by_mode():
    torch.manual_seed(0)
    model = Cart()
    policy = Deliberate(model, SAMPLING["MPPI"](model, None, 1, horizon=3, std_low=0.2))
    obs, first = {"p": torch.full((64,), 0.5)}, torch.ones(64, dtype=torch.bool)
    explored, greedy = policy.act(obs, None, first), Greedy(policy).act(obs, None, first)
    assert explored.action.std() > 0.15 and greedy.action.std() < 0.03
    assert explored.memory.keys() == {"state", "action", "plan"}
    meek = CEM(model, None, 1, horizon=3, explore=Centre)
    assert Deliberate(model, meek).act(obs, None, first).action.std() < 0.03


def test_a_planner_is_a_part_of_a_run(tmp_path):
    make = functools.partial(MPPI, horizon=2, samples=20, elites=4, proposals=4)
    sizes = {"latent": 8, "width": 8, "encoder_width": 8}
    parts = {
        "model": describe(functools.partial(DecoderFree, **sizes)),
        "policy": describe(functools.partial(SquashedGaussian, width=8)),
        "planner": describe(make),
    }
    codec = Codec(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,)))
    model = build(parts["model"], codec.observation_space, codec.action_space)
    policy = build(parts["policy"], model.view_space, codec.action_space)
    raw = {"observation_space": codec.raw_observation_space, "action_space": codec.raw_action_space}
    save(tmp_path, model=model, policy=policy, parts=parts, about={}, **raw)
    actor = load(tmp_path).actor()
    assert isinstance(actor, Greedy) and isinstance(actor.policy, Deliberate)
    act = actor.act({"observation": torch.zeros(5, 3)})
    assert act.action.shape == (5, 2) and act.memory["plan"]["mean"].shape == (5, 2, 2)
    again = actor.act({"observation": torch.ones(5, 3)}, from_plain(to_plain(act.memory)), torch.arange(5) > 2)
    assert torch.isfinite(again.action).all()


def test_a_compiled_search_finds_the_same_plan():
    def decide(compiled):
        planner = CEM(Cart(), None, 1, horizon=1, samples=16, elites=4, iterations=2, compiled=compiled)
        with Stream(0):
            return planner.mode(Cart().start({"p": torch.tensor([0.5, -0.3])})).action

    torch.testing.assert_close(decide(True), decide(False))


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="elites must be between 1"):
        CEM(Cart(), None, 1, samples=4, elites=5)
    with pytest.raises(ValueError, match="proposals must be fewer"):
        MPPI(Cart(), Cart(), 1, samples=64, proposals=64)
    with pytest.raises(ValueError, match="horizon of a search"):
        CEM(Cart(), None, 1, horizon=0)
    with pytest.raises(ValueError, match="no gradient leads"):
        Gradient(Taste(lambda action: torch.ones(len(action))), None, 1).mode(still())
