"""A world from recordings alone, and a policy trained inside it, on the toy world Line."""

import functools

import lightning
import numpy as np
import pytest
import torch

from dreamsim.core.run import BadRun, load
from dreamsim.data.module import Recordings
from dreamsim.envs.toy import Line
from dreamsim.evaluation.episodes import evaluate_policy
from dreamsim.training.objectives.policy_prior import PolicyPrior
from dreamsim.training.policy import FitPolicy
from dreamsim.training.start import trainer_defaults
from dreamsim.training.world_model import FitWorldModel
from tests.training.conftest import CRITIC, run, small_experience
from worldmodels.actors import SquashedGaussian
from worldmodels.decoder_free import DecoderFree

WORLD = functools.partial(DecoderFree, latent=16, width=32, encoder_width=32, bins=21, low=-3.0, high=5.0, decoder=16)


def fit(folder, module, data, resume=False):
    lightning.seed_everything(3, verbose=False)
    made = lightning.Trainer(**trainer_defaults(folder))
    made.fit(module, datamodule=data, ckpt_path=str(folder / "last.ckpt") if resume else None, weights_only=True)
    return module


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A store of random episodes, told from learning by a rate of no updates."""
    folder = tmp_path_factory.mktemp("lived")
    run(folder, data=small_experience(env_steps=2400, updates=0.0))
    return folder / "store"


@pytest.fixture(scope="module")
def world(lived, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    fit(
        folder, FitWorldModel(WORLD, rate=3e-3, keep_every=100), Recordings(str(lived), batches=300, batch=32, env=Line)
    )
    return folder


def test_a_world_is_learned_from_recordings_and_kept_without_a_policy(world):
    loaded = load(world)
    start = torch.linspace(-0.8, 0.8, 9)[:, None]
    state = loaded.model.start({"observation": start})
    _, reward, _ = loaded.model.step(state, torch.zeros(9, 1))
    real = 1 - (start[:, 0] - 0.5).abs()
    assert (reward - real).abs().mean() < 0.15
    with pytest.raises(BadRun, match="no policy"):
        loaded.actor()


def test_a_stopped_pretraining_goes_on_to_the_same_bits(lived, world, tmp_path):
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            trainer.should_stop = trainer.should_stop or index == 149

    lightning.seed_everything(3, verbose=False)
    data = Recordings(str(lived), batches=300, batch=32, env=Line)
    first = lightning.Trainer(**trainer_defaults(tmp_path, callbacks=[Stop()]))
    first.fit(FitWorldModel(WORLD, rate=3e-3, keep_every=100), datamodule=data)
    resumed = Recordings(str(lived), batches=300, batch=32, env=Line)
    fit(tmp_path, FitWorldModel(WORLD, rate=3e-3, keep_every=100), resumed, resume=True)
    one, two = load(world).model.state_dict(), load(tmp_path).model.state_dict()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_policy_is_trained_in_the_frozen_world_and_carried_to_reality(lived, world, tmp_path):
    objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=3, rate=3e-3, lam=1.0, target_rate=0.05)
    module = FitPolicy(str(world), functools.partial(SquashedGaussian, width=16), objective, average=0.9)
    fit(tmp_path, module, Recordings(str(lived), batches=300, batch=32))
    trained = load(tmp_path)
    assert all(torch.equal(v, trained.model.state_dict()[n]) for n, v in load(world).model.state_dict().items())
    outcome = evaluate_policy(trained.make_env, trained.actor(), 4, 0)
    assert np.mean(outcome.returns) > 14  # standing still gives 10 on average, the best possible is about 18


def test_a_joint_run_starts_from_a_pretrained_world(world, tmp_path):
    from dreamsim.training.joint import FitJoint

    module = FitJoint(
        WORLD,
        functools.partial(SquashedGaussian, width=16),
        functools.partial(PolicyPrior, critic=CRITIC, imagined=2),
        source=str(world),
    )
    run(tmp_path, module=module, data=small_experience(env_steps=64, warmup=0, updates=0.0))
    stored = load(world).model.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in module.model.state_dict().items())
