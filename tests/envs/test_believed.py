"""Reality through a model's belief looks as its dream does, so a policy may go from one to the other unchanged."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from dreamsim.core.types import Act
from dreamsim.data.collect import Collector
from dreamsim.envs.adapt import adapt, vectorise
from dreamsim.envs.believed import Believed
from dreamsim.envs.dream import Dream
from dreamsim.envs.toy import Corridor, Line
from dreamsim.imagination.imagine import Believer


class Recalling:
    """Line itself, which also shows how much it has been pushed since the start."""

    def start(self, obs):
        return {"place": obs["observation"], "pushed": torch.zeros_like(obs["observation"])}

    def update(self, state, action, obs):
        return {"place": obs["observation"], "pushed": state["pushed"] + action}

    def step(self, state, action):
        place = (state["place"] + 0.1 * action).clamp(-1, 1)
        reward = 1 - (place[:, 0] - Line.GOAL).abs()
        return {"place": place, "pushed": state["pushed"] + action}, reward, torch.ones(len(place))

    def view(self, state):
        return {"latent": torch.cat([state["place"], state["pushed"]], 1)}


def pushes(steps):
    return np.random.default_rng(0).uniform(-1.5, 1.5, (steps, 1)).astype(np.float32)


def test_where_the_model_is_exact_dream_and_reality_cannot_be_told_apart():
    real = Believed(Line(20), Recalling())
    view, info = real.reset(seed=3)
    starts = {name: torch.from_numpy(value[None]) for name, value in info["obs"].items()}
    dream = Dream(Recalling(), starts, 1, 20, adapt(Line()).codec)
    assert real.observation_space == dream.single_observation_space and real.action_space == dream.single_action_space
    assert np.array_equal(view["latent"], dream.reset()[0]["latent"][0])
    for push in pushes(20):
        ours, theirs = real.step(push), dream.step(push[None])
        assert np.array_equal(ours[0]["latent"], theirs[0]["latent"][0])
        assert ours[1] == pytest.approx(theirs[1][0], abs=1e-6) and ours[2:4] == (theirs[2][0], theirs[3][0])


def test_it_shows_what_believer_shows_a_policy():
    class Watching:
        def __init__(self):
            self.seen = []

        def act(self, view, memory=None, first=None, applied=None):
            self.seen.append(view["latent"].clone())
            return Act(torch.full((1, 1), 0.3))

    policy = Watching()
    envs = vectorise(Line, 1)
    episode = Collector(envs, envs.codec, seed=0).collect(Believer(Recalling(), policy), 20)[0]
    real = Believed(Line(), Recalling())
    view, _ = real.reset(seed=int(episode.meta["seed"]))
    for seen in policy.seen[:20]:
        assert np.array_equal(view["latent"], seen[0].numpy())
        view, *_ = real.step(np.array([0.3], np.float32))


def test_it_keeps_gymnasiums_contract():
    check_env(Believed(Line(), Recalling()), skip_render_check=True)


def test_a_choice_stays_a_choice():
    class Plain:
        def start(self, obs):
            return obs["observation"]

        def update(self, state, action, obs):
            self.action = action
            return obs["observation"]

        def view(self, state):
            return {"latent": state}

    real = Believed(Corridor(), Plain())
    assert real.action_space == spaces.Discrete(2)
    real.reset(seed=0)
    real.step(1)
    assert real._model.action.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match=r"must be in Discrete\(2\), got 5"):
        real.step(5)
