"""TD-MPC2's model: losses equal to the paper's sums, masks, shapes."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.core import tree
from dreamsim.core.types import Segment
from worldmodels import tdmpc2
from worldmodels.decoder_free import DecoderFree, nano, step_weights
from worldmodels.nets import simnorm

SPACE = spaces.Dict({"position": spaces.Box(-9, 9, (3,)), "speed": spaces.Box(-9, 9, (2,))})
ACTIONS = spaces.Box(-1, 1, (2,))


def batch(rows=4, steps=3, seed=0) -> Segment:
    torch.manual_seed(seed)
    return Segment(
        {"position": torch.randn(rows, steps + 1, 3), "speed": torch.randn(rows, steps + 1, 2)},
        torch.rand(rows, steps, 2) * 2 - 1,
        torch.rand(rows, steps),
        torch.rand(rows, steps) < 0.3,
        torch.ones(rows, steps),
        {},
        None,
        torch.zeros(rows, 2, dtype=torch.long),
    )


def small(**options) -> DecoderFree:
    torch.manual_seed(1)
    return DecoderFree(SPACE, ACTIONS, latent=16, width=24, encoder_width=24, **options)


def test_simnorm_makes_simplices_of_eight():
    out = simnorm(torch.randn(5, 32), 8)
    groups = out.unflatten(-1, (8, 4))
    torch.testing.assert_close(groups.sum(-2), torch.ones(5, 4))
    x = torch.randn(1, 8)
    torch.testing.assert_close(simnorm(x, 8), torch.softmax(x, -1))


def test_losses_equal_the_paper_s_sums():
    model, data = small(), batch()
    learned = model.loss(data)
    latent = model.start(tree.map(lambda v: v[:, 0], data.obs))["latent"]
    consistency = reward = 0.0
    for t in range(3):
        both = torch.cat([latent, data.action[:, t]], -1)
        reward = reward + 0.5**t * model.regression.loss(model.reward(both), data.reward[:, t]).mean()
        latent = model.dynamics(both)
        real = model.start(tree.map(lambda v, t=t: v[:, t + 1], data.obs))["latent"]
        consistency = consistency + 0.5**t * torch.nn.functional.mse_loss(latent, real)
    torch.testing.assert_close(learned.losses["consistency"], 20 * consistency / 3)
    torch.testing.assert_close(learned.losses["reward"], 0.1 * reward / 3)
    assert learned.states["latent"].shape == (4, 4, 16) and learned.states["latent"].requires_grad
    assert not learned.observed["latent"].requires_grad


def test_no_gradient_flows_into_what_is_predicted():
    """Consistency trains prediction towards reality: the encoding of later observations stays a constant."""
    model, data = small(), batch()
    late = data.obs["position"].clone().requires_grad_()
    model.loss(data._replace(obs={**data.obs, "position": late})).losses["consistency"].backward()
    assert late.grad[:, 0].abs().sum() > 0 and late.grad[:, 1:].abs().sum() == 0


@pytest.mark.parametrize("episodic", [False, True])
def test_padding_changes_no_loss(episodic):
    model, data = small(episodic=episodic, decoder=8), batch()
    mask = data.mask.clone()
    mask[1, 1:] = 0
    clean = model.loss(data._replace(mask=mask)).losses
    data.obs["position"][1, 2:] = 100.0
    data.action[1, 1:] = 1.0
    data.reward[1, 1:] = -50.0
    dirty = model.loss(data._replace(mask=mask)).losses
    torch.testing.assert_close(clean, dirty)


def test_step_weights_average_over_real_steps():
    weight = step_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), 0.5)
    torch.testing.assert_close(weight, torch.tensor([[1.0, 0.5], [1.0, 0.0]]) / 3)


def test_dreams_have_the_contract_s_shapes():
    model = small(episodic=True, decoder=8)
    state = model.start(tree.map(lambda v: v[:, 0], batch().obs))
    state, reward, proceed = model.step(state, torch.zeros(4, 2))
    assert reward.shape == proceed.shape == (4,)
    assert ((proceed > 0) & (proceed < 1)).all()
    assert model.decode(state)["position"].shape == (4, 3)
    assert list(model.view(state)) == ["latent"]


def test_the_decoder_never_shapes_the_latent():
    model = small(decoder=8)
    model.loss(batch()).losses["decoder"].backward()
    assert all(p.grad is None or p.grad.abs().sum() == 0 for p in model.encoder.parameters())
    assert any(p.grad.abs().sum() > 0 for p in model.decoder.parameters())


def test_statistics_are_finite_for_a_component_that_never_varies():
    model, data = small(decoder=8), batch()
    data.obs["speed"][..., 0] = 3.0
    model.fit_statistics(data)
    assert torch.isfinite(model.loss(data).losses["decoder"])
    assert float(model.decoder.std[3]) == 1.0 and float(model.decoder.mean[3]) == 3.0


def test_pixels_and_vectors_together_give_one_latent():
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 64, 64), np.uint8), "speed": spaces.Box(-9, 9, (2,))})
    model = DecoderFree(space, ACTIONS, latent=16, width=24, encoder_width=24, channels=8, decoder=8)
    obs = {"image": torch.randint(0, 256, (2, 4, 3, 64, 64), dtype=torch.uint8), "speed": torch.randn(2, 4, 2)}
    learned = model.loss(batch(2)._replace(obs=obs))
    assert all(torch.isfinite(loss) for loss in learned.losses.values())


def test_discrete_actions_are_one_hot_vectors():
    model = DecoderFree(SPACE, spaces.Discrete(4), latent=16, width=24, encoder_width=24)
    state = model.start(tree.map(lambda v: v[:, 0], batch().obs))
    assert model.step(state, torch.eye(4))[1].shape == (4,)


def test_a_latent_that_cannot_be_cut_into_simplices_is_refused():
    with pytest.raises(ValueError, match="multiple"):
        DecoderFree(SPACE, ACTIONS, latent=20)


@pytest.mark.parametrize(
    ("size", "count"),
    [("_nano", 0.2e6), ("1m", 1.2e6), ("5m", 5.0e6), ("19m", 18.1e6), ("48m", 47.2e6), ("317m", 312.6e6)],
)
def test_presets_have_their_sizes(size, count):
    """Model, critics and policy together, for observations and actions as DeepMind Control has them."""
    with torch.device("meta"):
        model = getattr(tdmpc2, f"model{size}")(SPACE, ACTIONS)
        critic = getattr(tdmpc2, f"critics{size}")(model.view_space, 2)
        policy = getattr(tdmpc2, f"policy{size}")(model.view_space, ACTIONS)
    counted = sum(p.numel() for part in (model, critic, policy) for p in part.parameters())
    assert abs(counted - count) < 0.1 * count, counted


@pytest.mark.parametrize("preset", [nano, tdmpc2.model1m])
def test_presets_learn(preset):
    model = preset(SPACE, ACTIONS)
    assert torch.isfinite(sum(model.loss(batch()).losses.values()))


def test_ends_are_learned_where_they_come_and_dreamt_two_steps_ahead():
    """A point ends when it leaves [-1, 1]: after one step, and after a dreamt one that stayed inside."""
    space, actions = spaces.Dict({"at": spaces.Box(-9, 9, (1,))}), spaces.Box(-1, 1, (1,))
    torch.manual_seed(0)
    model = DecoderFree(space, actions, latent=16, width=32, encoder_width=32, episodic=True)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)

    def lived(rows: int) -> Segment:
        at, action, mask = [torch.rand(rows, 1) * 2 - 1], torch.rand(rows, 3, 1) * 2 - 1, [torch.ones(rows)]
        for t in range(3):
            at.append(at[-1] + action[:, t])
            mask.append(mask[-1] * (at[-1][:, 0].abs() <= 1))
        ended = torch.stack([m * (x[:, 0].abs() > 1) for m, x in zip(mask, at[1:], strict=False)], 1).bool()
        return Segment(
            {"at": torch.stack(at, 1)}, action, torch.zeros(rows, 3), ended, torch.stack(mask[:3], 1), {}, None,
            torch.zeros(rows, 2, dtype=torch.long),
        )  # fmt: skip

    for _ in range(200):
        optimiser.zero_grad()
        sum(model.loss(lived(64)).losses.values()).backward()
        optimiser.step()
    start = model.start({"at": torch.tensor([[0.6], [0.6], [-0.6], [-0.6]])})
    state, _, once = model.step(start, torch.tensor([[0.8], [-0.8], [0.8], [-0.8]]))
    assert once[[0, 3]].max() < 0.1 and once[[1, 2]].min() > 0.9
    _, _, twice = model.step({"latent": state["latent"][1:3]}, torch.tensor([[-1.0], [-0.2]]))  # to -1.2 and 0.0
    assert twice[0] < 0.1 and twice[1] > 0.9
