"""Every common space goes the whole way: environment, collection, store, replay, dream, and back into an action."""

import copy
import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.data.collect import Collector
from dreamsim.data.replay import Replay
from dreamsim.data.store import Store
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.dream import Dream
from dreamsim.imagination.imagine import Uniform

NUMBER = spaces.Box(-1.0, 1.0, (2,))
NESTED = {"arm": spaces.Dict({"joint": spaces.Box(-2, 3, (2,)), "grip": spaces.Discrete(3, start=-1)}), "on": NUMBER}
OBSERVED = {
    "float64 without bounds": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "asymmetric": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
    "whole numbers": spaces.Box(-4, 9, (2, 2), np.int32),
    "a choice that starts below 0": spaces.Discrete(5, start=-2),
    "choices in two axes": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "switches": spaces.MultiBinary(4),
    "an image": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "a grid": spaces.Box(0, 1, (5, 5, 5), np.float32),
    "nested": spaces.Dict(NESTED),
    "a tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (3,))]),
    "text": spaces.Text(6, charset="abc"),
}
ACTED = {
    "asymmetric": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
    "whole numbers": spaces.Box(-4, 9, (2,), np.int64),
    "a choice that starts below 0": spaces.Discrete(5, start=-2),
    "choices in two axes": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "switches": spaces.MultiBinary(4),
    "nested": spaces.Dict(NESTED),
    "a tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (3,))]),
}


class Samples(gym.Env):
    """Shows samples of one space and takes actions of another; four steps an episode."""

    def __init__(self, observed, acted):
        self.observation_space, self.action_space, self.time = copy.deepcopy(observed), acted, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observation_space.sample(), float(self.time), False, self.time == 4, {}


class Still(torch.nn.Module):
    """Dreams that nothing changes and pays how often it was asked."""

    def start(self, obs):
        return obs

    def step(self, state, action):
        return state, action.sum(-1) * 0 + 1, torch.ones(len(action))

    def view(self, state):
        return state


def lived(make, processes=0):
    envs = vectorise(make, 2, processes)
    try:
        return envs.codec, Collector(envs, envs.codec, seed=0).episodes(Uniform(envs.codec.action_size), 4)
    finally:
        envs.close()


PAIRS = [pytest.param(space, NUMBER, id=f"sees {name}") for name, space in OBSERVED.items()]
PAIRS += [pytest.param(NUMBER, space, id=f"does {name}") for name, space in ACTED.items()]


@pytest.mark.parametrize(("observed", "acted"), PAIRS)
def test_the_whole_way(observed, acted, tmp_path):
    codec, episodes = lived(functools.partial(Samples, observed, acted))
    with Store.create(tmp_path / "store", observed, acted) as store:
        for episode in episodes:
            store.append(episode)
    store, replay = Store(tmp_path / "store"), Replay(100, codec.observation_space, codec.action_size)
    for kept, episode in zip(store, episodes, strict=True):
        assert all(np.array_equal(kept.obs[name], value) for name, value in episode.obs.items())
        assert observed.contains(codec.decode_obs({name: value[0] for name, value in kept.obs.items()}))
        replay.add(kept, codec.scale)
    batch = replay.sample(8, 3)
    assert batch.action.shape == (8, 3, codec.action_size) and batch.action.abs().max() <= 1
    assert batch.reward[batch.mask > 0].min() >= 1
    dream = Dream(Still(), store, 3, 2, codec)
    view, infos = dream.reset(seed=0)
    assert dream.observation_space.contains(view)
    for row, number in enumerate(infos["start_episode"]):
        assert all(np.array_equal(view[name][row], value[0]) for name, value in store.episode(number).obs.items())
    raw = codec.decode_action(dream.single_action_space.sample())
    assert acted.contains(raw)
    view, reward, _, truncated, _ = dream.step(dream.action_space.sample())
    assert reward.tolist() == [1, 1, 1] and not truncated.any() and dream.observation_space.contains(view)


def test_processes_give_the_same_of_all_at_once():
    make = functools.partial(Samples, spaces.Dict(OBSERVED), spaces.Tuple(list(ACTED.values())))
    (_, here), (_, there) = lived(make), lived(make, 2)
    for one, two in zip(here, there, strict=True):
        assert np.array_equal(one.action, two.action)
        for name, value in one.obs.items():
            assert value.dtype == two.obs[name].dtype and np.array_equal(value, two.obs[name]), name
