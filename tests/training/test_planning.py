"""Runs that plan while they live: TD-MPC2 with its critics at the leaves, PETS with no policy at all."""

import functools

import numpy as np
import pytest
import torch

from dreamsim.core.run import load
from dreamsim.data.store import Store
from dreamsim.envs.toy import Line
from dreamsim.evaluation.episodes import evaluate_policy
from dreamsim.imagination.explore import AtRandom, Planned
from dreamsim.imagination.imagine import Greedy
from dreamsim.imagination.judging import Judging
from dreamsim.imagination.plan import CEM, MPPI, Deliberate
from dreamsim.training import foresee
from dreamsim.training.joint import FitJoint
from tests.training.conftest import HalfWay, run, same, small_experience, small_joint, weights
from worldmodels.ensemble import Ensemble, Particles, WholeDream

PLANNER = functools.partial(MPPI, horizon=2, samples=12, elites=4, proposals=4, iterations=2)
EPISODES = {"env_steps": 240, "warmup": 80}


def planned_joint(**options) -> FitJoint:
    return small_joint(planner=PLANNER, plans=True, **options)


def pets() -> FitJoint:
    model = functools.partial(Ensemble, members=2, elites=2, width=8, layers=2, propagation=WholeDream)
    world = functools.partial(Particles, count=2)
    planner = functools.partial(CEM, horizon=3, samples=8, elites=2, iterations=2, world=world)
    return FitJoint(model, AtRandom, None, planner=planner, plans=True)


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    return folder, run(folder, module=planned_joint(), data=small_experience(**EPISODES))


def test_it_lives_and_is_judged_by_plans_that_end_in_the_critics_value(lived):
    _, module = lived
    assert isinstance(module.collecting, Planned) and isinstance(module.actor, Greedy)
    planner = module.collecting.policy.planner
    assert isinstance(planner.policy, Judging) and planner.policy.critic is module.objective.critic
    assert planner.score.value is not None
    assert module.actor.policy.planner.policy.policy is module.learner.steady
    names = module.state_dict()
    assert not any(name.startswith(("_acting", "explorer")) for name in names), "weights are kept once"


def test_what_it_leaves_plans_by_itself_with_the_same_critics(lived):
    folder, module = lived
    found = load(folder)
    actor = found.actor()
    assert isinstance(actor, Greedy) and isinstance(actor.policy, Deliberate)
    for one, other in zip(found.policy.critic.parameters(), module.objective.critic.parameters(), strict=True):
        assert torch.equal(one, other)
    obs = {"observation": torch.zeros(2, 1)}
    torch.manual_seed(0)
    ours = module.eval().actor.act(obs).action
    torch.manual_seed(0)
    assert torch.equal(actor.act(obs).action, ours)
    module.train()


def test_the_warm_up_is_random_and_everything_after_it_planned(lived, monkeypatch, tmp_path):
    planned = []
    monkeypatch.setattr(
        Deliberate, "act", lambda self, *given: planned.append(1) or self._act(self.planner.plan, *given)
    )
    module = run(tmp_path, module=planned_joint(), data=small_experience(**EPISODES, evaluate_every=10_000))
    vector_steps = module.counters()["env_steps"] // 2
    assert 0 < len(planned) < vector_steps
    actions = np.concatenate([episode.action for episode in map(Store(tmp_path / "store").episode, range(2))])
    assert actions.std() > 0.4  # uniform in [-1, 1]


def test_stopped_and_resumed_equals_straight_through(lived, tmp_path):
    _, straight = lived
    half = small_experience(**EPISODES)
    half.__class__ = HalfWay
    run(tmp_path, module=planned_joint(), data=half)
    resumed = run(tmp_path, resume=True, module=planned_joint(), data=small_experience(**EPISODES))
    assert same(weights(straight), weights(resumed))


def test_a_model_alone_is_planned_in_when_there_is_no_policy(tmp_path):
    module = run(tmp_path, module=pets(), data=small_experience(**EPISODES, length=1))
    assert module.gradient_steps > 0 and module.imagined_steps == 0
    actor = load(tmp_path).actor()
    assert isinstance(actor.policy.planner.world, Particles)
    assert np.isfinite(evaluate_policy(Line, actor, episodes=2).returns).all()


def test_the_time_of_planning_is_foreseen_and_changes_no_bit(lived, tmp_path):
    _, module = lived
    seen = run(tmp_path, module=planned_joint(), data=small_experience(**EPISODES), callbacks=[foresee.Foresee()])
    assert same(weights(module), weights(seen))
    assert 0 < foresee.seconds_per_plan(seen) < 10


@pytest.mark.parametrize(
    ("options", "said"),
    [({"plans": True}, "none is named"), ({"plans": True, "planner": PLANNER, "explore": AtRandom}, "by itself")],
)
def test_what_contradicts_itself_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        small_joint(**options)
