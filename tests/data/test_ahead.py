"""A second process collects what the same schedule collects here, and never outlives us."""

import functools
import io
import os
import signal
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from dreamsim.core.types import Act
from dreamsim.data.ahead import Ahead
from dreamsim.data.collect import BadNumber, Collector
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.toy import Line

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the second process does not know this file

PHASES = (7, 5, 9)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def act(self, view, memory=None, first=None, applied=None):
        memory = torch.zeros(len(first), 1) if memory is None else memory
        action = self.weight * view["observation"] + 0.1 * torch.randn(len(first), 1) + 0.01 * memory
        return Act(action, torch.where(first[:, None], torch.zeros_like(memory), memory) + 1)


def make_collector(end=4):
    envs = vectorise(functools.partial(Line, end), 2)
    return Collector(envs, envs.codec, seed=3)


def with_weight(actor, value):
    nn.init.constant_(actor.weight, value)
    return actor


def same(first, second):
    return len(first) == len(second) > 0 and all(
        a.meta == b.meta
        and np.array_equal(a.action, b.action)
        and np.array_equal(a.obs["observation"], b.obs["observation"])
        for a, b in zip(first, second, strict=True)
    )


@pytest.fixture(scope="module")
def ahead():
    """One process for all tests of this file, for a start takes seconds; the first test needs it new."""
    second = Ahead(make_collector, Actor())
    yield second
    second.close()


def test_it_equals_the_same_schedule_here_and_resumes_with_a_phase_under_way(ahead):
    collector, here = make_collector(), Actor()
    expected = [collector.collect(with_weight(here, phase), steps) for phase, steps in enumerate(PHASES)]

    actor = Actor()
    found = []
    for phase, steps in enumerate(PHASES):
        ahead.start(with_weight(actor, phase).state_dict(), steps)
        with_weight(actor, 99)  # learning goes on; the phase keeps the weights it was given
        if phase == 1:
            saved = _through_file(ahead.state_dict())
        found.append(ahead.finish())
    assert all(map(same, found, expected))
    assert ahead.counters == (collector.env_steps, collector.episode_count, tuple(collector.recent_returns))

    ahead.load_state_dict(saved)
    assert same(ahead.finish(), expected[1])
    ahead.start(with_weight(actor, 2).state_dict(), PHASES[2])
    assert same(ahead.finish(), expected[2])
    with pytest.raises(RuntimeError, match=r"start\(\) one"):
        ahead.finish()


def test_an_error_there_is_the_same_error_here(ahead):
    ahead.start(with_weight(Actor(), float("nan")).state_dict(), 3)
    with pytest.raises(BadNumber, match=r"Actor gave the action .* slot 0") as caught:
        ahead.finish()
    assert "In the collecting process" in caught.value.__notes__[0]
    ahead.start(with_weight(Actor(), 0).state_dict(), 4)
    assert len(ahead.finish()) == 2


def test_its_death_is_one_clear_error(ahead):
    os.kill(ahead.pid, signal.SIGKILL)
    ahead._process.join()
    with pytest.raises(RuntimeError, match="exit code -9"):
        ahead.start(Actor().state_dict(), 3)
        ahead.finish()


@pytest.mark.slow
def test_no_process_is_left_when_this_one_is_killed():
    program = """
import functools, sys, time
from torch import nn
from dreamsim.data.ahead import Ahead
ahead = Ahead(functools.partial(print), nn.Identity())
print(ahead.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    limit = time.monotonic() + 30
    while _alive(child) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _through_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)
