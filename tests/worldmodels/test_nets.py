"""Blocks equal what they stand for."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from worldmodels.nets import Encoder, StackedMLP, mish, mlp, shifted


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


def test_a_shifted_image_is_the_image_seen_through_a_moved_window():
    """Every shift up to the limit comes, each image has its own, and the border is repeated."""
    image = torch.arange(36, dtype=torch.uint8).reshape(1, 1, 6, 6).repeat(400, 2, 1, 1)
    torch.manual_seed(0)
    moved = shifted(image, 2)
    padded = F.pad(image.float(), (2, 2, 2, 2), mode="replicate")
    windows = {(y, x): padded[0, :, y : y + 6, x : x + 6] for y in range(5) for x in range(5)}
    found = [[at for at, window in windows.items() if torch.equal(one.float(), window)] for one in moved]
    assert all(len(at) == 1 for at in found) and {at[0] for at in found} == set(windows)
    assert moved.dtype == torch.uint8


def test_stacks_of_images_are_images_of_all_their_channels_and_shifted_only_while_training():
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 2, 16, 16), np.uint8)})
    encoder = Encoder(space, nn.Identity(), 8, 4, "relu", shift=2)
    image = torch.randint(0, 256, (5, 7, 3, 2, 16, 16), dtype=torch.uint8)
    calm = encoder.eval()({"image": image})
    assert calm.shape == (5, 7, 8)
    single = encoder.towers["image"](image.reshape(35, 6, 16, 16).float() / 255 - 0.5)
    torch.testing.assert_close(calm.reshape(35, 8), encoder.hidden(single))
    assert not torch.equal(encoder.train()({"image": image}), calm)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: mlp(4, [0], 2), "outputs of a network must be 1 or more, got 0"),
        (lambda: mlp(4, [8], 2, activation="foo"), "no activation 'foo'; choose mish, relu"),
        (lambda: StackedMLP(0, 4, 8, 2), "members of a network must be 1 or more, got 0"),
        (lambda: StackedMLP(2, 4, -3, 2), "hidden of a network must be 1 or more, got -3"),
    ],
)
def test_sizes_and_names_that_mean_nothing_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
