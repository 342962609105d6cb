import numpy as np
import pytest
import torch

from dreamsim.core.types import Episode
from dreamsim.evaluation.openloop import Curve, drift, limits, overall, trusted_horizon


def test_the_dynamics_themselves_do_not_drift(toys):
    found = drift(toys.Exact(), toys.episodes(6), toys.codec)
    assert found.horizons == (1, 2, 4, 8, 16, 32, 35)
    for curve in (*found.observation.values(), *found.latent.values()):
        assert curve.model.max() < 1e-5
        assert curve.copy[-1] > 0.3
    assert found.rewards.step.max() < 1e-5 and found.rewards.total.max() < 1e-4
    assert found.rewards.constant[-1] > 0.1
    assert trusted_horizon(found) == 35


def test_a_model_without_a_decoder_is_judged_by_its_view(toys):
    found = drift(toys.Exact(decodes=False), toys.episodes(4), toys.codec)
    assert found.observation == {} and overall(found)[0] == "latent"
    assert trusted_horizon(found) == 35


def test_a_wrong_model_drifts_more_with_every_horizon_and_is_trusted_less(toys):
    episodes = toys.episodes(8)
    slow = drift(toys.Exact(drag=1.02), episodes, toys.codec)
    curve = overall(slow)[1]
    assert (np.diff(curve.model[:6]) > 0).all()
    assert 0 < trusted_horizon(slow, threshold=0.5) < 35
    worse = drift(toys.Exact(drag=1.1), episodes, toys.codec)
    assert trusted_horizon(worse) < trusted_horizon(slow)


def test_a_horizon_is_trusted_while_the_error_is_within_the_limit_shown_beside_it(toys):
    """Limits: the better baseline, at least 0.2 above showing the present (0.1), at most 0.5; the third row fails."""
    found = drift(toys.Exact(), toys.episodes(2), toys.codec, horizons=[1, 2, 4, 8])
    model, copy, line = np.array([0.3, 0.4, 0.46, 0.1]), np.array([0.1, 0.45, 0.45, 2.0]), np.array([0.0, 0.6, 9, 9])
    found = found._replace(observation={"all": Curve(model, copy, line)}, floor={"all": 0.1})
    np.testing.assert_allclose(limits(found), [0.3, 0.45, 0.45, 0.5])
    assert trusted_horizon(found) == 2


def test_baselines_are_what_they_say(toys):
    """On a straight line at constant speed the linear forecast is exact and copying errs by h steps of it."""
    steps = np.arange(21, dtype=np.float32)[:, None]
    obs = {"position": steps, "velocity": np.zeros_like(steps)}
    episode = Episode(obs, np.zeros((20, 1), np.float32), np.zeros(20, np.float32), False, None, {}, {})
    found = drift(toys.Exact(), [episode], toys.codec, horizons=[1, 4], context=2, windows=1)
    position = found.observation["position"]
    np.testing.assert_allclose(position.copy, np.array([1, 4]) / steps.std(), rtol=1e-5)
    np.testing.assert_allclose(position.linear, 0, atol=1e-6)


def test_short_episodes_count_only_as_far_as_they_go(toys):
    episodes = toys.episodes(4, lengths=(40, 12, 7, 3))
    found = drift(toys.Exact(), episodes, toys.codec, context=5, windows=4)
    assert found.skipped == 1
    assert dict(zip(found.horizons, found.counts, strict=True))[2] >= 3
    assert found.counts[-1] == 1 and found.horizons[-1] == 35
    assert max(curve.model.max() for curve in found.observation.values()) < 1e-5


def test_padding_never_reaches_an_error(toys):
    """A window's own errors are the same alone and beside a longer one."""
    short, long = toys.episodes(2, lengths=(12, 40))
    model = toys.Exact(drag=1.0)
    alone = drift(model, [short], toys.codec, horizons=[1, 2, 4], windows=1)
    both = drift(model, [short, long], toys.codec, horizons=[1, 2, 4], windows=2)
    other = drift(model, [long], toys.codec, horizons=[1, 2, 4], windows=1)
    mean = (alone.rewards.total + other.rewards.total) / 2
    np.testing.assert_allclose(both.rewards.total, mean, rtol=1e-5)


def test_terminations_foreseen_and_missed(toys):
    episodes = toys.episodes(5, edge=1.0, force=1.0)
    assert all(episode.terminated for episode in episodes)
    seen = drift(toys.Exact(edge=1.0), episodes, toys.codec, context=1).ends
    assert seen.terminations > 0 and seen.foreseen == 1 and seen.false_alarms == 0 and (seen.accuracy == 1).all()
    blind = drift(toys.Exact(), episodes, toys.codec, context=1).ends
    assert blind.foreseen == 0 and blind.accuracy[-1] < 1
    rash = drift(toys.Exact(edge=-100.0), episodes, toys.codec, context=1).ends
    assert rash.false_alarms == 1 and rash.foreseen == 1


def test_recordings_without_rewards_and_constant_fields_give_finite_errors(toys):
    episodes = [e._replace(reward=None, obs={**e.obs, "velocity": 0 * e.obs["velocity"]}) for e in toys.episodes(3)]
    found = drift(toys.Exact(), episodes, toys.codec)
    assert found.rewards is None
    assert all(np.isfinite(side).all() for curve in found.observation.values() for side in curve)


def test_a_view_that_never_varies_is_not_called_good(toys):
    class Collapsed(toys.Exact):
        def view(self, state):
            return {"latent": torch.zeros(len(state["x"]), 4)}

    found = drift(Collapsed(decodes=False), toys.episodes(3), toys.codec)
    assert np.isnan(found.latent["latent"].model).all()
    assert trusted_horizon(found) == 0


def test_what_never_changes_and_is_never_wrong_makes_no_model_look_better(toys):
    """A view that also names the task is judged by the rest of it, and no less strictly than without the name."""

    class Named(toys.Exact):
        def view(self, state):
            name = torch.eye(2)[(state["x"][:, 0] * 0).long()]
            return {**super().view(state), "task": name}

    plain = drift(toys.Exact(decodes=False, drag=1.1), toys.episodes(4), toys.codec)
    named = drift(Named(decodes=False, drag=1.1), toys.episodes(4), toys.codec)
    assert list(named.latent) == [*plain.latent, "task"] and np.isnan(named.latent["task"].model).all()
    np.testing.assert_array_equal(overall(named)[1].model, overall(plain)[1].model)
    assert trusted_horizon(named) == trusted_horizon(plain) > 0
    zero = Curve(*np.zeros((3, len(named.horizons))))
    several = named._replace(latent={**named.latent, "task": zero})  # which varies between episodes
    np.testing.assert_array_equal(overall(several)[1].model, overall(plain)[1].model)
    wrong = named._replace(latent={**named.latent, "task": zero._replace(model=zero.model + 9)})
    assert trusted_horizon(wrong) == 0


def test_what_cannot_be_measured_is_one_clear_error(toys):
    with pytest.raises(ValueError, match="longer than the context"):
        drift(toys.Exact(), toys.episodes(2, lengths=(4,)), toys.codec)
    with pytest.raises(ValueError, match="1 or more; got 0"):
        drift(toys.Exact(), toys.episodes(2), toys.codec, horizons=[0, 1])
    with pytest.raises(ValueError, match="no horizon"):
        drift(toys.Exact(), toys.episodes(2), toys.codec, horizons=[100])
    with pytest.raises(ValueError, match="at least 1 real step"):
        drift(toys.Exact(), toys.episodes(2), toys.codec, context=0)
