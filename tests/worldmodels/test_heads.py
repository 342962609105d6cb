"""Discrete regression equals cases done by hand."""

import math

import pytest
import torch

from worldmodels.heads import DiscreteRegression, symexp, symlog


def test_symlog_and_back():
    x = torch.tensor([-100.0, -1.0, 0.0, 0.5, 1000.0])
    torch.testing.assert_close(symexp(symlog(x)), x)
    assert float(symlog(torch.tensor(math.e - 1))) == pytest.approx(1.0)


def test_a_target_between_two_bins_is_split_by_nearness():
    """Bins at -1, 0, 1 in symlog space; symlog(target) = 0.25 lies a quarter of the way from 0 to 1."""
    head = DiscreteRegression(3, -1.0, 1.0)
    logits = torch.tensor([[0.3, -0.2, 0.9]])
    log = torch.log_softmax(logits, -1)[0]
    by_hand = -(0.75 * log[1] + 0.25 * log[2])
    torch.testing.assert_close(head.loss(logits, symexp(torch.tensor([0.25]))), by_hand[None])


def test_targets_beyond_the_last_bin_count_as_the_last_bin():
    head = DiscreteRegression(3, -1.0, 1.0)
    logits = torch.tensor([[0.3, -0.2, 0.9]])
    log = torch.log_softmax(logits, -1)[0]
    torch.testing.assert_close(head.loss(logits, torch.tensor([1e6])), -log[2][None])
    torch.testing.assert_close(head.loss(logits, torch.tensor([-1e6])), -log[0][None])


def test_the_loss_broadcasts_over_an_ensemble_and_is_least_at_the_target():
    head = DiscreteRegression(41, -4.0, 4.0)
    logits = torch.zeros(2, 3, 41, requires_grad=True)
    target = torch.tensor([0.0, 3.0, -20.0])
    optimiser = torch.optim.Adam([logits], 0.3)
    for _ in range(400):
        optimiser.zero_grad()
        head.loss(logits, target).sum().backward()
        optimiser.step()
    torch.testing.assert_close(head.decode(logits).detach(), target.expand(2, 3), atol=0.05, rtol=0.02)


def test_bad_bins_are_refused():
    with pytest.raises(ValueError, match="low < high"):
        DiscreteRegression(10, 1.0, 1.0)
