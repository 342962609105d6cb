"""Every stored row is aligned, whoever resets; a collector continues exactly; bad numbers stop it by name."""

import functools
import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamsim.core.random import derive_seed
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act
from dreamsim.data.collect import BadNumber, Collector
from dreamsim.envs.adapt import Adapted, adapt, vectorise
from dreamsim.envs.toy import Clock, Corridor, Line


class Counting:
    """Counts its own steps since ``first`` in its memory and acts by it, with a little noise."""

    def act(self, view, memory=None, first=None, applied=None):
        count = len(first)
        memory = torch.zeros(count, 1) if memory is None else memory
        memory = torch.where(first[:, None], torch.zeros_like(memory), memory)
        noise = torch.randn(count, 1) * 0.01
        return Act(memory / 100 + noise, memory + 1, {"count": memory[:, 0].clone(), "applied": applied[:, 0].clone()})


def make_collector(make_env=Clock, count=3, seed=0, **kwargs):
    envs = vectorise(make_env, count)
    return Collector(envs, envs.codec, seed=seed, **kwargs)


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.meta == b.meta and a.terminated == b.terminated
        for x, y in zip((a.obs, a.trace), (b.obs, b.trace), strict=True):
            assert x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)
        assert np.array_equal(a.action, b.action) and np.array_equal(a.reward, b.reward)


def assert_aligned(episode, end):
    assert episode.obs["observation"][:, 0].tolist() == list(range(end + 1))
    assert episode.reward.tolist() == [1.0] * end
    assert episode.action.shape == (end, 1)
    assert episode.trace["count"].tolist() == list(range(end))
    np.testing.assert_array_equal(episode.trace["applied"][1:], episode.action[:-1, 0])


@pytest.mark.parametrize("terminates", [True, False])
def test_an_episode_has_one_more_observation_than_actions(terminates):
    episodes = make_collector(functools.partial(Clock, 3, terminates), 2).collect(Counting(), 6)
    assert len(episodes) == 4
    for episode in episodes:
        assert_aligned(episode, 3)
        assert episode.terminated is terminates


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("adapted", [True, False])
def test_rows_are_aligned_in_every_autoreset_mode_with_unequal_lengths(mode, adapted):
    ends = [2, 3, 5]
    makers = [functools.partial(_adapted if adapted else Clock, end) for end in ends]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    codec = adapt(Clock()).codec
    collector = Collector(envs, codec, seed=1)
    episodes = collector.collect(Counting(), 24)
    for slot, end in enumerate(ends):
        mine = [episode for episode in episodes if episode.meta["slot"] == slot]
        assert len(mine) == (24 + 1) // (end + 1) if mode is AutoresetMode.NEXT_STEP else 24 // end
        assert [episode.meta["episode"] for episode in mine] == list(range(len(mine)))
        for episode in mine:
            assert_aligned(episode, end)
            assert episode.terminated
    assert collector.recent_returns == [float(len(episode.reward)) for episode in episodes]
    real = 24 * 3 - sum(24 // (end + 1) for end in ends) if mode is AutoresetMode.NEXT_STEP else 24 * 3
    assert collector.env_steps == real


def _adapted(end):
    return adapt(Clock(end))


def test_an_env_that_hides_its_mode_is_refused():
    envs = SyncVectorEnv([Clock])
    del envs.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match="autoreset_mode"):
        Collector(envs, adapt(Clock()).codec, seed=0)


def test_seeds_come_from_slot_and_episode_number_and_reproduce_the_first_observation():
    episodes = make_collector(functools.partial(Line, 4), 2, seed=5).collect(Counting(), 8)
    for episode in episodes:
        assert episode.meta["seed"] == derive_seed(5, episode.meta["slot"], episode.meta["episode"])
        obs, _ = Line().reset(seed=episode.meta["seed"])
        assert np.array_equal(episode.obs["observation"][0], obs)


def test_equal_seeds_give_equal_episodes_and_leave_the_global_generators_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (make_collector(functools.partial(Clock, 3, True, 4), seed=2) for _ in range(2))
    one, two = [], []
    for _ in range(20):  # interleaved
        one += first.collect(Counting(), 1)
        two += second.collect(Counting(), 1)
    policy = Counting()
    again = make_collector(functools.partial(Clock, 3, True, 4), seed=2).collect(policy, 20)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert len(again) > 3
    assert [e.meta for e in one] == [e.meta for e in two] == [e.meta for e in again]


def test_chunks_of_collection_make_no_difference():
    policy, other = Counting(), Counting()
    whole = make_collector(functools.partial(Clock, 3, True, 4)).collect(policy, 30)
    parts = make_collector(functools.partial(Clock, 3, True, 4))
    assert_equal(whole, [episode for _ in range(10) for episode in parts.collect(other, 3)])


def test_resume_goes_on_exactly():
    make = functools.partial(Line, 7)
    policy = Counting()
    straight = make_collector(make)
    straight.collect(policy, 10)
    saved = _through_file(straight.state_dict())
    resumed = make_collector(make)
    resumed.load_state_dict(saved)
    assert_equal(straight.collect(policy, 25), resumed.collect(Counting(), 25))
    assert (resumed.env_steps, resumed.episode_count) == (straight.env_steps, straight.episode_count)
    assert resumed.recent_returns == straight.recent_returns
    assert torch.equal(straight.state_dict()["stream"]["cpu"], resumed.state_dict()["stream"]["cpu"])


@pytest.mark.parametrize("steps", range(1, 12))
def test_resume_is_exact_at_every_instant_with_unequal_lengths(steps):
    make = functools.partial(Clock, 2, True, 6)
    policy = Counting()
    straight = make_collector(make, seed=3)
    straight.collect(policy, steps)
    resumed = make_collector(make, seed=3)
    resumed.load_state_dict(_through_file(straight.state_dict()))
    assert_equal(straight.collect(policy, 12), resumed.collect(Counting(), 12))


def test_an_env_that_does_not_reproduce_is_named_and_starts_afresh():
    class Forgetful(Line):
        made = 0

        def __init__(self):
            super().__init__(9)
            Forgetful.made += 1
            self._shift = 0.01 * (Forgetful.made > 3)  # the second collector's environments differ

        def step(self, action):
            return super().step(action + np.float32(self._shift))

    straight = make_collector(Forgetful)
    straight.collect(Counting(), 4)
    resumed = make_collector(Forgetful)
    with pytest.warns(UserWarning, match="slot 0 .*1 .*2 .*did not reproduce"):
        resumed.load_state_dict(_through_file(straight.state_dict()))
    episodes = resumed.collect(Counting(), 9)
    assert [episode.meta["episode"] for episode in episodes] == [1, 1, 1]
    assert all(len(episode.reward) == 9 and episode.trace["count"][0] == 0 for episode in episodes)


def test_foreign_envs_resume_with_fresh_episodes_and_say_so():
    def make():
        envs = SyncVectorEnv([functools.partial(Clock, 4)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        return Collector(envs, adapt(Clock()).codec, seed=0)

    straight = make()
    straight.collect(Counting(), 2)
    resumed = make()
    with pytest.warns(UserWarning, match="reset themselves"):
        resumed.load_state_dict(_through_file(straight.state_dict()))
    for episode in resumed.collect(Counting(), 8):
        assert_aligned(episode, 4)


def test_evaluation_returns_every_seed_once_however_long_the_episodes():
    make = functools.partial(Clock, 1, True, 30)
    collector = make_collector(make, 4, seed=9)
    episodes = collector.episodes(Counting(), 10)
    assert [episode.meta["seed"] for episode in episodes] == [derive_seed(9, "evaluate", i) for i in range(10)]
    assert len({len(episode.reward) for episode in episodes}) > 3
    assert_equal(episodes, collector.episodes(Counting(), 10))
    assert collector.env_steps == collector.episode_count == 0


def test_discrete_actions_are_recorded_one_hot_and_success_is_kept():
    class Right:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.tensor([[0.2, 0.7]]).expand(len(first), 2))

    (episode,) = make_collector(Corridor, 1).collect(Right(), 4)
    assert episode.action.tolist() == [[0.0, 1.0]] * 4
    assert episode.reward.tolist() == [0, 0, 0, 1] and episode.terminated
    assert episode.obs["observation"].argmax(-1).tolist() == [0, 1, 2, 3, 4]
    assert episode.meta["success"] == 1.0


def test_what_the_world_really_did_is_what_is_stored():
    class Weak(Clock):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"applied": action / 2}

    class One:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.ones(len(first), 1), None, {"applied": applied})

    (episode,) = make_collector(Weak, 1).collect(One(), 3)
    assert episode.action[:, 0].tolist() == [0.5, 0.5, 0.5]
    assert episode.trace["applied"][1:, 0].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_a_bad_number_stops_by_name_and_keeps_what_was_finished(field):
    class Broken(Clock):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            if self.np_random_seed == derive_seed(0, 1, 3) and self._time == 7:
                obs, reward = (obs, np.nan) if field == "reward" else (obs * np.inf, reward)
            return obs, reward, *rest

    collector = make_collector(functools.partial(Broken, 10), 2)
    with pytest.raises(BadNumber, match=rf"{field}.* slot 1, episode 3 .*step 6"):
        collector.collect(Counting(), 100)
    assert len(collector.finished) == 6
    assert len(collector.collect(Counting(), 10)) == 8


def test_a_policy_that_gives_nan_is_named():
    class Nan:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.tensor([[0.0], [np.nan], [0.0]]))

    with pytest.raises(BadNumber, match=r"Nan gave the action .* slot 1, .*step 0"):
        make_collector().collect(Nan(), 1)


def test_exchanging_the_policy_forgets_its_memory_but_not_the_episode():
    class Silent:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.zeros(len(first), 1), {"other": torch.zeros(3)})

    collector = make_collector(functools.partial(Clock, 5))
    collector.collect(Silent(), 2)
    for episode in collector.collect(Counting(), 3):
        assert episode.obs["observation"][:, 0].tolist() == list(range(6))
        assert episode.trace == {}  # incomplete traces are left out


def test_long_episodes_grow_the_buffers():
    (episode,) = make_collector(functools.partial(Clock, 700), 1).collect(Counting(), 700)
    assert_aligned(episode, 700)


def test_processes_give_the_same_episodes():
    make = functools.partial(gym.make, "dreamsim.envs:dreamsim/Line-v0", end=6)
    policy = Counting()
    envs = vectorise(make, 2, processes=2)
    try:
        assert isinstance(envs.codec, Codec)
        assert_equal(
            Collector(envs, envs.codec, seed=4).collect(policy, 15), make_collector(make, 2, seed=4).collect(policy, 15)
        )
    finally:
        envs.close()


def _through_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_adapted_is_not_adapted_twice():
    env = adapt(Clock())
    assert isinstance(env, Adapted) and adapt(env) is env
