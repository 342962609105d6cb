"""Several tasks in one run: learned together, acted in, and loaded again."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.core.run import load
from dreamsim.envs.tasks import Tasks
from dreamsim.envs.toy import Line
from dreamsim.evaluation.episodes import evaluate_policy
from dreamsim.imagination.plan import MPPI
from dreamsim.training.objectives.policy_prior import PolicyPrior
from tests.training.conftest import CRITIC, run, small_experience, small_joint
from worldmodels.decoder_free import DecoderFree


class Plane(gym.Env):
    """Moves in two directions for 20 steps; rewarded for being near the middle."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    metadata = {"episode_steps": 20}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._time = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self._at, {}

    def step(self, action):
        self._at, self._time = np.clip(self._at + 0.1 * action, -1, 1).astype(np.float32), self._time + 1
        return self._at, 1 - float(np.abs(self._at).mean()), False, self._time >= 20, {}


BOTH = functools.partial(Tasks, tasks=[Line, Plane], steps=20)


@pytest.mark.parametrize("plans", [False, True])
def test_one_run_learns_two_tasks_and_acts_in_both(tmp_path, plans):
    model = functools.partial(DecoderFree, latent=16, width=16, encoder_width=16, bins=21, low=-3, high=5, embedding=4)
    planner = functools.partial(MPPI, horizon=2, samples=12, elites=4, proposals=4, iterations=2)
    module = small_joint(**({"planner": planner, "plans": True} if plans else {}))
    module._make_model = model
    module._make_objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=0)
    data = small_experience(env_steps=240, warmup=160, evaluate_every=240)
    data.env = BOTH
    run(tmp_path, module=module, data=data)
    assert module.gradient_steps > 0 and module.imagined_steps == 0
    lived = data.replay.sample(64, 3)
    assert lived.obs["task/name"][:, 0].sum(0).min() > 0
    actor = load(tmp_path).actor()
    for task in (0, 1):
        env = BOTH()
        obs, _ = env.reset(seed=1, options={"task": task})
        told = {name: torch.as_tensor(part)[None] for name, part in obs.items()}
        action = actor.act(told).action
        assert action.shape == (1, 2) and torch.isfinite(action).all()
        if not plans:
            assert (action[0, 1] == 0) == (task == 0)
    assert np.isfinite(evaluate_policy(BOTH, actor, episodes=2).returns).all()
