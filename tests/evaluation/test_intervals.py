import numpy as np
import pytest

from dreamsim.evaluation.intervals import interquartile_mean, interval


def test_interval_of_equal_values_has_no_width():
    found = interval([3.0] * 7)
    assert (found.mean, found.low, found.high, found.middle, found.size) == (3, 3, 3, 3, 7)


def test_one_value_gives_no_interval():
    found = interval([5.0])
    assert found.mean == 5
    assert np.isnan(found.low) and np.isnan(found.high)
    assert "no interval" in str(found)


def test_bounds_are_near_the_normal_ones_and_repeat_with_the_seed():
    values = np.random.default_rng(1).normal(10, 2, 400)
    found = interval(values, seed=4)
    half = 1.96 * values.std() / np.sqrt(400)
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)
    assert found == interval(values, seed=4)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    hits = [f.low <= 0 <= f.high for f in (interval(random.normal(size=30), samples=1000) for _ in range(300))]
    assert 0.89 < np.mean(hits) < 0.99


def test_interquartile_mean_ignores_outliers_and_counts_border_values_in_part():
    assert interquartile_mean([0, 1, 2, 1000]) == 1.5
    assert interquartile_mean([0, 1, 2, 3, 1000]) == pytest.approx((0.75 * 1 + 2 + 0.75 * 3) / 2.5)
    assert interquartile_mean([7]) == 7


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        interval([])
