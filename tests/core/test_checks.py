"""The checks pass what keeps the contract and name what does not, each fault by itself."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core import checks
from dreamsim.core.checks.expect import misfit
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Episode, Learned

OBS = spaces.Dict(
    {"x": spaces.Box(-np.inf, np.inf, (3,), np.float32), "image": spaces.Box(0, 255, (1, 4, 4), np.uint8)}
)
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Model(nn.Module):
    """A belief with noise in its dream, honest in every respect."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3 + 16, 4)
        self.dynamics = nn.Linear(4 + 2, 4)
        self.register_buffer("mean", torch.zeros(3))

    def encode(self, obs):
        lead = obs["x"].dim() - 1
        return self.encoder(torch.cat([obs["x"] - self.mean, obs["image"].float().flatten(lead) / 255], -1))

    def start(self, obs):
        return {"latent": self.encode(obs)}

    def update(self, state, action, obs):
        return {"latent": self.encode(obs) + 0.1 * state["latent"]}

    def step(self, state, action):
        latent = self.dynamics(torch.cat([state["latent"], action], -1))
        latent = latent + 0.1 * torch.randn_like(latent)
        return {"latent": latent}, latent.sum(-1), torch.sigmoid(latent[:, 0])

    def view(self, state):
        return dict(state)

    def loss(self, batch):
        latent = self.encode(batch.obs)
        error = (self.dynamics(torch.cat([latent[:, :-1], batch.action], -1)) - latent[:, 1:]).square().mean(-1)
        return Learned({"dynamics": (error * batch.mask).sum() / batch.mask.sum()}, {"latent": latent})


class Pad(Model):
    def loss(self, batch):
        return Learned({"reward": (self.encode(batch.obs)[:, 1:].sum(-1) - batch.reward).square().mean()}, None)


class Mixing(Model):
    def start(self, obs):
        latent = self.encode(obs)
        return {"latent": latent - latent.mean(0)}


class Wide(Model):
    def step(self, state, action):
        state, reward, proceed = super().step(state, action)
        return state, reward[:, None], proceed


class Sure(Model):
    def step(self, state, action):
        state, reward, proceed = super().step(state, action)
        return state, reward, proceed + 1


class InPlace(Model):
    def view(self, state):
        state["latent"].add_(1)
        return state


class Grows(Model):
    def update(self, state, action, obs):
        return {"latent": torch.cat([state["latent"], self.encode(obs)], -1)}


class Counts(Model):
    def loss(self, batch):
        self.mean.add_(batch.obs["x"][:, 0].mean(0))
        return super().loss(batch)


class OwnDice(Model):
    def __init__(self):
        super().__init__()
        self.dice = torch.Generator().manual_seed(0)

    def step(self, state, action):
        state, reward, proceed = super().step(state, action)
        return state, reward + torch.rand(1, generator=self.dice), proceed


class Actor(nn.Module):
    """Counts its own steps in its memory."""

    def __init__(self, sign: float = 1.0, forget: bool = True):
        super().__init__()
        self.sign, self.forget = sign, forget

    def act(self, view, memory=None, first=None, applied=None):
        count = torch.zeros(len(view["x"])) if memory is None else memory + 1
        if self.forget and first is not None:
            count = torch.where(first, torch.zeros(()), count)
        return Act(torch.tanh(view["x"][:, :2] + count[:, None]) * self.sign, count, {"count": count})


class World(gym.Env):
    """Counts to five; the constructor arguments break it in one way each."""

    def __init__(self, reused=False, shape=(2,), reward=1.0, four=False, luck=False, flag=False):
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = spaces.Discrete(3, start=-1)
        self.reused, self.shape, self.reward, self.four, self.luck, self.flag = reused, shape, reward, four, luck, flag
        self.obs = np.zeros(shape, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = np.full(self.shape, np.random.rand() if self.luck else self.np_random.random(), np.float32)
        return self.obs, {}

    def step(self, action):
        if not self.reused:
            self.obs = self.obs.copy()
        self.obs += 1
        ended = bool(self.obs.flat[0] >= 5)
        ended = np.int64(ended) if self.flag else ended
        return (self.obs, self.reward, ended, {}) if self.four else (self.obs, self.reward, ended, False, {})


def test_an_honest_model_passes_and_is_described():
    lines = checks.check_world_model(Model(), OBS, BOX)
    assert "belief of 4 numbers" in lines[0] and "dynamics" in lines[1]
    checks.check_world_model(Model(), OBS, spaces.Discrete(2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Pad, "ignore steps with mask 0"),
        (Mixing, "independent of the others"),
        (Wide, r"reward of shape \(B,\)"),
        (Sure, r"proceed in \[0, 1\]"),
        (InPlace, "view to leave the state alone"),
        (Grows, "update to return a state like start's"),
        (Counts, "fit_statistics"),
        (OwnDice, "repeat under equal random numbers"),
    ],
)
def test_each_fault_of_a_model_is_named(model, message):
    with pytest.raises(checks.Broken, match=message):
        checks.check_world_model(model(), OBS, BOX)


def test_a_policy_must_stay_in_range_and_forget_on_first():
    assert "(B, 2)" in checks.check_policy(Actor(), OBS, BOX)[0]
    with pytest.raises(checks.Broken, match=r"actions in \[-1, 1\]"):
        checks.check_policy(Actor(sign=3.0), OBS, BOX)
    with pytest.raises(checks.Broken, match="marked first"):
        checks.check_policy(Actor(forget=False), OBS, BOX)
    with pytest.raises(checks.Broken, match="one-hot"):
        checks.check_policy(Actor(), OBS, spaces.Discrete(2))


def test_an_honest_environment_passes_and_is_described():
    lines = checks.check_env(World)
    assert "Discrete(3, start=-1) as 3 numbers" in lines[1]
    assert "equal seeds give equal episodes" in lines
    assert not any("global" in line for line in lines)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"reused": True}, "return a copy"),
        ({"shape": (3,)}, r"observation is float32 of shape \(3,\), not float32 of shape \(2,\)"),
        ({"reward": float("nan")}, "finite reward at step 0"),
        ({"four": True}, "found 4 values"),
        ({"flag": True}, "terminated to be a bool"),
    ],
)
def test_each_fault_of_an_environment_is_named(fault, message):
    with pytest.raises(checks.Broken, match=f"(?i){message}"):
        checks.check_env(lambda: World(**fault))


def test_the_field_that_lies_outside_its_space_is_named_with_its_value():
    space = spaces.Dict({"arm": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)])})
    good = {"arm": (np.zeros(2, np.float32), 2)}
    assert misfit(space, good) is None
    said = misfit(space, {"arm": (np.array([0, 1.5], np.float32), 2)})
    assert said == "observation['arm'][0] is 1.5 at [1], outside [-1, 1]"
    assert "observation['arm'][1] is int 3, which is not in Discrete(3)" in misfit(space, {"arm": (good["arm"][0], 3)})
    assert "float64 of shape (2,), not float32" in misfit(space, {"arm": (np.zeros(2), 2)})
    assert misfit(space, {"leg": 1}) == "observation is ['leg'], not a dict of ['arm']"


def test_what_lacks_the_methods_is_told_which():
    with pytest.raises(checks.Broken, match=r"Linear without start, update, step, view, loss"):
        checks.check_world_model(nn.Linear(1, 1), OBS, BOX)
    with pytest.raises(checks.Broken, match="Linear without act"):
        checks.check_policy(nn.Linear(1, 1), OBS, BOX)


def test_luck_outside_the_seed_is_found():
    lines = checks.check_env(lambda: World(luck=True))
    assert any("different episodes" in line for line in lines)
    assert any("numpy's global generator" in line for line in lines)


def episode(count: int = 4, start: float = 0.0, **changes) -> Episode:
    steps = np.arange(count + 1, dtype=np.float32) + start
    made = Episode(
        obs={"observation": np.stack([steps, steps], 1)},
        action=np.full((count, 1), 1.5, np.float32),
        reward=np.ones(count, np.float32),
        terminated=False,
        time=None,
        trace={},
        meta={"seed": 0},
    )
    return made._replace(**changes)


def test_episodes_are_described_and_their_faults_named():
    codec = Codec(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-2, 2, (1,), np.float32))
    lines = checks.check_episodes([episode(4), episode(6, 1.0, terminated=True)], codec)
    assert lines == [
        "2 episodes of 4 to 6 steps, 10 in all",
        "1 terminated, 1 cut short",
        "returns 4.0 to 6.0, mean 5.0",
    ]
    faults = [
        (episode(obs={"observation": np.zeros((4, 2), np.float32)}), "keep the last observation"),
        (episode(action=np.full((4, 1), 2.5, np.float32)), "within the space"),
        (episode(reward=np.full(4, np.nan, np.float32)), "finite rewards"),
        (episode(reward=np.ones(3, np.float32)), "reward of length T = 4"),
        (episode(time=np.zeros(5)), "rising times"),
    ]
    for fault, message in faults:
        with pytest.raises(checks.Broken, match=f"(?i){message}"):
            checks.check_episodes([fault], codec)
    with pytest.raises(checks.Broken, match="differ from all others"):
        checks.check_episodes([episode(), episode()], codec)
    with pytest.raises(checks.Broken, match="at least one episode"):
        checks.check_episodes([], codec)
