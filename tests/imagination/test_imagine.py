"""The loop, on worlds whose every step is known."""

import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.spaces import action_layout
from dreamsim.core.types import Act, Learned
from dreamsim.imagination.explore import AtRandom, Noisy, Sampled
from dreamsim.imagination.imagine import Believer, Greedy, Script, Uniform, imagine
from dreamsim.imagination.plan import MPPI, Deliberate


class ExactLine(nn.Module):
    """The dynamics of the toy world Line; the state also counts its steps."""

    def start(self, obs):
        return {"position": obs["observation"], "count": torch.zeros(len(obs["observation"]))}

    def update(self, state, action, obs):
        return {"position": obs["observation"], "count": state["count"] + 1}

    def step(self, state, action):
        position = (state["position"] + 0.1 * action).clamp(-1, 1)
        reward = 1 - (position - 0.5).abs()[:, 0]
        return {"position": position, "count": state["count"] + 1}, reward, torch.ones_like(reward)

    def view(self, state):
        return {"latent": torch.cat([state["position"], state["count"][:, None]], -1)}

    def loss(self, batch):
        return Learned({}, None)


class Recall(nn.Module):
    """Acts by its memory, and notes what it saw."""

    def act(self, view, memory=None, first=None, applied=None):
        count = torch.zeros(len(first)) if memory is None else memory + 1
        return Act(count[:, None] / 10, count, {"saw": view["latent"][:, 1], "first": first.float()})


def test_a_rollout_is_aligned():
    dream = imagine(ExactLine(), Script(torch.ones(2, 3, 1)), ExactLine().start({"observation": torch.zeros(2, 1)}), 3)
    torch.testing.assert_close(dream.view["latent"][0, :, 0], torch.tensor([0.0, 0.1, 0.2, 0.3]))
    torch.testing.assert_close(dream.reward[0], torch.tensor([0.6, 0.7, 0.8]))
    assert dream.action.shape == (2, 3, 1) and dream.proceed.shape == (2, 3)
    torch.testing.assert_close(dream.final["count"], torch.tensor([3.0, 3.0]))


def test_the_policy_sees_each_view_once_and_its_first_step_marked():
    dream = imagine(ExactLine(), Recall(), ExactLine().start({"observation": torch.zeros(2, 1)}), 3)
    assert dream.trace["saw"][0].tolist() == [0, 1, 2]
    assert dream.trace["first"][1].tolist() == [1, 0, 0]
    torch.testing.assert_close(dream.action[0, :, 0], torch.tensor([0.0, 0.1, 0.2]))


def test_an_initial_memory_goes_on():
    start = ExactLine().start({"observation": torch.zeros(1, 1)})
    dream = imagine(ExactLine(), Recall(), start, 2, memory=torch.tensor([4.0]))
    torch.testing.assert_close(dream.action[0, :, 0], torch.tensor([0.5, 0.6]))
    assert dream.trace["first"].sum() == 0


def test_gradients_reach_the_actions_of_a_script():
    actions = torch.zeros(1, 3, 1, requires_grad=True)
    imagine(ExactLine(), Script(torch.zeros(1, 1, 1)), ExactLine().start({"observation": torch.zeros(1, 1)}), 1)
    model = ExactLine()
    state, total = model.start({"observation": torch.zeros(1, 1)}), 0.0
    for t in range(3):
        state, reward, _ = model.step(state, actions[:, t])
        total = total + reward.sum()
    total.backward()
    torch.testing.assert_close(actions.grad[0, :, 0], torch.tensor([0.3, 0.2, 0.1]))


def test_a_believer_starts_only_the_rows_that_begin():
    policy = Believer(ExactLine(), Recall())
    obs = {"observation": torch.zeros(3, 1)}
    act = policy.act(obs, None, torch.ones(3, dtype=torch.bool))
    act = policy.act(obs, act.memory, torch.zeros(3, dtype=torch.bool))
    act = policy.act(obs, act.memory, torch.tensor([False, True, False]))
    assert act.memory["state"]["count"].tolist() == [2, 0, 2]


def test_noise_is_kept_within_bounds_correlated_in_time_and_fresh_at_a_reset():
    torch.manual_seed(0)

    class Still(nn.Module):
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.zeros(4000, 1))

    explorer = Noisy(Still(), high=0.1, low=0.1, correlation=0.9, spread=0.0)
    explorer.anneal(0.0, warming=False)
    first = torch.zeros(4000, dtype=torch.bool)
    first[2000:] = True
    one = explorer.act({"latent": torch.zeros(4000, 1)})
    two = explorer.act({"latent": torch.zeros(4000, 1)}, one.memory, first)
    both = torch.stack([one.action[:, 0], two.action[:, 0]])
    assert torch.corrcoef(both[:, :2000])[0, 1] > 0.85
    assert torch.corrcoef(both[:, 2000:])[0, 1].abs() < 0.1
    assert abs(float(two.action.std()) - 0.1) < 0.01
    explorer.anneal(0.0, warming=True)
    assert explorer.act({"latent": torch.zeros(4000, 1)}).action.abs().max() <= 1


def test_sampling_falls_back_on_chance_only_while_it_should():
    class Right(nn.Module):
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.tensor([[0.0, 1.0]]).repeat(1000, 1))

    explorer = Sampled(Right(), discrete=True, random=0.5, until=0.5)
    explorer.anneal(0.0, warming=False)
    assert 0.2 < explorer.act({}).action[:, 0].mean() < 0.3
    explorer.anneal(0.6, warming=False)
    assert explorer.act({}).action[:, 0].sum() == 0


def test_uniform_acts_inside_its_space():
    view = {"latent": torch.zeros(50, 3)}
    assert Uniform(2).act(view).action.abs().max() <= 1
    assert (Uniform(3, discrete=True).act(view).action.sum(-1) == 1).all()


def test_greedy_acts_as_the_policy_where_it_has_no_mode():
    act = Greedy(Recall()).act({"latent": torch.zeros(2, 2)}, None, torch.ones(2, dtype=torch.bool))
    assert act.action.tolist() == [[0.0], [0.0]]


def test_planning_finds_the_goal_of_a_known_world():
    """From -1 the goal 0.5 is to the right: a plan goes there at full speed, and stays when it is reached."""
    torch.manual_seed(0)
    model = ExactLine()
    planner = MPPI(model, None, 1, horizon=5, samples=128, elites=16, iterations=4)
    policy = Deliberate(model, planner)
    obs = {"observation": torch.tensor([[-1.0], [0.5]])}
    act = policy.mode(obs, None, torch.ones(2, dtype=torch.bool))
    assert act.action[0, 0] > 0.8 and act.action[1, 0].abs() < 0.4
    again = policy.mode(obs, act.memory, torch.zeros(2, dtype=torch.bool))
    assert again.memory["plan"]["mean"].shape == (2, 5, 1)


def test_acting_at_random_knows_every_kind_of_action():
    torch.manual_seed(0)
    mixed = spaces.Dict({"move": spaces.Box(-5, 5, (2,)), "mode": spaces.Discrete(3), "on": spaces.MultiBinary(1)})
    action = AtRandom(spaces.Dict(), mixed).act({"latent": torch.zeros(3000, 1)}).action
    size, (piece,), (flag,) = action_layout(mixed)
    numbers = [place for place in range(size) if place != flag and not piece.start <= place < piece.stop]
    assert action.shape == (3000, size)
    assert (action[:, piece].sum(-1) == 1).all() and (action[:, piece].mean(0) - 1 / 3).abs().max() < 0.05
    assert set(action[:, flag].tolist()) == {0.0, 1.0} and abs(float(action[:, flag].mean()) - 0.5) < 0.05
    assert action[:, numbers].min() < -0.99 and action[:, numbers].max() > 0.99
    assert action[:, numbers].mean(0).abs().max() < 0.05
