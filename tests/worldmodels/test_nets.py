"""Blocks equal what they stand for."""

import pytest
import torch
from torch.nn import functional as F

from worldmodels.nets import StackedMLP, mish


@pytest.mark.parametrize("rows", [3, 3000])
def test_mish_and_its_gradient_equal_torch_s_own_also_far_out(rows):
    spread = torch.cat([torch.linspace(-90, 120, 11), torch.linspace(-6, 6, 21)]).repeat(rows)
    x, y = spread.clone().requires_grad_(), spread.clone().requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(mish(spread), F.mish(spread), atol=3e-6, rtol=1e-5)
    ours, theirs = mish(x), F.mish(y)
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=1e-5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, atol=2e-5, rtol=1e-4)


def test_stacked_networks_are_the_single_ones():
    torch.manual_seed(0)
    net = StackedMLP(3, 4, 8, 2, activation="relu")
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 6, 4)
    out = net(x)
    for m in range(3):
        h = x
        for weight, bias, gain, shift in (
            (net.weight1, net.bias1, net.gain1, net.shift1),
            (net.weight2, net.bias2, net.gain2, net.shift2),
        ):
            h = F.relu(F.layer_norm(h @ weight[m] + bias[m], (8,), gain[m, 0], shift[m, 0]))
        torch.testing.assert_close(out[m], h @ net.weight3[m] + net.bias3[m], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(net(x, torch.tensor([2, 0])), out[[2, 0]])
