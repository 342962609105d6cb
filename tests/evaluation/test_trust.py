import numpy as np
import pytest
import torch
from torch import nn

from dreamsim.core.protocols import MissingPower
from dreamsim.core.types import Act, Episode
from dreamsim.evaluation.trust import compare
from dreamsim.imagination.imagine import Believer, Greedy
from dreamsim.imagination.plan import Deliberate


def really(toys, policy, count=6, limit=40, edge=100.0):
    """Let a policy on real observations act in Slide, row by row."""
    found = []
    for seed in range(count):
        env = toys.Slide(limit, edge)
        obs, _ = env.reset(seed=seed)
        rows, actions, rewards, memory, over, cut = [obs], [], [], None, False, False
        while not (over or cut):
            view = {name: torch.from_numpy(value)[None] for name, value in obs.items()}
            act = policy.act(view, memory, torch.tensor([memory is None]))
            memory = act.memory
            actions.append(toys.codec.scale.raw(act.action[0].numpy()))
            obs, reward, over, cut, _ = env.step(actions[-1])
            rows.append(obs)
            rewards.append(reward)
        fields = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        found.append(Episode(fields, np.stack(actions), np.array(rewards, np.float32), over, None, {}, {"seed": seed}))
    return found


HORIZONS = {"15 steps": 15, "trusted": 30, "full": 10_000}


def test_the_dynamics_themselves_leave_no_gap(toys):
    model = toys.Exact()
    policy = Believer(model, toys.Wave())
    found = compare(model, policy, really(toys, policy), toys.codec, HORIZONS)
    assert [(row.name, row.horizon) for row in found] == [("15 steps", 15), ("trusted", 30), ("full", 40)]
    for row in found:
        np.testing.assert_allclose(row.dream, row.real, atol=1e-3)
        assert abs(row.gap.mean) < 1e-3


def test_a_model_that_flatters_has_exactly_the_gap_it_was_given(toys):
    model = toys.Exact(bonus=0.5)
    policy = Believer(model, toys.Wave())
    short, full = compare(model, policy, really(toys, policy), toys.codec, {"15 steps": 15, "full": 40})
    assert short.gap.mean == pytest.approx(7.5, abs=1e-3) and full.gap.mean == pytest.approx(20, abs=1e-3)
    assert full.gap.low > 19.9


def test_context_steps_carry_the_policys_memory_into_the_dream(toys):
    model = toys.Exact()
    policy = Believer(model, toys.Wave())
    episodes = really(toys, policy)
    (row,) = compare(model, policy, episodes, toys.codec, {"full": 100}, context=7)
    assert row.horizon == 33
    np.testing.assert_allclose(row.real, [episode.reward[7:].sum() for episode in episodes], rtol=1e-5)
    np.testing.assert_allclose(row.dream, row.real, atol=1e-3)


def test_where_reality_ends_for_good_the_dream_that_goes_on_counts_as_gap(toys):
    policy = Believer(toys.Exact(), toys.Push(1.0))
    episodes = really(toys, policy, count=3, edge=1.0)
    lengths = [len(episode.action) for episode in episodes]
    assert all(episode.terminated for episode in episodes)
    knowing = toys.Exact(edge=1.0)
    (row,) = compare(knowing, Believer(knowing, toys.Push(1.0)), episodes, toys.codec, {"full": 100})
    np.testing.assert_allclose(row.dream, row.real, atol=1e-4)
    blind = toys.Exact(bonus=10.0)
    (row,) = compare(blind, Believer(blind, toys.Push(1.0)), episodes, toys.codec, {"full": 100})
    assert row.horizon == max(lengths)
    assert row.gap.mean > 10 * (max(lengths) - 1)


def test_where_reality_is_cut_short_the_dream_is_cut_too(toys):
    model = toys.Exact()
    policy = Believer(model, toys.Push(0.2))
    episodes = really(toys, policy, 2, limit=10) + really(toys, policy, 2, limit=25)
    (row,) = compare(model, policy, episodes, toys.codec, {"full": 100})
    np.testing.assert_allclose(row.dream, row.real, atol=1e-3)


class Spring(nn.Module):
    """A policy on real observations that pulls back to the middle."""

    def act(self, view, memory=None, first=None, applied=None):
        return Act((-view["position"] - 0.5 * view["velocity"]).clamp(-1, 1))


def test_a_policy_on_observations_acts_in_decoded_dreams(toys):
    model = toys.Exact()
    for policy in (Spring(), Greedy(Spring()), Believer(toys.Exact(), toys.Wave())):
        (row,) = compare(model, policy, really(toys, policy), toys.codec, {"full": 40})
        np.testing.assert_allclose(row.dream, row.real, atol=1e-3)


class Homing(nn.Module):
    """A planner that pushes back to the middle and counts in its memory."""

    def plan(self, state, memory=None, first=None):
        count = torch.zeros(len(state["x"]), 1) if memory is None else memory + 1
        return Act((-state["x"] + 0.01 * count).clamp(-1, 1), count)


def test_a_planner_plans_inside_the_dream_as_it_does_outside(toys):
    model = toys.Exact()
    policy = Deliberate(model, Homing())
    (row,) = compare(model, policy, really(toys, policy), toys.codec, {"full": 40})
    np.testing.assert_allclose(row.dream, row.real, atol=1e-3)


def test_a_policy_on_observations_cannot_act_in_dreams_that_show_none(toys):
    with pytest.raises(MissingPower, match="decode"):
        compare(toys.Exact(decodes=False), Spring(), really(toys, Spring(), 2), toys.codec, {"full": 40})
