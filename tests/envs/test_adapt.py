"""Adapted environments keep ends, units and layouts; several in one process or many are one and the same."""

import functools
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from dreamsim.core.spaces import Codec
from dreamsim.envs.adapt import Chunk, Repeat, Together, adapt, speak, vectorise
from dreamsim.envs.toy import Clock, Corridor, Echo, Line


class Pair(gym.Env):
    """Observes an image and a vector; the action has lopsided bounds."""

    metadata = {"render_modes": []}
    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "vector": spaces.Box(-9, 9, (2,), np.float32)}
    )
    action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(self.np_random.uniform(-1, 1, 2)), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self._observe(action), 0.0, False, False, {"asked": action}

    def _observe(self, vector):
        image = np.zeros((8, 8, 3), np.uint8)
        image[0, 0] = [1, 2, 3]
        return {"image": image, "vector": np.asarray(vector, np.float32)}


@pytest.mark.filterwarnings("ignore:.*(unwrapped version|maximum value is infinity)")
def test_an_adapted_env_passes_gymnasiums_own_check():
    for env in (Clock(), Line(), Corridor(), Pair(), Echo()):
        check_env(adapt(env), skip_render_check=True)


def test_actions_reach_the_env_in_its_own_units_and_bounds():
    env = adapt(Pair())
    env.reset(seed=0)
    for unit, raw in ([0, 0], [0, 2.5]), ([1, -1], [1, 0]), ([7, -7], [1, 0]), ([-1, 1], [-1, 5]):
        obs, *_, info = env.step(np.array(unit, np.float32))
        assert info["asked"].tolist() == obs["vector"].tolist() == raw
        assert obs["image"].shape == (3, 8, 8) and obs["image"][:, 0, 0].tolist() == [1, 2, 3]


def test_an_action_that_is_not_finite_is_refused_with_env_and_step():
    env = adapt(Clock(9))
    env.reset()
    env.step(np.zeros(1))
    with pytest.raises(ValueError, match=r"Clock.*nan.*step 1"):
        env.step(np.array([np.nan]))
    with pytest.raises(ValueError, match=r"Clock.*inf"):
        env.step(np.array([np.inf]))
    envs = vectorise(Clock, 2)
    envs.reset()
    with pytest.raises(ValueError, match=r"row 1, .*Clock.*nan"):
        envs.step(np.array([[0.0], [np.nan]]))


def test_an_outer_cap_never_hides_a_native_truncation():
    env = adapt(TimeLimit(TimeLimit(Clock(100), 5), 10))
    env.reset()
    ends = [env.step(np.zeros(1))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_an_env_that_ends_and_reaches_the_cap_at_once_has_terminated():
    env = adapt(TimeLimit(Clock(3), 3))
    env.reset()
    assert [env.step(np.zeros(1))[2] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("end, terminates", [(3, True), (4, False), (5, True)])
def test_repeat_sums_rewards_and_ends_with_the_env(end, terminates):
    env = Repeat(Clock(end, terminates), 2)
    assert env.metadata["action_repeat"] == 2
    assert Repeat(env, 3).metadata["action_repeat"] == 6
    env.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(np.zeros(1))
        total, over = total + reward, terminated or truncated
    assert (total, obs[0], terminated) == (end, end, terminates)


def test_a_chunk_shows_every_frame_and_how_many_are_real():
    env = adapt(Chunk(Clock(5), 3))
    assert env.codec.action_size == 3
    obs, _ = env.reset()
    assert obs["observation"][:, 0].tolist() == [0, 0, 0] and obs["frames"] == [1]
    obs, reward, terminated, *_ = env.step(np.zeros(3))
    assert obs["observation"][:, 0].tolist() == [1, 2, 3] and (reward, terminated) == (3, False)
    obs, reward, terminated, *_ = env.step(np.zeros(3))
    assert obs["observation"][:, 0].tolist() == [4, 5, 0] and obs["frames"] == [2] and (reward, terminated) == (2, True)


def test_a_chunk_of_images_stays_images_and_of_choices_stays_choices():
    env = adapt(Chunk(Pair(), 2))
    obs, _ = env.reset(seed=0)
    assert obs["image"].shape == (2, 3, 8, 8) and obs["image"].dtype == np.uint8
    assert obs["image"][0, :, 0, 0].tolist() == [1, 2, 3]
    assert env.step(np.array([1, -1, -1, 1]))[0]["vector"].tolist() == [[1, 0], [-1, 5]]
    corridor = adapt(Chunk(Corridor(), 4))
    corridor.reset()
    _, reward, terminated, *_ = corridor.step(np.array([0, 1] * 4))
    assert (reward, terminated) == (1, True)


def test_rows_end_and_are_reset_on_their_own():
    envs = Together([functools.partial(Clock, end) for end in (9, 2, 9)])
    envs.reset(seed=[1, 2, 3])
    action = np.zeros((3, 1), np.float32)
    envs.step(action)
    _, _, terminated, _, _ = envs.step(action)
    assert terminated.tolist() == [False, True, False]
    with pytest.raises(RuntimeError, match=r"\[1\] have ended"):
        envs.step(action)
    obs, _ = envs.reset(seed=[0, 7, 0], options={"reset_mask": terminated})
    assert obs["observation"][:, 0].tolist() == [2, 0, 2]
    assert envs.step(action)[0]["observation"][:, 0].tolist() == [3, 1, 3]


def test_options_reach_the_envs():
    envs = vectorise(Clock, 2)
    envs.reset(options={"end": 1})
    assert envs.step(np.zeros((2, 1)))[2].all()


@pytest.mark.parametrize("mask", [np.zeros(2, bool), np.ones(3, bool), [True, True], np.ones(2)])
def test_a_wrong_reset_mask_is_refused(mask):
    with pytest.raises(ValueError, match="reset_mask"):
        vectorise(Clock, 2).reset(options={"reset_mask": mask})


def test_observations_handed_out_are_not_overwritten():
    envs = vectorise(functools.partial(Clock, 9), 2)
    first, _ = envs.reset()
    envs.step(np.zeros((2, 1)))
    assert first["observation"].tolist() == [[0], [0]]


def test_envs_with_other_spaces_are_refused():
    with pytest.raises(ValueError, match="environment 1 has raw_observation_space"):
        Together([Clock, Line])


def test_it_agrees_with_gymnasiums_vector_env_and_with_processes():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # other processes do not know this file
    envs = [
        vectorise(Pair, 2),
        SyncVectorEnv([lambda: adapt(Pair())] * 2, autoreset_mode=AutoresetMode.DISABLED),
        vectorise(Pair, 2, processes=1),
    ]
    try:
        actions = np.random.default_rng(0).uniform(-1, 1, (4, 2, 2)).astype(np.float32)
        runs = [[e.reset(seed=[3, 4])[0], *(e.step(a)[0] for a in actions)] for e in envs]
        for steps in zip(*runs, strict=True):
            for name, part in envs[0].observation_space.items():
                for obs in steps:
                    assert obs[name].dtype == part.dtype and np.array_equal(obs[name], steps[0][name])
                    assert envs[0].observation_space.contains(obs)
    finally:
        for e in envs:
            e.close()


def test_a_mismatched_codec_is_refused():
    with pytest.raises(ValueError, match="make the codec from these environments"):
        speak(vectorise(Clock, 2), Codec(Corridor().observation_space, Corridor().action_space))


@pytest.mark.parametrize("word", ["hi", "", "x" * 10])
def test_echo_says_what_it_was_told(word):
    env = Echo(length=10)
    obs, _ = env.reset()
    assert obs == ""
    padded = np.full(10, 255)
    padded[: len(word)] = list(word.encode())
    assert env.step(padded)[0] == word
