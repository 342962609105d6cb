"""Runs of every kind outlive their data, count alike, stop for a bad number, and leave nothing behind."""

import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from dreamsim.core.run import load
from dreamsim.data.collect import BadNumber
from dreamsim.data.module import Recordings
from dreamsim.envs.control import DeepMindControl
from dreamsim.envs.dream import Dream
from dreamsim.envs.named import Named
from dreamsim.envs.toy import Clock, Corridor, Echo, Line
from dreamsim.training.learner import Learner
from dreamsim.training.objectives.policy_prior import PolicyPrior
from dreamsim.training.policy import FitPolicy
from dreamsim.training.world_model import FitWorldModel
from tests import memory
from tests.training.conftest import CRITIC, run, small_experience, small_joint
from tests.training.test_learner import batch, parts
from tests.training.test_recordings import WORLD, fit
from worldmodels.actors import SquashedGaussian
from worldmodels.ensemble import Ensemble

ROOT = Path(__file__).parents[2]
ASK = """
import json, sys, torch
from dreamsim.core.run import load
from dreamsim.envs.adapt import adapt
for folder in sys.argv[1:]:
    run = load(folder)
    env = adapt(run.make_env())
    obs = {name: torch.as_tensor(value)[None] for name, value in env.reset(seed=0)[0].items()}
    torch.manual_seed(0)
    _, reward, proceed = run.model.step(run.model.start(obs), torch.zeros(1, run.codec.action_size))
    said = [reward.item(), proceed.item()]
    if run.policy is not None:
        said += run.actor().act(obs).action.flatten().tolist()
    print("said", json.dumps([folder, said]))
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """One small run of each kind."""
    base = tmp_path_factory.mktemp("kinds")
    run(base / "joint")
    run(base / "discrete", module=small_joint(True), data=small_experience(True))
    store = str(base / "joint" / "store")
    recorded = functools.partial(Recordings, store, batches=20, batch=16)
    small = functools.partial(Ensemble, members=3, elites=2, width=16)
    fit(base / "world", FitWorldModel(WORLD), recorded(env=Line))
    fit(base / "ensemble", FitWorldModel(small), recorded(env=Line))
    objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=3)
    fit(
        base / "policy",
        FitPolicy(str(base / "world"), functools.partial(SquashedGaussian, width=16), objective),
        recorded(),
    )
    return base


def asked(folders):
    done = subprocess.run([sys.executable, "-c", ASK, *map(str, folders)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("said ") for line in done.stdout.splitlines() if line.startswith("said ")]
    return {Path(folder).name: said for folder, said in map(json.loads, lines)}


def test_every_kind_of_run_acts_in_a_fresh_process_when_its_data_are_gone(kinds, tmp_path):
    names = ["joint", "discrete", "world", "ensemble", "policy"]
    before = asked(kinds / name for name in names)
    assert list(before) == names and all(torch.isfinite(torch.tensor(said)).all() for said in before.values())
    for name in names:
        shutil.copytree(kinds / name, tmp_path / name, ignore=shutil.ignore_patterns("store", "last.ckpt"))
    assert asked(tmp_path / name for name in names) == before


class Breaking(Line):
    """Line whose 37th reward in its life is not a number; rewards are counted over all episodes."""

    lived = 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.lived += 1
        return obs, float("nan") if self.lived == 37 else reward, terminated, truncated, info


def test_a_reward_that_is_not_a_number_stops_at_its_step_and_leaves_a_good_checkpoint(tmp_path):
    data = small_experience(env_steps=320, warmup=16, keep_every=32)
    data.env = Breaking
    with pytest.raises(BadNumber) as stopped:
        run(tmp_path, data=data)
    assert "reward" in str(stopped.value) and "step 16" in str(
        stopped.value
    )  # 20 steps an episode: the 17th of the second
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert stored["dreamsim"]["gradient_steps"] > 0
    assert all(torch.isfinite(value).all() for value in stored["state_dict"].values() if value.is_floating_point())
    assert load(tmp_path).policy is not None


def test_counters_and_rates_do_not_depend_on_how_many_groups_are_learned(kinds):
    """Four groups of parameters, or one: ten updates are ten, and each rate ends at the same share of its first."""
    four, one = Learner(*parts()), Learner(parts()[0])
    assert [len(learner.optimiser.param_groups) for learner in (four, one)] == [4, 1]
    for learner in (four, one):
        first = [group["lr"] for group in learner.optimiser.param_groups]
        for step in range(10):
            learner.set_rate(1 - step / 10)
            learner.update(batch(step))
        assert [group["lr"] for group in learner.optimiser.param_groups] == pytest.approx(
            [rate * 0.1 for rate in first]
        )
        steps = {int(state["step"]) for state in learner.optimiser.state.values()}
        assert steps == {10}


def test_no_tensor_outlives_its_update():
    learner = Learner(*parts())

    def alive():
        gc.collect()
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    for seed in range(5):
        learner.update(batch(seed))
    before = alive()
    for seed in range(60):
        learner.update(batch(seed))
    assert alive() <= before


class Held(torch.nn.Module):
    def start(self, obs):
        return obs["observation"]

    def step(self, state, action):
        return state, torch.zeros(len(state)), torch.ones(len(state))

    def view(self, state):
        return {"observation": state}


def dreamt():
    from dreamsim.envs.adapt import adapt

    return Dream(Held(), {"observation": torch.zeros(4, 1)}, 2, 5, adapt(Line()).codec)


@pytest.mark.parametrize(
    ("make", "cycles"),
    [
        *((kind, 1000) for kind in (Clock, Line, Echo, Corridor)),
        (functools.partial(Named, "CartPole-v1"), 1000),
        (functools.partial(Named, "InvertedPendulum-v5"), 40),
        (functools.partial(DeepMindControl, "cartpole", "swingup"), 40),
        (dreamt, 1000),
    ],
    ids=["Clock", "Line", "Echo", "Corridor", "classic", "MuJoCo", "control", "Dream"],
)
def test_opening_and_closing_leaves_no_thread_handle_or_memory(make, cycles):
    def once(times):
        for _ in range(times):
            env = make()
            env.reset(seed=0)
            env.close()

    def held():
        return threading.active_count(), len(os.listdir("/proc/self/fd")), memory.held()

    once(cycles // 4)
    before = held()
    once(cycles)
    after = held()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 2 * 2**20
