"""A user's own environment, world model, policy and objective, in one file outside our tree, named in a YAML."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("dreamsim")

MINE = '''
import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Act, Learned
from dreamsim.training.objectives.protocol import Judged


class Drift(gym.Env):
    """A point pushed about; it is best to stay at 0."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = spaces.Dict({"place": spaces.Box(-2, 2, (2,), np.float32)})
        self.action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": self.place.copy()}, {}

    def step(self, action):
        self.time += 1
        self.place = np.clip(self.place + action, -2, 2).astype(np.float32)
        return {"place": self.place.copy()}, -float(np.abs(self.place).sum()), False, self.time >= self.length, {}


class Model(nn.Module):
    """Predicts the next place directly; its state is the place."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space, width: int = 8) -> None:
        super().__init__()
        size = observation_space["place"].shape[0]
        self.net = nn.Sequential(nn.Linear(2 * size, width), nn.Tanh(), nn.Linear(width, size + 1))

    def start(self, obs):
        return {"place": obs["place"]}

    def update(self, state, action, obs):
        return self.start(obs)

    def step(self, state, action):
        change = self.net(torch.cat([state["place"], action], -1))
        return {"place": state["place"] + change[..., :-1]}, change[..., -1], torch.ones_like(change[..., -1])

    def view(self, state):
        return dict(state)

    def loss(self, batch):
        now = {"place": batch.obs["place"][:, :-1]}
        after, reward, _ = self.step(now, batch.action)
        wrong = (after["place"] - batch.obs["place"][:, 1:]).square().mean(-1) + (reward - batch.reward).square()
        return Learned({"model": (wrong * batch.mask).sum() / batch.mask.sum()}, {"place": batch.obs["place"]})


class Policy(nn.Module):
    def __init__(self, view_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.net = nn.Linear(view_space["place"].shape[0], action_space.shape[0])

    def act(self, view, memory=None, first=None, applied=None):
        return Act(torch.tanh(self.net(view["place"])))


class OneStep(nn.Module):
    """Ascends the imagined reward of a single step."""

    def __init__(self, view_space: spaces.Dict, action_space: spaces.Space, rate: float = 1e-2) -> None:
        super().__init__()
        self.rate = rate

    def groups(self, model, policy):
        parts = {"model": model, "policy": policy}
        return [{"name": name, "params": list(part.parameters()), "lr": self.rate} for name, part in parts.items()]

    def loss(self, model, policy, batch, learned):
        state = {"place": batch.obs["place"][:, 0]}
        _, reward, _ = model.step(state, policy.act(model.view(state)).action)
        return Judged({"policy": -reward.mean()}, {}, len(reward))

    def settle(self):
        pass


def load():
    """A policy of another kind: raw observations in, raw actions out."""
    return lambda obs: np.clip(-obs["place"], -0.5, 0.5)
'''

CONFIG = """
model:
  class_path: dreamsim.training.joint.FitJoint
  init_args:
    model: {class_path: mine.Model, init_args: {width: 16}}
    policy: mine.Policy
    objective: {class_path: mine.OneStep, init_args: {rate: 0.02}}
data:
  class_path: dreamsim.data.module.Experience
  init_args:
    env: {class_path: mine.Drift, init_args: {length: 8}}
    env_steps: 240
    warmup: 40
    envs: 2
    vector_steps: 8
    batch: 8
    evaluate_every: 120
    evaluate_episodes: 2
    keep_every: 120
"""


SEVERAL = """
import json, sys
from dreamsim.cli import main

for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    if code:
        sys.exit(code)
    print("\\0")
"""


def told(folder: Path, *line: str | Path) -> str:
    """Run a command line as a user does, from the user's folder; return all it says."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def several(folder: Path, *commands: str) -> list[str]:
    """Run commands one after the other in one process, for starting one takes longest; return what each prints."""
    arguments = json.dumps([command.split() for command in commands])
    return told(folder, sys.executable, "-c", SEVERAL, arguments).split("\0")[:-1]


def test_a_users_own_file_trains_is_judged_and_is_recorded_by_hash(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    assert "dreamsim evaluate runs/mine" in told(tmp_path, SCRIPT, "fit", "--config", "mine.yaml")
    checked, judged, foreign, beside = several(
        tmp_path,
        "check model mine.Model mine.Drift",
        "evaluate runs/mine --episodes 3",
        "evaluate judged --policy mine.load --world mine.Drift --episodes 3",
        "evaluate runs/mine --policy mine.load --episodes 4",
    )
    assert "rows do not touch each other" in checked
    assert "your module mine: mine.py (sha256 " in judged and "3 real episodes" in judged
    assert "mine.load, 3 real episodes" in foreign and (tmp_path / "judged" / "report.html").is_file()
    assert "gap (dream - real)" in beside and "report: runs/mine/judged/mine.load/report.html" in beside
    assert len(json.loads((tmp_path / "runs/mine/report.json").read_text())["outcome"]["returns"]) == 3
    (tmp_path / "mine.py").write_text(MINE + "\n# changed\n")
    longer = told(tmp_path, SCRIPT, "fit", "--run", "runs/mine", "--resume", "--data.init_args.env_steps", "320")
    assert "dreamsim: warning: mine.py has changed since the run was saved (sha256 then " in longer
