"""DreamerV3's world model equals its equations written out plainly; its beliefs, starts and discounts are as said."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from dreamsim.core.checks import check_world_model
from dreamsim.core.checks.learned import random_segment
from dreamsim.core.protocols import Decodes, MissingPower, power
from dreamsim.core.types import Before
from worldmodels.blocks import BlockLinear, Eyes, Hands
from worldmodels.grounds import Contrast, Reconstruction, RedundancyReduction
from worldmodels.recurrent import (
    Core,
    Recurrent,
    nano,
    size1m,
    size12m,
    size25m,
    size50m,
    size100m,
    size200m,
    size400m,
)

STATES = spaces.Dict({"position": spaces.Box(-9, 9, (3,)), "speed": spaces.Box(-9, 9, (2,))})
IMAGES = spaces.Dict({"image": spaces.Box(0, 255, (3, 32, 32), np.uint8)})
BOX, DISCRETE = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)


def small(observations=STATES, actions=BOX, **options) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(observations, actions, deter=16, hidden=8, classes=3, units=8, stoch=4, blocks=4, **options)


def normed(x, gain):
    return F.silu(x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-4) * gain)


def test_the_core_equals_the_released_gru_written_block_by_block():
    torch.manual_seed(3)
    core = Core(16, 12, 2, 8, 4)
    for parameter in core.parameters():
        parameter.data.normal_(std=0.5)
    deter, stoch, action = torch.randn(5, 16), torch.randn(5, 4, 3), torch.tensor([[0.5, -3.0]]).expand(5, 2)
    parts = []
    for part, value in (
        (core.from_deter, deter),
        (core.from_stoch, stoch.flatten(1)),
        (core.from_action, action.clamp(-1, 1)),
    ):
        parts.append(normed(value @ part[0].weight.T + part[0].bias, part[1].gain))
    everything = torch.cat(parts, -1)
    hidden = []
    for g in range(4):
        kernel = torch.cat([core.own.weight[g], core.shared.weight[4 * g : 4 * g + 4].T])
        hidden.append(torch.cat([deter[:, 4 * g : 4 * g + 4], everything], -1) @ kernel + core.own.bias[g])
    hidden = normed(torch.cat(hidden, -1), core.active.gain)
    after = []
    for g in range(4):
        gates = hidden[:, 4 * g : 4 * g + 4] @ core.gates.weight[g] + core.gates.bias[g]
        reset, candidate, update = torch.sigmoid(gates[:, :4]), gates[:, 4:8], torch.sigmoid(gates[:, 8:] - 1)
        after.append(update * torch.tanh(reset * candidate) + (1 - update) * deter[:, 4 * g : 4 * g + 4])
    torch.testing.assert_close(core(deter, stoch, core.push(action)), torch.cat(after, -1))


def test_losses_equal_the_paper_s_sums():
    """KL terms with free bits after the sum over categoricals, symlog errors, the discounted flag."""
    model, data = small(free=0.05), random_segment(STATES, BOX, rows=4, steps=3)
    data = data._replace(mask=torch.ones(4, 3), terminated=torch.arange(12).view(4, 3) % 5 == 0)
    torch.manual_seed(7)
    learned = model.loss(data)
    kl = torch.zeros(4, 4)
    deter, stoch = learned.states["deter"], learned.states["stoch"]
    tokens = model.encoder(data.obs)
    for t in range(4):
        seen = torch.cat([deter[:, t], tokens[:, t]], -1)
        weight = torch.cat([model.see_deter.weight, model.see_tokens.weight], -1)
        x = normed(seen @ weight.T + model.see_deter.bias + model.see_tokens.bias, model.see_active.gain)
        post = torch.softmax(model.posterior(x).view(4, 3, 4), -2) * 0.99 + 0.01 / 3
        prior = torch.softmax(model.prior(deter[:, t]).view(4, 3, 4), -2) * 0.99 + 0.01 / 3
        kl[:, t] = (post * (post / prior).log()).sum((-2, -1))
    expected = torch.where(kl > 0.05, kl, torch.full_like(kl, 0.05)).mean()
    torch.testing.assert_close(learned.losses["dynamics"], expected)
    torch.testing.assert_close(learned.losses["representation"], 0.1 * expected)
    state = torch.cat([deter, stoch.flatten(-2)], -1)
    flat = torch.cat([data.obs["position"], data.obs["speed"]], -1)
    squashed = torch.sign(flat) * torch.log(1 + flat.abs())
    error = (model.ground.decoder.vectors(state) - squashed).square().sum(-1).mean()
    torch.testing.assert_close(learned.losses["ground"], error)
    going = torch.sigmoid(model.proceed(state[:, 1:]).squeeze(-1))
    target = (~data.terminated).float() * (1 - 1 / 333)
    entropy = -(target * going.log() + (1 - target) * (1 - going).log()).mean()
    torch.testing.assert_close(learned.losses["proceed"], entropy)
    torch.testing.assert_close(learned.losses["reward"], torch.tensor(math.log(255)))  # the head starts at zero


def test_each_kl_term_moves_its_own_side_only():
    model, data = small(free=0.0), random_segment(STATES, BOX, rows=4, steps=3)
    losses = model.loss(data).losses
    losses["dynamics"].backward(retain_graph=True)
    assert model.posterior.weight.grad is None or model.posterior.weight.grad.abs().sum() > 0  # through the samples
    first = model.prior[-1].weight.grad.clone()
    losses["representation"].backward()
    assert first.abs().sum() > 0 and torch.equal(model.prior[-1].weight.grad, first)


def test_a_dream_s_end_is_told_without_the_discount_it_was_learned_with():
    model = small(horizon=10.0)
    state = model.start({name: torch.zeros(2, *part.shape) for name, part in STATES.items()})
    model.proceed[-1].weight.data.zero_()
    for probability, expected in ((0.45, 0.5), (0.9, 1.0), (0.95, 1.0)):
        model.proceed[-1].bias.data.fill_(math.log(probability / (1 - probability)))
        torch.testing.assert_close(model.step(state, torch.zeros(2, 2))[2], torch.full((2,), expected))


def test_a_window_goes_on_from_the_stored_belief_and_filters_as_updates_do():
    model, data = small(), random_segment(STATES, BOX, rows=4, steps=3)
    stored = {"deter": torch.randn(4, 16), "stoch": F.one_hot(torch.randint(3, (4, 4)), 3).float().mT}
    known = torch.tensor([True, False, True, False])
    torch.manual_seed(5)
    states = model.loss(data._replace(before=Before(stored, known))).states
    assert torch.equal(states["deter"][known, 0], stored["deter"][known])
    torch.manual_seed(5)
    state = Before(stored, known).over(model.start({n: v[:, 0] for n, v in data.obs.items()}))
    for t in range(3):
        state = model.update(state, data.action[:, t], {n: v[:, t + 1] for n, v in data.obs.items()})
        for name in state:
            torch.testing.assert_close(state[name], states[name][:, t + 1])
    assert model.keeps_beliefs()


def test_a_first_observation_is_learned_from_where_it_began_an_episode_only():
    model, data = small(), random_segment(STATES, BOX, rows=4, steps=3)
    data.obs["position"].requires_grad_()
    index = torch.tensor([[0, 0], [0, 4], [1, 0], [2, 9]])
    stored = {"deter": torch.zeros(4, 16), "stoch": torch.zeros(4, 3, 4)}
    before = Before(stored, torch.tensor([False, True, True, True]))
    for given, expected in ((None, [True, True, True, True]), (before, [True, False, False, False])):
        (slope,) = torch.autograd.grad(
            model.loss(data._replace(index=index, before=given)).losses["ground"], data.obs["position"]
        )
        assert (slope[:, 0].abs().sum(-1) > 0).tolist() == expected


@pytest.mark.parametrize("ground", [Reconstruction, RedundancyReduction, Contrast])
@pytest.mark.parametrize(("observations", "actions"), [(STATES, BOX), (IMAGES, DISCRETE)])
def test_the_contract_is_kept_with_every_ground(ground, observations, actions):
    model = small(observations, actions, ground=ground)
    check_world_model(model, observations, actions)
    if ground is Reconstruction:
        obs = model.decode(model.start({n: torch.zeros(2, *p.shape).to(torch.uint8) for n, p in observations.items()}))
        assert {name: tuple(value.shape[1:]) for name, value in obs.items()} == {
            name: part.shape for name, part in observations.items()
        }
    else:
        with pytest.raises(MissingPower):
            power(model, Decodes)


def test_redundancy_reduction_equals_barlow_twins_by_hand():
    model = small(ground=RedundancyReduction)
    ground = model.ground
    deter, stoch, tokens = torch.randn(1, 6, 16), torch.randn(1, 6, 12), torch.randn(1, 6, 8, requires_grad=True)
    weight = torch.tensor([[1.0, 1, 1, 1, 0, 1]]) / 5
    said = (torch.cat([deter, stoch], -1) @ ground.project.weight.T + ground.project.bias)[0, weight[0] > 0]
    seen = tokens[0, weight[0] > 0]
    total = 0.0
    for i in range(8):
        for j in range(8):
            a, b = said[:, i], seen[:, j]
            c = ((a - a.mean()) / (a.std() + 1e-8) * (b - b.mean()) / (b.std() + 1e-8)).sum() / 5
            total = total + ((c - 1) ** 2 if i == j else 5e-4 * c**2)
    loss = ground.loss(deter, stoch, tokens, {}, weight)
    torch.testing.assert_close(loss, 0.05 * total)
    loss.backward()
    assert tokens.grad is None


def test_contrast_is_log_n_where_all_look_alike_and_small_where_each_is_told_apart():
    ground = small(ground=Contrast).ground
    ground.project.weight.data.zero_()
    ground.project.weight.data[:, :8] = 20 * torch.eye(8)
    deter = torch.zeros(1, 4, 16)
    weight, tokens = torch.full((1, 4), 0.25), torch.eye(8)[None, :4]
    alike = ground.loss(deter, torch.zeros(1, 4, 12), tokens, {}, weight)
    torch.testing.assert_close(alike, torch.tensor(math.log(4)))
    deter[0, :, :8] = torch.eye(8)[:4]
    assert ground.loss(deter, torch.zeros(1, 4, 12), tokens, {}, weight) < 1e-6


def test_a_block_linear_layer_is_a_block_diagonal_matrix():
    layer = BlockLinear(3, 2, 5, 6)
    x = torch.randn(4, 6)
    expected = x @ torch.block_diag(*layer.weight) + layer.bias.flatten()
    torch.testing.assert_close(layer(x).flatten(-2), expected)


@pytest.mark.parametrize(
    ("size", "depths"), [(32, (8, 12, 16)), (48, (8, 12, 16)), (64, (8, 12, 16, 16)), (96, (8, 12, 16, 16))]
)
def test_images_are_halved_to_four_to_seven_pixels_and_drawn_back(size, depths):
    space = spaces.Dict({"eyes": spaces.Box(0, 255, (2, 3, size, size), np.uint8), "touch": spaces.Box(-1, 1, ())})
    eyes = Eyes(space, 8, 4)
    obs = {"eyes": torch.randint(0, 256, (5, 7, 2, 3, size, size), dtype=torch.uint8), "touch": torch.zeros(5, 7)}
    assert eyes(obs).shape == (5, 7, 8 + depths[-1] * (size // 2 ** len(depths)) ** 2)
    drawn = Hands(space, 16, 12, 8, 4, 4)(torch.randn(5, 7, 16), torch.randn(5, 7, 12))
    assert drawn["eyes"].shape == obs["eyes"].shape and drawn["eyes"].dtype == torch.uint8
    assert drawn["touch"].shape == (5, 7)


def test_an_image_that_cannot_be_halved_is_refused_with_sizes_that_can():
    with pytest.raises(ValueError, match="32, 48, 64 or 96"):
        Eyes(spaces.Dict({"image": spaces.Box(0, 255, (3, 50, 50), np.uint8)}), 8, 4)
    with pytest.raises(ValueError, match="choose a multiple"):
        Recurrent(STATES, BOX, deter=20, blocks=8)


@pytest.mark.parametrize(
    ("preset", "millions"),
    [(size1m, 1), (size12m, 12), (size25m, 25), (size50m, 50), (size100m, 100), (size200m, 200), (size400m, 400)],
)
def test_published_sizes_have_the_parameters_of_their_names(preset, millions):
    """With actor and critic, on images of 64 x 64, as the names count; without a byte of memory."""
    from worldmodels.recurrent_actors import BoundedNormal, Value

    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    with torch.device("meta"):
        model = preset(space, BOX)
        units = model.reward[0][0].out_features
        parts = [model, BoundedNormal(model.view_space, BOX, units), Value(model.view_space, units)]
    count = sum(p.numel() for part in parts for p in part.parameters()) / 1e6
    assert (0.65 if millions == 1 else 0.75) * millions < count < 1.3 * millions


def test_the_size_for_two_cores_learns_to_foresee_a_repeating_world():
    """Four observations in turn: what is seen is told apart, what follows is foreseen, its reward, too."""
    torch.manual_seed(0)
    model = nano(STATES, BOX)
    data = random_segment(STATES, BOX, rows=4, steps=8)
    phase = (torch.arange(4)[:, None] + torch.arange(9)) % 4
    obs = {"position": F.one_hot(phase, 4)[..., :3] * 2.0, "speed": torch.zeros(4, 9, 2)}
    data = data._replace(obs=obs, mask=torch.ones(4, 8), reward=(phase[:, 1:] == 2).float())
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    told = []
    for _ in range(60):
        optimiser.zero_grad()
        told.append(model.loss(data).losses)
        sum(told[-1].values()).backward()
        optimiser.step()
    for name in ("ground", "dynamics", "reward"):
        assert told[-1][name] < 0.4 * told[0][name], name
