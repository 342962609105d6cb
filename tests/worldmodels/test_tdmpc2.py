"""TD-MPC2 at its published sizes: the rates of its parts, its pixel encoder, its scaled entropy."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.training.objectives.policy_prior import PolicyPrior
from worldmodels import tdmpc2
from worldmodels.nets import shifted

SPACE, ACTIONS = spaces.Dict({"observation": spaces.Box(-9, 9, (5,))}), spaces.Box(-1, 1, (2,))
PIXELS = spaces.Dict({"image": spaces.Box(0, 255, (3, 3, 64, 64), np.uint8)})


def test_parts_learn_at_the_released_rates():
    """The encoder at 0.3 of the rate, all else at 3e-4; model with critics and the policy are each clipped at 20."""
    with torch.device("meta"):
        model = tdmpc2.model5m(SPACE, ACTIONS)
        policy = tdmpc2.policy5m(model.view_space, ACTIONS)
        objective = PolicyPrior(model.view_space, ACTIONS, tdmpc2.critics5m, epsilon=1e-5)
    groups = {group["name"]: group for group in objective.groups(model, policy)}
    assert {name: group["lr"] for name, group in groups.items()} == pytest.approx(
        {"encoder": 9e-5, "model": 3e-4, "critic": 3e-4, "policy": 3e-4}
    )
    assert [group["clip_name"] for group in groups.values()] == ["model", "model", "model", "policy"]
    assert {group["clip"] for group in groups.values()} == {20.0} and groups["policy"]["eps"] == 1e-5
    counted = sum(len(group["params"]) for group in groups.values())
    assert counted == sum(len(list(part.parameters())) for part in (model, policy, objective.critic))


def test_rewards_and_values_start_at_zero():
    model = tdmpc2.model_nano(SPACE, ACTIONS)
    critic = tdmpc2.critics_nano(model.view_space, 2)
    state = model.start({"observation": torch.randn(4, 5)})
    assert model.step(state, torch.randn(4, 2))[1].abs().max() < 1e-5
    assert critic.value(model.view(state), torch.randn(4, 2)).abs().max() < 1e-5


def test_the_scaled_entropy_is_the_released_code_s():
    """There the normal's log-probability times A, over the squashed one, scales minus the squashed one."""
    torch.manual_seed(0)
    view = spaces.Dict({"latent": spaces.Box(0, 1, (6,))})
    policy, seen = tdmpc2.policy_nano(view, ACTIONS), {"latent": torch.rand(7, 6)}
    mean, log_std = policy._normal(seen)
    torch.manual_seed(1)
    noise = torch.randn(7, 2)
    before = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    action = torch.tanh(mean + noise * log_std.exp())
    squashed = before - torch.log(1 - action**2 + 1e-6).sum(-1)
    torch.manual_seed(1)
    act = policy.act(seen)
    torch.testing.assert_close(act.action, action)
    torch.testing.assert_close(act.trace["log_prob"], squashed)
    torch.testing.assert_close(act.trace["entropy"], -squashed * (2 * before / (squashed + 1e-8)))


def test_log_stds_lie_within_the_released_bounds():
    """-10 + 6 (tanh + 1): -4 for a raw 0, -10 and 2 at the ends."""
    policy = tdmpc2.policy_nano(spaces.Dict({"latent": spaces.Box(0, 1, (6,))}), ACTIONS)
    for raw, expected in ((0.0, -4.0), (50.0, 2.0), (-50.0, -10.0)):
        torch.nn.init.zeros_(policy.net[-1].weight)
        policy.net[-1].bias.data[:] = raw
        torch.testing.assert_close(policy._normal({"latent": torch.rand(1, 6)})[1], torch.full((1, 2), expected))


def test_the_pixel_model_reads_stacks_and_lives_on_simplices():
    torch.manual_seed(0)
    model = tdmpc2.pixel_model5m(PIXELS, ACTIONS)
    image = torch.randint(0, 256, (2, 3, 3, 64, 64), dtype=torch.uint8)
    moving, still = model.start({"image": image})["latent"], model.eval().start({"image": image})["latent"]
    assert still.shape == (2, 512) and not torch.equal(moving, still)
    torch.testing.assert_close(still.unflatten(-1, (8, 64)).sum(-2), torch.ones(2, 64))
    assert torch.equal(still, model.start({"image": image})["latent"])
    windows = model.start({"image": image[:, None].expand(-1, 4, -1, -1, -1, -1)})["latent"]
    torch.testing.assert_close(windows, still[:, None].expand(-1, 4, -1))


def test_images_move_by_three_pixels_at_most_and_repeat_their_border():
    torch.manual_seed(0)
    image = torch.arange(64 * 64).reshape(1, 1, 64, 64).float().expand(200, -1, -1, -1)
    moved = shifted(image, 3)
    rows, columns = moved[:, 0, 32, 32] // 64 - 32, moved[:, 0, 32, 32] % 64 - 32
    assert set(rows.tolist()) == set(columns.tolist()) == {-3, -2, -1, 0, 1, 2, 3}
    assert moved.min() == 0 and moved.max() == 64 * 64 - 1


def test_other_images_are_refused_with_advice():
    with pytest.raises(ValueError, match="64 x 64"):
        tdmpc2.pixel_model5m(spaces.Dict({"image": spaces.Box(0, 255, (3, 32, 32), np.uint8)}), ACTIONS)
