"""A small run on the toy world Line, whose parts the tests of this folder share."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch

from dreamsim.data.module import Experience
from dreamsim.envs.toy import Corridor, Line
from dreamsim.training.joint import FitJoint
from dreamsim.training.objectives.policy_prior import PolicyPrior
from dreamsim.training.start import trainer_defaults
from worldmodels.actors import Categorical, QEnsemble, SquashedGaussian
from worldmodels.decoder_free import DecoderFree

CRITIC = functools.partial(QEnsemble, members=2, width=16, dropout=0.0, bins=21, low=-3.0, high=5.0)


def small_joint(discrete: bool = False, **options: Any) -> FitJoint:
    """Return a joint run of sixteen-wide networks."""
    return FitJoint(
        functools.partial(
            DecoderFree, latent=16, width=16, encoder_width=16, bins=21, low=-3.0, high=5.0, episodic=discrete
        ),
        functools.partial(Categorical if discrete else SquashedGaussian, width=16),
        functools.partial(PolicyPrior, critic=CRITIC, imagined=2, rate=1e-3),
        **options,
    )


def small_experience(discrete: bool = False, **options: Any) -> Experience:
    """Return experience of Line (20 steps an episode) or Corridor, a round being 8 vector steps of 2."""
    chosen = {"env_steps": 320, "warmup": 80, "envs": 2, "vector_steps": 8, "batch": 8, "keep_every": 160, **options}
    chosen = {"evaluate_every": 160, "evaluate_episodes": 2, **chosen}
    return Experience(Corridor if discrete else Line, **chosen)


def run(
    folder: Path, *, seed: int = 0, resume: bool = False, module: Any = None, data: Any = None, **trainer: Any
) -> FitJoint:
    """Train in ``folder`` and return the module."""
    lightning.seed_everything(seed, verbose=False)
    module, data = module or small_joint(), data or small_experience()
    made = lightning.Trainer(**trainer_defaults(folder, **trainer))
    made.fit(module, datamodule=data, ckpt_path=str(folder / "last.ckpt") if resume else None, weights_only=True)
    return module


def weights(module: FitJoint) -> dict[str, torch.Tensor]:
    """Return every number a run learned."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    return state | {f"steady.{name}": value.clone() for name, value in module.learner.steady.state_dict().items()}


def same(one: dict, two: dict) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class HalfWay(Experience):
    """Offers only the rounds up to the checkpoint at half time, and two more that are lost."""

    @property
    def rounds(self) -> int:
        return 12


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FitJoint]:
    """One uninterrupted run from seed 0."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(folder)
