"""A world in the tokens of an encoder that stays as it is."""

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core import checks
from dreamsim.core.checks import random_segment
from worldmodels.frozen_encoder import FrozenEncoder, dinov2

SPACE = spaces.Dict({"image": spaces.Box(0, 255, (3, 16, 16), np.uint8), "pose": spaces.Box(-9, 9, (2,), np.float32)})
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


class Patches(nn.Module):
    """Four patches of an image as tokens behind a first one, with dropout that must stay silent."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.drop = nn.Conv2d(3, 6, 8, 8), nn.Dropout(0.5)

    def forward(self, image):
        tokens = self.cut(image).flatten(2).transpose(1, 2)
        return self.drop(torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1))


def small(space=SPACE, encoder=Patches) -> FrozenEncoder:
    torch.manual_seed(0)
    options = {"action_size": 3, "depth": 1, "heads": 2, "head_size": 4, "hidden": 16, "dropout": 0.0}
    return FrozenEncoder(space, ACTIONS, encoder, **options)


def test_the_contract_is_kept():
    model = small()
    checks.check_world_model(model, SPACE, ACTIONS)
    assert model.view_space["latent"].shape == (4, 9)  # four patches of 6 features and 3 of the pose


def test_nothing_trains_the_encoder_and_everything_else_learns():
    model, data = small().train(), random_segment(SPACE, ACTIONS, rows=4, steps=4)
    data = data._replace(mask=torch.ones(4, 4))
    model.fit_statistics(data)
    before = [p.clone() for p in model.encoder.parameters()]
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        losses.append(model.loss(data).losses["prediction"])
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(old, new) for old, new in zip(before, model.encoder.parameters(), strict=True))
    assert not model.encoder.training


def test_a_frame_is_foretold_from_itself_and_earlier_ones_only():
    model = small().eval()
    latents, actions = torch.randn(1, 3, 4, 9), torch.randn(1, 3, 2)
    told = model._foretell(latents, actions)
    latents[:, 2], actions[:, 2] = 7.0, 7.0
    changed = model._foretell(latents, actions)
    torch.testing.assert_close(told[:, :2], changed[:, :2])
    assert not torch.allclose(told[:, 2], changed[:, 2])


def test_dreaming_foretells_what_the_loss_foretells():
    model, data = small().eval(), random_segment(SPACE, ACTIONS, rows=2, steps=3)
    obs = [{name: value[:, t] for name, value in data.obs.items()} for t in range(4)]
    state = model.start(obs[0])
    for t in range(2):
        state = model.update(state, data.action[:, t], obs[t + 1])
    dreamt = model.view(model.step(state, data.action[:, 2])[0])["latent"]
    latents = torch.stack([model._encode(frame) for frame in obs[:3]], 1)
    torch.testing.assert_close(dreamt, model._foretell(latents, data.action)[:, -1])


def test_a_transformers_model_is_read_from_a_folder(tmp_path):
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
    Dinov2Model(config).save_pretrained(tmp_path)
    model = small(encoder=functools.partial(dinov2, folder=str(tmp_path)))
    state = model.start({"image": torch.zeros(2, 3, 16, 16, dtype=torch.uint8), "pose": torch.zeros(2, 2)})
    assert model.view(state)["latent"].shape == (2, 4, 15)


def test_what_it_cannot_see_is_refused():
    with pytest.raises(ValueError, match="one RGB image"):
        small(spaces.Dict({"pose": SPACE["pose"]}))
    with pytest.raises(ValueError, match="tokens"):
        small(encoder=lambda: nn.Flatten())
