"""Returns equal sums done by hand."""

import torch

from dreamsim.imagination.returns import gae, lambda_returns


def test_lambda_returns_equal_a_sum_by_hand():
    reward = torch.tensor([[1.0, 2.0, 4.0]])
    proceed = torch.tensor([[1.0, 0.5, 1.0]])
    value = torch.tensor([[10.0, 20.0, 30.0]])
    third = 4 + 0.9 * 30
    second = 2 + 0.9 * 0.5 * (0.2 * 20 + 0.8 * third)
    first = 1 + 0.9 * (0.2 * 10 + 0.8 * second)
    torch.testing.assert_close(lambda_returns(reward, proceed, value, 0.9, 0.8), torch.tensor([[first, second, third]]))


def test_lambda_one_is_the_discounted_sum_and_zero_the_one_step_target():
    reward, proceed, value = torch.rand(2, 4), torch.ones(2, 4), torch.rand(2, 4)
    whole = lambda_returns(reward, proceed, value, 0.5, 1.0)
    powers = 0.5 ** torch.arange(4)
    torch.testing.assert_close(whole[:, 0], (reward * powers).sum(1) + 0.5**4 * value[:, -1])
    torch.testing.assert_close(lambda_returns(reward, proceed, value, 0.5, 0.0), reward + 0.5 * value)


def test_gae_bootstraps_on_truncation_only():
    """Two environments at the same step: one is cut short, one ends for good; only the first counts on its future."""
    reward, value, following = torch.ones(2, 1), torch.zeros(2, 1), torch.full((2, 1), 10.0)
    terminated = torch.tensor([[False], [True]])
    advantage = gae(reward, terminated, torch.ones(2, 1, dtype=torch.bool), value, following, 0.9, 0.95)
    torch.testing.assert_close(advantage, torch.tensor([[10.0], [1.0]]))


def test_gae_of_one_episode_equals_a_sum_by_hand():
    reward, value = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 1.5]])
    following, no = torch.tensor([[1.5, 3.0]]), torch.zeros(1, 2, dtype=torch.bool)
    second = 2 + 0.9 * 3.0 - 1.5
    first = 1 + 0.9 * 1.5 - 0.5 + 0.9 * 0.8 * second
    torch.testing.assert_close(gae(reward, no, no, value, following, 0.9, 0.8), torch.tensor([[first, second]]))


def test_lambda_may_differ_by_step():
    """Where lambda is 0 the sum stops at the value, wherever the others go on."""
    reward, proceed, following = torch.ones(1, 3), torch.ones(1, 3), torch.tensor([[10.0, 20.0, 30.0]])
    returns = lambda_returns(reward, proceed, following, 1.0, torch.tensor([[1.0, 0.0, 1.0]]))
    torch.testing.assert_close(returns, torch.tensor([[22.0, 21.0, 31.0]]))
