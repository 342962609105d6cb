"""A world without a model shows reality and dreams that nothing happens."""

import torch
from gymnasium import spaces

from dreamsim.core.checks import check_world_model
from dreamsim.core.checks.learned import random_segment
from dreamsim.core.run import view_space
from worldmodels.still import Still

SPACE = spaces.Dict({"place": spaces.Box(-9, 9, (2,)), "height": spaces.Box(-9, 9, ())})
ACTIONS = spaces.Box(-1, 1, (1,))


def test_it_shows_what_is_observed_and_dreams_a_standstill():
    world, obs = Still(SPACE, ACTIONS), {"place": torch.randn(3, 2), "height": torch.randn(3)}
    state = world.start(obs)
    assert torch.equal(world.view(state)["height"], obs["height"][:, None])
    assert torch.equal(world.decode(state)["height"], obs["height"])
    after, reward, proceed = world.step(state, torch.ones(3, 1))
    assert after is state and not reward.any() and (proceed == 1).all()
    later = {name: value + 1 for name, value in obs.items()}
    assert torch.equal(world.update(after, torch.ones(3, 1), later)["place"], later["place"])
    assert {name: part.shape for name, part in view_space(world, SPACE).items()} == {"place": (2,), "height": (1,)}


def test_it_keeps_the_contract_and_has_nothing_to_learn():
    world = Still(SPACE, ACTIONS)
    assert "nothing to learn, so no losses" in check_world_model(world, SPACE, ACTIONS)
    batch = random_segment(SPACE, ACTIONS, 0, 4, 3)
    learned = world.loss(batch)
    assert not learned.losses and torch.equal(learned.states["place"], batch.obs["place"])
