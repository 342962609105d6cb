"""Stable-Baselines3 trains in dreams and in our environments as in its own."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.vec_env import VecMonitor

from dreamsim.envs.adapt import adapt, vectorise
from dreamsim.envs.dream import Dream
from dreamsim.envs.sb3 import SB3Envs
from dreamsim.envs.toy import Clock, Corridor, Line


class LineModel:
    def start(self, obs):
        return obs["observation"]

    def step(self, state, action):
        state = (state + 0.1 * action).clamp(-1, 1)
        return state, 1 - (state[:, 0] - Line.GOAL).abs(), torch.ones(len(state))

    def view(self, state):
        return {"observation": state}


def dream(rows, horizon=20):
    starts = {"observation": torch.linspace(-1, 1, 9)[:, None]}
    return Dream(LineModel(), starts, rows, horizon, adapt(Line()).codec)


@pytest.mark.parametrize("terminates", [True, False])
def test_ends_are_told_as_stable_baselines_expects(terminates):
    envs = SB3Envs(vectorise(lambda: Clock(3, terminates), 2))
    assert envs.reset().tolist() == [[0], [0]]
    still = np.zeros((2, 1), np.float32)
    seen = [envs.step(still) for _ in range(4)]
    assert [obs[0, 0] for obs, *_ in seen] == [1, 2, 0, 1]
    assert [done.tolist() for _, _, done, _ in seen] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    info = seen[2][3][1]
    assert info["terminal_observation"].tolist() == [3] and info["TimeLimit.truncated"] is not terminates
    assert "terminal_observation" not in seen[3][3][1]


def test_seeds_are_passed_on():
    envs = SB3Envs(vectorise(Line, 3))
    envs.seed(5)
    first = envs.reset()
    envs.seed(5)
    assert np.array_equal(first, envs.reset()) and not np.array_equal(first, envs.reset())


def test_a_policy_that_stable_baselines_trains_in_a_dream_reaches_the_goal():
    torch.manual_seed(0)
    envs = VecMonitor(SB3Envs(dream(8)))
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, learning_rate=3e-3, gamma=0.9, seed=0, device="cpu")
    model.learn(4000)
    place = np.array([-1.0], np.float32)
    for _ in range(20):
        push, _ = model.predict(place, deterministic=True)
        place = np.clip(place + 0.1 * push, -1, 1)
    assert abs(place[0] - Line.GOAL) < 0.15


def test_off_policy_learners_take_it_too():
    sac = SAC("MlpPolicy", SB3Envs(dream(2)), learning_starts=10, batch_size=16, buffer_size=500, seed=0, device="cpu")
    assert sac.learn(60).num_timesteps == 60
    choices = SB3Envs(vectorise(Corridor, 2))
    assert choices.action_space == spaces.Discrete(2)
    dqn = DQN("MlpPolicy", choices, learning_starts=10, batch_size=16, buffer_size=500, seed=0, device="cpu")
    assert dqn.learn(60).num_timesteps >= 60


def test_environments_that_reset_themselves_are_refused():
    starts = {"observation": torch.zeros(1, 1)}
    resetting = Dream(LineModel(), starts, 2, 5, adapt(Line()).codec, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="DISABLED"):
        SB3Envs(resetting)
