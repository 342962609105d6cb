"""A joint run end to end on toy worlds: counters, determinism, resume, what it leaves behind."""

import csv
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch

from dreamsim.core.run import load
from dreamsim.data.collect import BadNumber
from dreamsim.data.module import Experience
from dreamsim.data.store import Store
from dreamsim.envs.control import DeepMindControl
from dreamsim.envs.named import Named
from dreamsim.envs.toy import Line
from dreamsim.training.learner import NotFinite
from dreamsim.training.start import refuse_many, trainer_defaults
from tests import memory
from tests.training.conftest import HalfWay, run, same, small_experience, small_joint, weights

HERE = Path(__file__).parent


def test_counters_count_what_happened(straight):
    folder, module = straight
    counters = module.counters()
    assert counters["env_steps"] == 320
    assert counters["gradient_steps"] == (320 - 80) * 0.25
    assert counters["imagined_steps"] == counters["gradient_steps"] * 8 * 2
    assert len(Store(folder / "store")) == 16


def test_equal_seeds_give_equal_bits_and_others_do_not(straight, tmp_path):
    _, module = straight
    assert same(weights(module), weights(run(tmp_path / "again")))
    assert not same(weights(module), weights(run(tmp_path / "other", seed=1)))


def test_environments_in_processes_give_equal_bits(straight, tmp_path):
    _, module = straight
    assert same(weights(module), weights(run(tmp_path / "apart", data=small_experience(processes=2))))


def test_a_run_stopped_half_way_and_resumed_equals_one_that_went_through(straight, tmp_path):
    _, module = straight
    half = small_experience()
    half.__class__ = HalfWay
    run(tmp_path, data=half)
    resumed = run(tmp_path, resume=True)
    assert same(weights(module), weights(resumed))
    assert resumed.counters()["gradient_steps"] == module.counters()["gradient_steps"]
    assert len(Store(tmp_path / "store")) == 16


def test_living_ahead_in_a_second_process_is_as_exact(tmp_path):
    """One phase behind: not the bits of living here, but the same bits every time, through a stop as well."""
    whole = weights(run(tmp_path / "whole", data=small_experience(ahead=True)))
    half = small_experience(ahead=True)
    half.__class__ = HalfWay
    run(tmp_path / "half", data=half)
    assert same(whole, weights(run(tmp_path / "half", resume=True, data=small_experience(ahead=True))))


def test_a_run_killed_at_any_instant_resumes_to_the_same_bits(straight, tmp_path):
    """kill -9 lands wherever it lands after the first checkpoint; the store is never corrupt."""
    _, module = straight
    child = start_child("run_slowly", tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.31)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert (tmp_path / "last.ckpt").exists()
    assert same(weights(module), weights(run(tmp_path, resume=True)))


def start_child(function: str, folder: Path) -> subprocess.Popen:
    """Run a function of this file in a process of its own."""
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(HERE.parents[1])!r})
from tests.training.test_joint import {function}
{function}(Path({str(folder)!r}))
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run_slowly(folder: Path) -> None:
    """Train as ``run`` does, with pauses in which the test can kill this process."""
    torch.set_num_threads(1)
    data = small_experience()
    data.__class__ = Slow
    run(folder, data=data)


class Slow(Experience):
    """Takes a tenth of a second for each batch."""

    def draw(self):
        for batch in super().draw():
            time.sleep(0.1)
            yield batch


def test_ctrl_c_saves_and_says_how_to_go_on(straight, tmp_path, capsys):
    _, module = straight
    data = small_experience()
    data.__class__ = Interrupted
    data.left = 11
    run(tmp_path, data=data)
    assert "--resume" in capsys.readouterr().out
    assert same(weights(module), weights(run(tmp_path, resume=True)))


class Interrupted(Experience):
    """Presses Ctrl-C in the middle of a round."""

    def draw(self):
        for batch in super().draw():
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch


def test_a_finished_run_is_not_gone_on_with_unless_it_is_made_longer(straight, tmp_path):
    """Resuming never loads experience twice; a longer run goes on where the shorter one ended."""
    run(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="has finished"):
            run(tmp_path, resume=True)
        assert len(Store(tmp_path / "store")) == 16
    before = weights(straight[1])
    module = run(tmp_path, resume=True, data=small_experience(env_steps=480))
    assert module.counters()["env_steps"] == 480 and module.gradient_steps == 100
    assert len(Store(tmp_path / "store")) == 24
    assert not same(before, weights(module))


@pytest.mark.parametrize(
    "options", [{"env_steps": 0}, {"batch": -1}, {"keep_every": 0}, {"warmup": 320}, {"updates": -1}]
)
def test_numbers_that_mean_nothing_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        small_experience(**options)


def test_what_a_run_leaves_is_enough_to_act(straight):
    folder, module = straight
    loaded = load(folder)
    obs = {"observation": torch.tensor([[0.1], [-0.4]])}
    first = torch.ones(2, dtype=torch.bool)
    torch.testing.assert_close(loaded.actor().act(obs, None, first).action, module.actor.act(obs, None, first).action)
    with (folder / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["env_steps"]) for row in rows] == [160, 320]
    assert all(np.isfinite(float(row["return_mean"])) for row in rows)


def test_a_discrete_world_that_ends_is_learned_too(tmp_path):
    module = run(tmp_path, module=small_joint(discrete=True), data=small_experience(discrete=True))
    assert load(tmp_path).codec.action_size == 2
    assert module.gradient_steps > 0


def test_learning_never_changes_its_parameters_after_nan(tmp_path):
    data = small_experience()
    data.env = BadReward
    with pytest.raises(BadNumber, match="reward nan in environment slot"):
        run(tmp_path, data=data)
    assert len(Store(tmp_path / "store")) > 0


class BadReward(Line):
    """Gives NaN as the reward of a step in the third episode of a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def step(self, action):
        self.count += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float("nan") if self.count == 57 else reward, terminated, truncated, info


def test_a_loss_that_is_not_finite_names_itself_and_keeps_the_last_checkpoint(tmp_path):
    data = small_experience()
    data.__class__ = Poisoned
    with pytest.raises(NotFinite, match="reward"):
        run(tmp_path, data=data)
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert all(torch.isfinite(v).all() for v in stored["state_dict"].values() if v.is_floating_point())


class Poisoned(Experience):
    """Hands out a NaN reward once the first checkpoint is kept."""

    def draw(self):
        for batch in super().draw():
            if self.collector.env_steps > 200:
                batch.reward[0, 0] = float("nan")
            yield batch


def test_catching_up_after_a_late_start_is_bounded():
    """Steps taken before anything could be learned from are never owed: no burst of updates."""
    data = small_experience(warmup=10, updates=1.0)

    class Collector:
        env_steps = 0

    class Replay:
        episodes = 0

    data.collector, data.replay = Collector(), Replay()
    owed = []
    for steps in range(16, 160, 16):
        data.collector.env_steps = steps
        data.replay.episodes = int(steps > 100)
        owed.append(data._owed())
    assert owed == [0] * 6 + [16] * 3


def test_actions_in_other_bounds_and_costs_for_rewards_are_learned_too(tmp_path):
    """Pendulum acts in [-2, 2]; what is stored is in those units, what is learned from in [-1, 1]."""
    data = small_experience(env_steps=440, warmup=400, vector_steps=20)
    data.env = functools.partial(Named, id="Pendulum-v1")
    module = run(tmp_path, data=data)
    assert module.gradient_steps >= 10
    raw = Store(tmp_path / "store").episode(0).action
    unit = data.replay.sample(64, 3).action
    assert 1 < np.abs(raw).max() <= 2 and unit.abs().max() <= 1


def test_half_precision_learns_too(tmp_path):
    halved = run(tmp_path / "half", precision="bf16-mixed")
    assert all(torch.isfinite(value).all() for value in weights(halved).values())


def test_several_devices_are_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="one device"):
        refuse_many(lightning.Trainer(**trainer_defaults(tmp_path, devices=2, strategy="ddp_spawn")))


class Small(DeepMindControl):
    """Cartpole in pictures of 32 by 32, cut short."""

    def __init__(self) -> None:
        super().__init__("cartpole", "swingup", repeat=4, pixels=32)


def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_later(straight, tmp_path):
    _, module = straight
    child = start_child("run_on_full_disk", tmp_path)
    said = child.communicate(timeout=120)[1].decode()
    assert child.returncode != 0
    assert "could not save the run" in said and "Free some space" in said
    assert not list(tmp_path.glob("*.part"))
    assert same(weights(module), weights(run(tmp_path, resume=True)))


def run_on_full_disk(folder: Path) -> None:
    """Train as ``run`` does; after the first checkpoint no file may grow."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    data = small_experience()
    data.__class__ = Full
    run(folder, data=data)


class Full(Experience):
    """Allows files no more than a kilobyte from the first round behind the first checkpoint on."""

    def gather(self, policy):
        if self.collector.env_steps > 200:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
        return super().gather(policy)


def test_memory_handles_and_threads_stay_constant_over_a_long_run(tmp_path):
    data = small_experience(env_steps=6400, updates=0.05, evaluate_every=400, keep_every=400, capacity=400)
    data.__class__ = Watched
    data.seen = []
    run(tmp_path, data=data)
    half = len(data.seen) // 2
    held, handles, threads = np.array(data.seen).T
    assert held[-1] - held[half] < 2 * 2**20
    assert handles[-1] == handles[half] and threads[-1] == threads[half]


class Watched(Experience):
    """Notes held memory, open files and threads four times over a run."""

    def gather(self, policy):
        self.round = getattr(self, "round", -1) + 1
        if self.round % (self.rounds // 4) == 0:
            self.seen.append((memory.held(), len(os.listdir("/proc/self/fd")), threading.active_count()))
        return super().gather(policy)


@pytest.mark.slow
def test_pixels_are_learned_from_and_dreamt(tmp_path):
    data = small_experience(
        env_steps=2400, warmup=1900, vector_steps=50, keep_every=2400, evaluate_every=2400, updates=0.05
    )
    data.env, data.evaluate_episodes = Small, 1
    module = run(tmp_path, data=data)
    assert module.gradient_steps > 0
    obs = {"image": torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)}
    assert load(tmp_path).actor().act(obs, None, torch.ones(2, dtype=torch.bool)).action.shape == (2, 1)
