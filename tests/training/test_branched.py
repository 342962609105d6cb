"""Dreams that branch off from real states: where they begin, where they stop, what the objective is given."""

import functools

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.protocols import MissingPower
from dreamsim.core.random import Stream
from dreamsim.core.run import load
from dreamsim.core.types import Act, Learned, Segment
from dreamsim.data.module import Experience, Recordings
from dreamsim.training.branched import Branched, branch
from dreamsim.training.joint import FitJoint
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.objectives.protocol import Judged
from dreamsim.training.objectives.soft_actor_critic import SoftActorCritic
from dreamsim.training.world_model import FitWorldModel
from tests.training.conftest import run, small_experience, weights
from worldmodels.actors import PlainQ, SquashedGaussian
from worldmodels.ensemble import Ensemble

SPACE, ACTIONS = spaces.Dict({"observation": spaces.Box(-99, 99, (2,))}), spaces.Box(-1, 1, (1,))


class Counted(nn.Module):
    """State and view are (episode, place); a step goes one place on, pays the place reached, ends on reaching 5.

    The uncertainty is the place itself.
    """

    def step(self, state, action):
        after = state["observation"] + torch.tensor([0.0, 1.0])
        return {"observation": after}, after[:, 1], (after[:, 1] < 5).float()

    def view(self, state):
        return state

    def uncertainty(self, state, action):
        return state["observation"][:, 1]


class Still(nn.Module):
    def act(self, view, memory=None, first=None, applied=None):
        return Act(torch.zeros_like(view["observation"][..., :1]))


class Remembers(nn.Module):
    """An objective that keeps what it is given."""

    def __init__(self, view_space, action_space):
        super().__init__()
        self.given = []

    def loss(self, model, policy, batch, learned):
        self.given.append((batch, model.view(learned.observed)))
        return Judged({"nothing": torch.zeros(())}, {}, 0)

    def settle(self):
        pass


def real(rows=20, steps=2) -> Segment:
    """Windows of (episode, place) with rewards of -1, which no dream pays; the last row is padded behind one step."""
    episode = torch.arange(rows).float()[:, None].expand(-1, steps + 1)
    place = torch.arange(steps + 1).float().expand(rows, -1)
    mask = torch.ones(rows, steps)
    mask[-1, 1:] = 0
    return Segment(
        {"observation": torch.stack([episode, place], -1)}, torch.ones(rows, steps, 1), -torch.ones(rows, steps),
        torch.zeros(rows, steps, dtype=torch.bool), mask, {}, None, torch.zeros(rows, 2, dtype=torch.long),
    )  # fmt: skip


def given(objective, batch):
    objective.loss(Counted(), Still(), batch, Learned({}, batch.obs, batch.obs))
    objective.settle()
    return objective.objective.given[-1]


def test_a_branch_stops_behind_its_termination_and_never_leaves_its_episode():
    starts = torch.tensor([[7.0, 0.0], [8.0, 3.0], [9.0, 4.0]])
    found = branch(Counted(), Still(), {"observation": starts}, 4)
    assert found.mask.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    assert found.terminated[1].tolist()[:2] == [False, True] and found.terminated[2, 0]
    assert (found.view["observation"][..., 0] == starts[:, :1]).all()
    assert torch.equal(found.view["observation"][:, 1:, 1], found.reward)


def test_a_branch_is_cut_and_not_terminated_where_it_is_not_trusted():
    starts = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    found = branch(Counted(), Still(), {"observation": starts}, 4, distrust=2.0)
    assert found.mask.sum(1).tolist() == [3, 1, 0] and not (found.terminated & found.mask).any()
    blind = nn.Module()
    blind.step, blind.view = Counted().step, Counted().view
    with pytest.raises(MissingPower, match="uncertainty"):
        branch(blind, Still(), {"observation": starts}, 4, distrust=2.0)


def test_the_objective_is_given_the_real_share_and_dreams_from_real_states():
    objective = Branched(SPACE, ACTIONS, Remembers, batch=40, real=0.25, starts=64, last=2, begin=-1, end=0)
    batch, view = given(objective, real())
    assert batch.mask.shape == (40, 1) and batch.mask.all()
    x, after = view["observation"].unbind(1)
    true = batch.reward[:, 0] == -1
    assert true.sum() == 10 and true[:10].all()
    assert torch.equal(after - x, torch.tensor([[0.0, 1.0]]).expand(40, -1))  # real or dreamt, one step of one episode
    assert not ((x[true][:, 0] == 19) & (x[true][:, 1] == 1)).any()  # padding is neither given
    assert x[~true, 1].max() == 2 and objective.memory.held == 39 * 2  # nor dreamt from


def test_dreams_grow_by_the_schedule():
    objective = Branched(SPACE, ACTIONS, Remembers, first=1, last=5, begin=10, end=20)
    lengths = []
    for count in (0, 10, 15, 20, 99):
        objective.updates.fill_(count)
        lengths.append(objective.horizon)
    assert lengths == [1, 1, 3, 5, 5]


def test_the_memory_forgets_the_oldest():
    objective = Branched(SPACE, ACTIONS, Remembers, capacity=50, starts=39, real=0.0)
    for shift in range(3):
        batch = real()
        given(objective, batch._replace(obs={"observation": batch.obs["observation"] + 1000 * shift}))
    assert objective.memory.held == 50 and int(objective.memory.count) == 117
    kept = objective.memory.view[:, 0, 0] // 1000
    assert (kept == 2).sum() == 39 and (kept == 1).sum() == 11


def test_where_nothing_is_trusted_the_objective_learns_from_reality():
    objective = Branched(SPACE, ACTIONS, Remembers, batch=16, distrust=-1.0)
    batch, _ = given(objective, real())
    assert len(batch.mask) == 16 and (batch.reward == -1).all()


def test_with_reality_alone_nothing_is_dreamt():
    objective = Branched(SPACE, ACTIONS, Remembers, batch=16, real=1.0)
    judged = objective.loss(Counted(), Still(), real(), Learned({}, real().obs, real().obs))
    assert judged.imagined == 0 and (objective.objective.given[0][0].reward == -1).all()


def test_bad_schedules_and_images_are_refused():
    with pytest.raises(ValueError, match="first"):
        Branched(SPACE, ACTIONS, Remembers, first=3, last=2)
    images = spaces.Dict({"image": spaces.Box(0, 255, (3, 8, 8), "uint8")})
    with pytest.raises(ValueError, match="vectors"):
        Branched(images, ACTIONS, Remembers)


SAC = functools.partial(SoftActorCritic, critic=functools.partial(PlainQ, width=16), rate=1e-3)
PARTS = (
    functools.partial(Ensemble, members=3, elites=2, width=16, layers=2),
    functools.partial(SquashedGaussian, width=16),
    functools.partial(Branched, objective=SAC, batch=16, starts=8, capacity=100, last=3, begin=0, end=20),
)


def test_a_frozen_model_stays_as_it_is():
    torch.manual_seed(0)
    model, policy, objective = (make(SPACE, ACTIONS) for make in PARTS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with Stream(0):
        report = run_round(Learner(model, policy, objective, learn_model=False), [real()] * 3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert report.imagined_steps == 3 * 8 and set(report.metrics) >= {"value", "policy", "kept", "entropy"}


class HalfWay(Experience):
    """Offers only the rounds up to the checkpoint at half time, and two more that are lost."""

    @property
    def rounds(self) -> int:
        return 12


def test_mbpo_resumes_bit_for_bit(tmp_path):
    """The memory of dreams, the schedule and the elites are part of the instant."""
    whole = run(tmp_path / "whole", module=FitJoint(*PARTS), data=small_experience(length=1))
    half = small_experience(length=1)
    half.__class__ = HalfWay
    run(tmp_path / "parts", module=FitJoint(*PARTS), data=half)
    resumed = run(tmp_path / "parts", module=FitJoint(*PARTS), data=small_experience(length=1), resume=True)
    ours, theirs = weights(whole), weights(resumed)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert int(resumed.objective.updates) == resumed.gradient_steps > 0 and resumed.objective.memory.held == 100


def test_an_ensemble_learned_from_recordings_alone_has_chosen_its_elites(tmp_path):
    run(tmp_path / "lived", data=small_experience(env_steps=480, updates=0.0))
    data = Recordings(str(tmp_path / "lived" / "store"), batches=20, batch=32, length=1)
    model = functools.partial(Ensemble, members=6, elites=2, width=16, layers=2)
    (tmp_path / "world").mkdir()
    module = run(tmp_path / "world", module=FitWorldModel(model, rate=3e-3, keep_every=10), data=data)
    found = load(tmp_path / "world").model
    assert torch.equal(found.elites, module.model.elites) and len(set(found.elites.tolist())) == 2
    errors = found.errors(data.statistics_batch())
    assert errors[found.elites].mean() < errors.mean()  # chosen one gradient step before the last
    assert found.mean.abs().sum() > 0 and (found.std != 1).any()
