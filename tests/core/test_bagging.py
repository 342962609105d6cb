"""Ensemble members must learn from different data, the same each time it is drawn."""

import pytest
import torch

from dreamsim.core.bagging import bagged

INDEX = torch.cartesian_prod(torch.arange(50), torch.arange(100))


def test_members_see_different_windows_and_together_all_kinds():
    seen = bagged(INDEX, 5)
    assert seen.shape == (5, 5000) and seen.dtype == torch.float32
    used = seen > 0
    for one in range(5):
        assert used[one].float().mean() == pytest.approx(0.632, abs=0.02)  # 1 - 1/e, as of a bootstrap
        for other in range(one):
            assert (used[one] & used[other]).float().mean() == pytest.approx(0.632**2, abs=0.03)
    assert seen.mean() == pytest.approx(1, abs=0.02) and seen.var() == pytest.approx(1, abs=0.05)


def test_a_window_is_always_seen_alike():
    order = torch.randperm(len(INDEX), generator=torch.Generator().manual_seed(0))
    assert torch.equal(bagged(INDEX, 5)[:, order], bagged(INDEX[order], 5))
    grown = torch.cat([INDEX, INDEX + 1000])
    assert torch.equal(bagged(INDEX, 5), bagged(grown, 5)[:, : len(INDEX)])
    assert torch.equal(bagged(INDEX, 5)[:2], bagged(INDEX, 2))


def test_seeds_differ_and_neighbours_are_independent():
    assert not torch.equal(bagged(INDEX, 1), bagged(INDEX, 1, seed=1))
    seen = bagged(INDEX, 1)[0].view(50, 100)
    for one, other in ((seen[:, 1:], seen[:, :-1]), (seen[1:], seen[:-1])):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.05
