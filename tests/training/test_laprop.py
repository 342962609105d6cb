"""DreamerV3's optimiser and its clipping equal plain loops."""

import pytest
import torch
from torch import nn

from dreamsim.training.flat import Flat
from dreamsim.training.laprop import LaProp


def test_steps_equal_the_equations():
    value = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser = LaProp([value], lr=0.1, warmup=4)
    size, mean, expected = [0.0, 0.0], [0.0, 0.0], [1.0, -2.0]
    for t in range(1, 8):
        gradient = [0.3 * t, -4.0 / t]
        value.grad = torch.tensor(gradient)
        optimiser.step()
        for i in range(2):
            size[i] = 0.999 * size[i] + 0.001 * gradient[i] ** 2
            scaled = gradient[i] / (size[i] / (1 - 0.999**t)) ** 0.5
            mean[i] = 0.9 * mean[i] + 0.1 * scaled
            expected[i] -= 0.1 * min(1.0, (t - 1) / 4) * mean[i] / (1 - 0.9**t)
        torch.testing.assert_close(value.data, torch.tensor(expected))
    assert optimiser.step(lambda: 5.0) == 5.0


def test_a_parameter_without_a_gradient_yet_stays():
    value = nn.Parameter(torch.ones(2))
    optimiser = LaProp([value], warmup=0)
    optimiser.step()
    value.grad = torch.zeros(2)
    optimiser.step()
    assert value.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="momentum"):
        LaProp([value], momentum=1.0)


def test_each_tensor_is_clipped_by_its_own_norm():
    """Norms 5, 0 and 2: limits 1.5, 0.0003 and 0.6, so that the first two are cut and the third is not."""
    parameters = [
        nn.Parameter(torch.tensor([3.0, 4.0])),
        nn.Parameter(torch.zeros(1)),
        nn.Parameter(torch.full((1,), 2.0)),
    ]
    flat = Flat(parameters)
    for parameter, gradient in zip(parameters, ([0.0, 3.0], [0.1], [0.5]), strict=True):
        parameter.grad.copy_(torch.tensor(gradient))
    flat.clip_each(0.3)
    torch.testing.assert_close(flat.grad, torch.tensor([0.0, 1.5, 0.0003, 0.5]))
