"""Uncertainty against real errors where both are known."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.protocols import MissingPower
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.evaluation.calibration import calibrate, lines, rank_correlation, trusted_doubt

CODEC = Codec(spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (1,), np.float32)}), spaces.Box(-1, 1, (1,), np.float32))


class Pushed(nn.Module):
    """Believes that an action moves the world, which in truth stands still; doubts ``doubt`` times the move."""

    def __init__(self, doubt: float = 0.5) -> None:
        super().__init__()
        self.doubt = doubt

    def start(self, obs):
        return {"x": obs["x"]}

    def update(self, state, action, obs):
        return {"x": obs["x"]}

    def step(self, state, action):
        ones = torch.ones(len(action))
        return {"x": state["x"] + action}, ones, ones

    def view(self, state):
        return state

    def uncertainty(self, state, action):
        return self.doubt * action.abs().squeeze(1)


def episodes(count=200, steps=4, biggest=1.0):
    """Episodes of a standing x from {-1, 1}, whose spread is 1; all actions of one have the same size and sign."""
    found = []
    for number in range(count):
        x = np.full((steps + 1, 1), 1.0 if number % 2 else -1.0, np.float32)
        action = np.full((steps, 1), biggest * (number + 1) / count, np.float32)
        found.append(Episode({"x": x}, action, np.ones(steps, np.float32), False, None, {}, {}))
    return found


def test_a_model_that_doubts_half_its_error_has_factor_two_and_the_right_order():
    found = calibrate(Pushed(0.5), episodes(), CODEC, horizons=(1, 2), windows=200)
    np.testing.assert_allclose(found.factor, [2, 4], rtol=1e-5)  # two equal pushes make twice the error
    np.testing.assert_allclose(found.correlation, 1)
    assert found.counts.tolist() == [200, 200]
    assert (np.diff(found.doubt, axis=1) > 0).all()
    np.testing.assert_allclose(found.error[0], 2 * found.doubt[0], rtol=1e-5)
    np.testing.assert_allclose(found.doubt[0], [0.05125 + 0.1 * place for place in range(5)], rtol=1e-4)


def test_distrust_begins_where_errors_exceed_the_tolerance():
    """After one step the error is twice the doubt: with 0.4 tolerated and all required, 0.2 is the limit."""
    found = calibrate(Pushed(0.5), episodes(), CODEC, horizons=(1,), tolerance=0.4001, confidence=1.0, windows=200)
    assert found.distrust == pytest.approx(0.2) and found.kept == pytest.approx(0.4)
    assert found.good == pytest.approx(0.4) and found.good_kept == 1.0
    lenient = calibrate(Pushed(0.5), episodes(), CODEC, horizons=(1,), tolerance=0.4001, confidence=0.5, windows=200)
    assert lenient.distrust == pytest.approx(0.4) and lenient.good_kept == pytest.approx(0.5)
    assert "0.2" in lines(found)[-1] and "rank correlation 1.00" in lines(found)[0]


def test_what_was_never_measured_is_not_trusted():
    found = calibrate(Pushed(0.5), episodes(biggest=0.1), CODEC, horizons=(1,), windows=200)
    assert found.good == found.kept == 1.0 and found.distrust == pytest.approx(0.05)


def test_a_wrong_model_that_is_sure_of_itself_is_trusted_nowhere():
    found = calibrate(Pushed(0.0), episodes(), CODEC, horizons=(1,), tolerance=0.1, windows=200)
    assert found.distrust == 0 and found.kept == 0 and np.isnan(found.good_kept)
    assert np.isnan(found.correlation[0]) and np.isinf(found.factor[0])
    assert found.blind and "no doubt is small enough" in lines(found)[-1]
    right = calibrate(Pushed(0.0), episodes(), CODEC, horizons=(1,), tolerance=1.5, windows=200)
    assert not right.blind and right.good == 1.0  # nothing to tell apart


def test_a_doubt_that_orders_nothing_is_no_reason_to_trust():
    """Doubt falls where the error grows: a threshold would keep the worst, so there is none."""
    model = Pushed()
    model.uncertainty = lambda state, action: 2 - action.abs().squeeze(1)
    found = calibrate(model, episodes(), CODEC, horizons=(1,), tolerance=0.5, confidence=0.6, windows=200)
    assert found.correlation[0] == pytest.approx(-1) and found.blind and found.distrust == 0 and found.kept == 0


def test_equal_doubts_are_trusted_together_or_not_at_all():
    doubt, error = np.array([[0.1, 0.2, 0.2, 0.2]]), np.array([[0.0, 0.0, 0.0, 1.0]])
    assert trusted_doubt(doubt, error, 0.5, 0.7) == 0.2
    assert trusted_doubt(doubt, error, 0.5, 0.8) == 0.1
    assert trusted_doubt(doubt, np.array([[0.0, np.nan, np.nan, np.nan]]), 0.5, 0.9) == 0.1


def test_ranks_share_their_mean():
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 1e6])) == 1
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == -1
    # By hand: ranks (1, 2.5, 2.5, 4) and (1, 2, 3, 4).
    assert rank_correlation(np.array([0.0, 5, 5, 9]), np.arange(4.0)) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def test_short_episodes_count_only_where_they_reach():
    found = calibrate(Pushed(), [*episodes(10, 4), *episodes(10, 2)], CODEC, horizons=(1, 3, 50), windows=20)
    assert found.horizons == (1, 3) and found.counts.tolist() == [20, 10]


def test_a_model_without_uncertainty_is_told_so():
    blind = Pushed()
    blind.uncertainty = None
    with pytest.raises(MissingPower, match="uncertainty"):
        calibrate(blind, episodes(), CODEC)
