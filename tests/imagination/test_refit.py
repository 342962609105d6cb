"""The parts of a search, each equal to a small case computed by hand."""

import math

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.imagination.proposals import UNIFORM, Actions, Fresh, Noise, onto_simplex
from dreamsim.imagination.refit import BAD, Ascend, Reweigh, Scored


def scored(plans, score):
    return Scored(torch.tensor(plans)[None, :, None, None], torch.tensor(score)[None])  # (1, S, 1, 1)


def test_mppi_refit_by_hand():
    """Elites 0.9 and -0.5 of scores 2 and 1 at temperature 0.5: weights 1 and exp(-0.5)."""
    refit = Reweigh(Actions(1), elites=2, temperature=0.5, std_low=0.05, std_high=2.0)
    before = torch.zeros(1, 1, 1)
    found = refit(before, before, scored([0.1, 0.9, -0.5, 0.3], [0.0, 2.0, 1.0, BAD]), None)
    total = 1 + math.exp(-0.5)
    mean = (0.9 - 0.5 * math.exp(-0.5)) / total
    std = math.sqrt(((0.9 - mean) ** 2 + math.exp(-0.5) * (-0.5 - mean) ** 2) / total)
    torch.testing.assert_close(found.weight, torch.tensor([[1 / total, math.exp(-0.5) / total]]))
    assert abs(float(found.mean) - mean) < 1e-6 and abs(float(found.std) - std) < 1e-6
    assert found.elite.plans.flatten().tolist() == [np.float32(0.9), -0.5]


def test_cem_refit_by_hand():
    """Mean and spread of the three best, of which one is no number and weighs nothing; a tenth of the old stays."""
    refit = Reweigh(Actions(1), elites=3, momentum=0.1, std_low=0.5)
    mean, std = torch.full((1, 1, 1), 1.0), torch.full((1, 1, 1), 2.0)
    found = refit(mean, std, scored([0.2, 0.4, 0.6], [1.0, 5.0, BAD]), None)
    assert abs(float(found.mean) - (0.9 * 0.3 + 0.1)) < 1e-6
    assert abs(float(found.std) - (0.9 * 0.5 + 0.2)) < 1e-6  # spread 0.1, raised to 0.5
    alone = refit(mean, std, scored([0.2, 0.4, 0.6], [BAD, BAD, BAD]), None)
    torch.testing.assert_close(alone.weight, torch.full((1, 3), 1 / 3))


def test_the_mean_of_one_hot_elites_is_their_frequency_softened():
    actions = Actions(spaces.Discrete(3))
    plans = torch.eye(3)[torch.tensor([0, 0, 1, 2])][None, :, None]  # (1, 4, 1, 3)
    found = Reweigh(actions, elites=3)(
        actions.neutral.expand(1, 1, 3), torch.zeros(1, 1, 3), Scored(plans, torch.tensor([[3.0, 2.0, 1.0, 0.0]])), None
    )
    expected = (1 - UNIFORM) * torch.tensor([2 / 3, 1 / 3, 0]) + UNIFORM / 3
    torch.testing.assert_close(found.mean[0, 0], expected)


def test_a_step_of_adam_by_hand():
    """The first step is the rate times the sign of the slope, stopped at the border."""
    plans = torch.tensor([0.2, 0.95]).view(1, 2, 1, 1).requires_grad_()
    with torch.enable_grad():
        score = (3 * plans).sum((2, 3))
    found = Ascend(Actions(1), rate=0.1)(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), Scored(plans, score), None)
    torch.testing.assert_close(found.carried.flatten(), torch.tensor([0.3, 1.0]))
    assert abs(float(found.mean) - 0.95) < 1e-6


def test_draws_follow_their_centre():
    torch.manual_seed(0)
    space = spaces.Dict({"a": spaces.Box(-1, 1, (1,)), "b": spaces.Discrete(3), "c": spaces.MultiBinary(1)})
    actions = Actions(space)
    assert actions.pieces == [slice(1, 4)] and actions.binary == [4]
    torch.testing.assert_close(actions.neutral, torch.tensor([0, 1 / 3, 1 / 3, 1 / 3, 0.5]))
    centre = torch.tensor([0.3, 0.5, 0.5, 0.0, 0.9]).view(1, 1, 5)
    noise = Noise(1)(1, 20_000, 5)
    plans = actions.draw(centre, torch.full((1, 1, 5), 0.1), noise)
    mean = plans[0, :, 0].mean(0)
    torch.testing.assert_close(mean, centre[0, 0], atol=0.015, rtol=0)
    assert (plans[..., 1:4].sum(-1) == 1).all() and ((plans[..., 4] == 0) | (plans[..., 4] == 1)).all()
    assert abs(float(plans[..., 0].std()) - 0.1) < 0.005
    assert actions.harden(centre).flatten().tolist() == [np.float32(0.3), 1, 0, 0, 1]


def test_the_simplex_by_hand():
    found = onto_simplex(torch.tensor([[0.5, 0.5], [2.0, 0.0], [0.8, 0.6], [-1.0, -3.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.6, 0.4], [1.0, 0.0]]))


def test_coloured_noise_has_unit_variance_and_the_spectrum_asked_for():
    torch.manual_seed(0)
    horizon, exponent = 8, 2.0
    drawn = Noise(horizon, exponent)(1, 40_000, 1)[0, :, :, 0].numpy()
    np.testing.assert_allclose(drawn.std(0), 1, atol=0.03)
    power = (np.abs(np.fft.rfft(drawn, axis=1)) ** 2).mean(0)
    np.testing.assert_allclose(power[1] / power[2:], np.arange(2, 5) ** exponent, rtol=0.05)
    white = Noise(horizon)(1, 40_000, 1)[0, :, :, 0].numpy()
    np.testing.assert_allclose(np.corrcoef(white.T), np.eye(horizon), atol=0.03)
    assert Noise(1, exponent)(2, 3, 4).shape == (2, 3, 1, 4)


def test_fresh_plans_have_the_centre_among_them():
    mean = torch.tensor([0.2, -0.4]).view(1, 2, 1)
    plans = Fresh(Actions(1), Noise(2), 8, centred=True)(mean, torch.ones_like(mean), None, 0)
    assert plans.shape == (1, 8, 2, 1) and torch.equal(plans[:, 0], mean)
