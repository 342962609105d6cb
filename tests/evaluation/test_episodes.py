import functools

import numpy as np
import pytest
import torch

from dreamsim.core.random import derive_seed
from dreamsim.evaluation.episodes import evaluate_policy, overlap, play_episode
from dreamsim.imagination.imagine import Believer


def test_returns_are_those_of_each_seed_alone(toys):
    policy = Believer(toys.Exact(), toys.Wave())
    found = evaluate_policy(toys.Slide, policy, episodes=5, seed=3)
    assert found.seeds == tuple(derive_seed(3, "evaluate", i) for i in range(5))
    for seed, total, episode in zip(found.seeds, found.returns, found.episodes, strict=True):
        env = toys.Slide()
        env.reset(seed=seed)
        rewards = [env.step(action)[1] for action in episode.action]
        assert total == pytest.approx(sum(rewards), abs=1e-4)
    assert (found.lengths == 40).all() and found.env_steps == 200 and found.seconds > 0


def test_one_episode_begins_from_the_very_seed_and_stops_where_it_is_told(toys):
    policy = Believer(toys.Exact(), toys.Wave())
    whole, few = play_episode(toys.Slide, policy, seed=7), play_episode(toys.Slide, policy, seed=7, steps=5)
    start, _ = toys.Slide().reset(seed=7)
    np.testing.assert_array_equal(whole.obs["position"][0], start["position"])
    assert len(whole.action) == 40 and len(few.action) == 5 and few.meta["seed"] == 7
    np.testing.assert_array_equal(few.obs["position"], whole.obs["position"][:6])
    env = toys.Slide()
    env.reset(seed=7)
    np.testing.assert_allclose(whole.reward, [env.step(action)[1] for action in whole.action], atol=1e-5)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        play_episode(toys.Slide, policy, steps=0)


def test_equal_calls_are_equal_and_leave_random_numbers_alone(toys):
    policy = Believer(toys.Exact(), toys.Wave())
    before = torch.get_rng_state()
    one, two = (evaluate_policy(toys.Slide, policy, episodes=3, seed=1) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(one.returns, two.returns)
    other = evaluate_policy(toys.Slide, policy, episodes=3, seed=2)
    assert not set(one.seeds) & set(other.seeds)


def test_more_episodes_than_environments_do_not_prefer_short_ones(toys):
    """Each place has its own seed, however long its episode takes."""
    make = functools.partial(toys.Slide, edge=0.6)
    found = evaluate_policy(make, toys.Push(0.5), episodes=40, seed=0)
    assert found.seeds == tuple(derive_seed(0, "evaluate", i) for i in range(40))
    assert len(set(found.lengths)) > 3


def test_success_is_the_environments_or_a_stated_return_or_absent(toys):
    judged = functools.partial(toys.Slide, edge=0.6, judged=True)
    told = evaluate_policy(judged, toys.Push(0.5), episodes=4, success_return=-1e9)
    assert told.success_rule == "given by the environment" and (told.successes == 0).all()
    stated = evaluate_policy(toys.Slide, toys.Push(0.0), episodes=4, success_return=1e9)
    assert (stated.successes == 0).all() and "1e+09" in stated.success_rule
    assert evaluate_policy(toys.Slide, toys.Push(0.0), episodes=2).successes is None


def test_seeds_shared_with_training_are_named():
    assert overlap((5, 7, 9), (9, 1, 5)) == [5, 9]
    assert overlap((5,), ()) == []


def test_no_episodes_is_an_error(toys):
    with pytest.raises(ValueError, match="at least 1 episode"):
        evaluate_policy(toys.Slide, toys.Push(0.0), episodes=0)
