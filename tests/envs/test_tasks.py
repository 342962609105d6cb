"""Several tasks as one environment: padded alike, told apart, equal by seed."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from dreamsim.core import checks
from dreamsim.envs.named import Named
from dreamsim.envs.tasks import Tasks


class Point(gym.Env):
    """Moves by its action; observes where it is and how often it moved, rewarded by the sum of its action."""

    metadata = {"episode_steps": 4}
    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2,)), "count": spaces.Box(0, 9, ())})
    action_space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._count = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self._seen(), {}

    def step(self, action):
        self._at, self._count = np.clip(self._at + action, -9, 9).astype(np.float32), self._count + 1
        return self._seen(), float(action.sum()), False, self._count >= 4, {}

    def _seen(self):
        return {"at": self._at, "count": np.array(self._count, np.float32)}


def pendulum():
    return Named("Pendulum-v1")


def both() -> Tasks:
    return Tasks([Point, pendulum])


@pytest.mark.filterwarnings("ignore")
def test_it_keeps_gymnasium_s_contract_and_ours():
    check_env(both(), skip_render_check=True)
    assert any("equal episodes" in line for line in checks.check_env(both, steps=30))


def test_each_task_is_told_and_padded():
    env = both()
    obs, info = env.reset(seed=1, options={"task": 0})
    assert info["task"] == 0 and obs["task/name"].tolist() == [1, 0] and obs["task/acts"].tolist() == [1, 1]
    assert obs["task/steps"].tolist() == [4] and obs["observation"].shape == (3,)
    obs, info = env.reset(seed=1, options={"task": 1})
    assert obs["task/name"].tolist() == [0, 1] and obs["task/acts"].tolist() == [1, 0]
    assert obs["task/steps"].tolist() == [200] and obs["observation"].shape == (3,)
    assert env.metadata["episode_steps"] == 200


def test_actions_are_in_the_units_of_each_task_and_padding_does_nothing():
    env = both()
    env.reset(seed=0, options={"task": 0})
    assert env.step(np.array([0.5, 0.0], np.float32))[1] == pytest.approx(1.0 + 0.5)  # 0.5 of [-2, 2], middle of [0, 1]
    seen = []
    for padding in (-1.0, 1.0):
        env.reset(seed=3, options={"task": 1})
        seen.append(env.step(np.array([0.3, padding], np.float32))[0]["observation"])
    assert np.array_equal(*seen)


def test_equal_seeds_draw_equal_tasks_and_all_of_them():
    env = both()
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(20)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(20)] and set(drawn) == {0, 1}
    env.reset(seed=5)
    later = [env.reset()[1]["task"] for _ in range(20)]
    assert set(later) == {0, 1}


@pytest.mark.parametrize(
    ("tasks", "steps", "said"),
    [
        ([], None, "at least one"),
        ([lambda: Named("CartPole-v1")], None, "acts in Discrete"),
        ([lambda: Named("Pendulum-v1", pixels=16)], None, "only vectors"),
        ([lambda: gym.make("Pendulum-v1").unwrapped], None, "how long an episode"),
        ([pendulum, lambda: Named("Pendulum-v1", repeat=2)], None, "equally long"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(tasks, steps, said):
    with pytest.raises(ValueError, match=said):
        Tasks(tasks, steps)
    if said == "how long an episode":
        assert Tasks(tasks, 50).metadata["episode_steps"] == 50
