"""DeepMind Control here is DeepMind Control there, number for number, and a seed is an episode."""

import subprocess
import sys

import numpy as np
import pytest

from dreamsim.envs.adapt import adapt
from dreamsim.envs.control import DeepMindControl

suite = pytest.importorskip("dm_control.suite")

TASKS = [("cartpole", "swingup"), ("reacher", "easy"), ("walker", "walk"), ("ball_in_cup", "catch"), ("hopper", "hop")]


def flat(obs):
    return np.concatenate([np.ravel(value) for value in obs.values()])


def actions_for(env, count=20, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *env.action_space.shape)).astype(np.float32)


def run(env, seed, actions):
    obs, _ = env.reset(seed=seed)
    steps = [env.step(action) for action in actions]
    return np.stack([flat(obs), *(flat(step[0]) for step in steps)]), [step[1] for step in steps]


@pytest.mark.parametrize("domain, task", TASKS)
def test_steps_equal_the_suites_own(domain, task):
    env = DeepMindControl(domain, task, repeat=3)
    bare = suite.load(domain, task, task_kwargs={"random": 7})
    obs, _ = env.reset(seed=7)
    first = bare.reset()
    assert np.array_equal(flat(obs), flat(first.observation).astype(np.float32))
    for action in actions_for(env):
        obs, reward, *_ = env.step(action)
        steps = [bare.step(action) for _ in range(3)]
        assert np.array_equal(flat(obs), flat(steps[-1].observation).astype(np.float32))
        assert reward == sum(step.reward for step in steps)


@pytest.mark.parametrize("domain, task", TASKS)
def test_a_seed_gives_the_same_episode_after_anything_and_beside_anything(domain, task):
    env, other = DeepMindControl(domain, task), DeepMindControl(domain, task)
    actions = actions_for(env)
    before = np.random.get_state()[1].copy()
    fresh = run(env, 5, actions)
    run(env, 6, actions[::-1])
    again = run(env, 5, actions)
    assert np.array_equal(fresh[0], again[0]) and fresh[1] == again[1]

    pairs = [[e.reset(seed=5)[0] for e in (env, other)]]
    pairs += [[e.step(action)[0] for e in (env, other)] for action in actions]
    for row, (one, two) in zip(fresh[0], pairs, strict=True):
        assert np.array_equal(flat(one), row) and np.array_equal(flat(two), row)
    assert np.array_equal(before, np.random.get_state()[1])


def test_resets_without_a_seed_differ():
    env = DeepMindControl()
    env.reset(seed=0)
    assert not np.array_equal(flat(env.reset()[0]), flat(env.reset()[0]))


@pytest.mark.parametrize("repeat, steps", [(2, 500), (3, 334)])
def test_the_suites_time_limit_truncates(repeat, steps):
    env = DeepMindControl("pendulum", "swingup", repeat)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


def test_the_suites_discount_zero_terminates():
    env = DeepMindControl("lqr", "lqr_2_1", 1)
    env.reset(seed=0)
    env._task.get_termination = lambda physics: 0.0 if env._count == 3 else None
    assert [env.step(np.zeros(1))[2:4] for _ in range(3)] == [(False, False)] * 2 + [(True, False)]


def test_it_names_its_spaces_repeat_and_rate():
    env = DeepMindControl("walker", "walk", 2)
    assert {name: part.shape for name, part in env.observation_space.items()} == {
        "orientations": (14,),
        "height": (),
        "velocity": (9,),
    }
    assert env.observation_space.contains(env.reset(seed=0)[0])
    assert adapt(env).observation_space["height"].shape == (1,)
    assert (env.action_space.shape, env.metadata["action_repeat"], env.metadata["render_fps"]) == ((6,), 2, 20)


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="cartpole-swingup"):
        DeepMindControl("cartpole", "swing_up")


def test_states_alone_load_no_opengl_of_the_suite():
    program = """
import os, sys
os.environ.pop("MUJOCO_GL", None)
from dreamsim.envs.control import DeepMindControl
DeepMindControl().reset(seed=0)
print([name for name in sys.modules if name.startswith(("OpenGL", "dm_control._render."))])
print(os.environ.get("MUJOCO_GL"))
"""
    result = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True)
    assert result.stdout.split("\n")[:2] == ["['dm_control._render.constants']", "None"], result.stderr


def test_frames_are_the_newest_images_oldest_first():
    """A reset repeats its first image, whatever went before; frames without pixels mean nothing."""
    single, stack = (DeepMindControl("cartpole", "balance", pixels=16, frames=count) for count in (1, 3))
    assert stack.observation_space["image"].shape == (3, 16, 16, 3)
    for seed in (0, 1):
        seen = [single.reset(seed=seed)[0]["image"]] * 3
        assert np.array_equal(stack.reset(seed=seed)[0]["image"], seen)
        for action in actions_for(single, 4):
            seen.append(single.step(action)[0]["image"])
            assert np.array_equal(stack.step(action)[0]["image"], seen[-3:])
    with pytest.raises(ValueError, match="frames must be 1 or more, and 1 without pixels"):
        DeepMindControl("cartpole", "balance", frames=2)
