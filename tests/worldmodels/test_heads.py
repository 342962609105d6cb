"""Discrete regression equals cases done by hand."""

import math

import pytest
import torch

from worldmodels.heads import DiscreteRegression, TwoHot, categorical_kl, one_hot_sample, symexp, symlog, unimix


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


def test_a_two_hot_target_is_split_by_nearness_in_its_own_units():
    """Bins at symexp(-1), 0 and symexp(1) = e - 1; a target of 1 lies 1 / (e - 1) of the way to the last."""
    head = TwoHot(3, -1.0, 1.0)
    logits = torch.tensor([[0.3, -0.2, 0.9]])
    log, share = torch.log_softmax(logits, -1)[0], 1 / (math.e - 1)
    torch.testing.assert_close(head.loss(logits, torch.tensor([1.0])), -((1 - share) * log[1] + share * log[2])[None])
    torch.testing.assert_close(head.loss(logits, torch.tensor([9.0])), -log[2][None])
    torch.testing.assert_close(head.loss(logits, torch.tensor([0.0])), -log[1][None])
    probs = torch.softmax(logits, -1)[0]
    torch.testing.assert_close(head.decode(logits), ((probs[2] - probs[0]) * (math.e - 1))[None])


def test_equal_logits_mean_exactly_zero_though_bins_reach_five_hundred_million():
    head = TwoHot()
    assert float(head.bins[-1]) > 4e8 and head.decode(torch.zeros(2, 255)).tolist() == [0.0, 0.0]


def test_two_hot_losses_broadcast_over_several_targets():
    head, logits = TwoHot(41, -4, 4), torch.randn(3, 41)
    target = torch.randn(2, 3)
    both = head.loss(logits, target)
    torch.testing.assert_close(both, torch.stack([head.loss(logits, row) for row in target]))


def test_unimix_keeps_one_percent_for_all():
    probs = unimix(torch.tensor([[100.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(probs, torch.tensor([[0.9925, 0.0025, 0.0025, 0.0025]]))


def test_samples_are_one_hot_follow_their_probabilities_and_pass_gradients_straight():
    torch.manual_seed(0)
    probs = torch.tensor([0.7, 0.2, 0.1]).expand(4000, 3).clone().requires_grad_()
    sample = one_hot_sample(probs)
    assert set(sample.detach().flatten().tolist()) <= {0.0, 1.0} and torch.all(sample.sum(-1) == 1)
    torch.testing.assert_close(sample.detach().mean(0), torch.tensor([0.7, 0.2, 0.1]), atol=0.03, rtol=0)
    (sample * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert probs.grad[0].tolist() == [1.0, 2.0, 3.0]


def test_categorical_kl_by_hand():
    one, other = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    expected = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert float(categorical_kl(one, other)) == pytest.approx(expected)
