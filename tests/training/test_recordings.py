"""A world from recordings alone, and a policy trained inside it, on the toy world Line."""

import functools
import json
import multiprocessing
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.commands import evaluate
from dreamsim.core.run import BadRun, load
from dreamsim.core.types import Episode
from dreamsim.data.module import Experience, Recordings
from dreamsim.data.store import Store
from dreamsim.data.windows import split
from dreamsim.envs.toy import Line
from dreamsim.evaluation.episodes import evaluate_policy
from dreamsim.training.objectives.policy_prior import PolicyPrior
from dreamsim.training.policy import FitPolicy
from dreamsim.training.start import trainer_defaults
from dreamsim.training.world_model import FitWorldModel
from tests.training.conftest import CRITIC, run, small_experience, small_joint
from worldmodels.actors import SquashedGaussian
from worldmodels.decoder_free import DecoderFree

WORLD = functools.partial(DecoderFree, latent=16, width=32, encoder_width=32, bins=21, low=-3.0, high=5.0, decoder=16)


def fit(folder, module, data, resume=False):
    folder.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_pretraining_goes_on_to_the_same_bits(lived, world, tmp_path, workers):
    """In mid-epoch, whatever workers had read ahead: what was drawn before is not drawn again, nothing is missed."""
    drawn = []

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            drawn.extend(map(tuple, batch.index.tolist()))
            trainer.should_stop = trainer.should_stop or (index == 149 and not resume)

    def data() -> Recordings:
        return Recordings(str(lived), batches=300, batch=32, env=Line, workers=workers)

    for resume in (False, True):
        lightning.seed_everything(3, verbose=False)
        trainer = lightning.Trainer(**trainer_defaults(tmp_path, callbacks=[Stop()]))
        module, checkpoint = FitWorldModel(WORLD, rate=3e-3, keep_every=100), str(tmp_path / "last.ckpt")
        trainer.fit(module, datamodule=data(), ckpt_path=checkpoint if resume else None, weights_only=True)
        if not resume:  # what came after the last checkpoint is drawn again
            assert trainer.global_step == 150
            del drawn[100 * 32 :]
    windows = module.recordings.windows
    assert drawn == [tuple(row) for number in range(300) for row in windows[number].index.tolist()]
    total = windows.coverage().windows
    assert 100 * 32 % total and len(set(drawn[:total])) == total  # an epoch is every window once
    one, two = load(world).model.state_dict(), load(tmp_path).model.state_dict()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_world_alone_is_judged_by_the_recordings_it_held_out(world, capsys):
    evaluate(str(world), episodes=4, film=False)
    told = json.loads((world / "report.json").read_text())
    said = capsys.readouterr().out
    assert "as recorded, held out from training" in said and "No environment was stepped" in said
    assert "No episode terminated" in said and "Its summed rewards" in said
    about = load(world).about
    numbers = split(about["episodes"], 10, 3).held_out[:4]
    store = Store(about["recordings"])
    returns = [float(np.sum(store.episode(int(number)).reward, dtype=np.float64)) for number in numbers]
    assert told["outcome"]["returns"] == pytest.approx(returns)
    drift = told["drift"]
    assert drift["horizons"][0] == 1 and drift["observation"]["observation"]["model"][0] < 0.5
    assert len(drift["rewards"]["step"]) == len(drift["ends"]["accuracy"]) == len(drift["horizons"])
    assert all(share == 1.0 for share in drift["ends"]["accuracy"])


def test_forecasts_of_ends_are_judged_by_recordings_that_end(tmp_path, capsys):
    """Corridor ends for good in its last cell, which a world learns from its recordings."""
    (tmp_path / "lived").mkdir()
    run(tmp_path / "lived", module=small_joint(discrete=True), data=small_experience(True, env_steps=1600, updates=0.0))
    model = functools.partial(WORLD, episodic=True)
    data = Recordings(str(tmp_path / "lived" / "store"), batches=200, batch=32)
    fit(tmp_path / "world", FitWorldModel(model, rate=3e-3), data)
    evaluate(str(tmp_path / "world"), episodes=8, film=False)
    ends = json.loads((tmp_path / "world" / "report.json").read_text())["drift"]["ends"]
    assert ends["terminations"] > 5 and ends["foreseen"] > 0.8 and ends["false_alarms"] < 0.1
    assert "terminations happened; it foresaw" in capsys.readouterr().out


def test_a_policy_without_an_environment_is_judged_by_the_world_s_recordings(lived, tmp_path, capsys):
    """Its world names none, and the policy's own split is another."""
    fit(tmp_path / "world", FitWorldModel(WORLD), Recordings(str(lived), batches=2, batch=8))
    objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=2)
    module = FitPolicy(str(tmp_path / "world"), functools.partial(SquashedGaussian, width=16), objective)
    fit(tmp_path / "policy", module, Recordings(str(lived), batches=2, batch=8, hold_out=3))
    evaluate(str(tmp_path / "policy"), episodes=3, film=False)
    assert (tmp_path / "policy" / "report.html").is_file() and "held out from training" in capsys.readouterr().out
    with pytest.raises(BadRun, match="names no environment"):
        _ = load(tmp_path / "policy").make_env


def test_recordings_larger_than_what_may_stay_in_memory_are_learned_from(tmp_path):
    """48 MiB of images, of which a process that learns keeps 12, or all: statistics, training and held-out losses."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (64, 64, 3), np.uint8)})
    with Store.create(tmp_path / "store", space, spaces.Box(-1.0, 1.0, (1,))) as store:
        for number in range(20):
            image = np.random.default_rng(number).integers(0, 256, (201, 3, 64, 64), np.uint8)
            action = np.zeros((200, 1), np.float32)
            store.append(Episode({"image": image}, action, np.zeros(200, np.float32), False, None, {}, {}))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        most = [pool.apply(learn_within, (str(tmp_path), memory)) for memory in (12, 0)]
    assert most[0] < 12.5 * 2**20 and most[1] > 45 * 2**20


def learn_within(folder: str, memory: int) -> int:
    """Learn from folder/store; return the most bytes of its files seen in memory after a batch."""
    files = f"{folder}/store/blocks"

    def resident() -> int:
        found, inside = 0, False
        with open("/proc/self/smaps") as maps:
            for line in maps:
                if "-" in line.split(maxsplit=1)[0]:
                    inside = files in line
                elif inside and line.startswith("Rss:"):
                    found += int(line.split()[1]) * 1024
        return found

    seen = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            seen.append(resident())

        def on_validation_batch_end(self, trainer, module, outputs, batch, index):
            seen.append(resident())

    model = functools.partial(WORLD, channels=2, shift=2, decoder=0)
    data = Recordings(f"{folder}/store", batches=8, batch=16, hold_out=20, memory=memory)
    kept = Path(folder) / f"run{memory}"
    kept.mkdir()
    settings = trainer_defaults(kept, callbacks=[Watch()])
    lightning.Trainer(**settings).fit(FitWorldModel(model), datamodule=data)
    assert len(seen) > 8
    return max(seen)


def test_a_policy_is_trained_in_the_frozen_world_and_carried_to_reality(lived, world, tmp_path):
    objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=3, rate=3e-3, lam=1.0, target_rate=0.05)
    module = FitPolicy(str(world), functools.partial(SquashedGaussian, width=16), objective, average=0.9)
    fit(tmp_path, module, Recordings(str(lived), batches=300, batch=32))
    trained = load(tmp_path)
    assert all(torch.equal(v, trained.model.state_dict()[n]) for n, v in load(world).model.state_dict().items())
    outcome = evaluate_policy(trained.make_env, trained.actor(), 4, 0)
    assert np.mean(outcome.returns) > 14  # standing still gives 10 on average, the best possible is about 18


class DrawnLine(Line):
    """Line as a picture: a bright bar at the position, all else dark."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def reset(self, **options):
        position, info = super().reset(**options)
        return self._drawn(position), info

    def step(self, action):
        position, *rest = super().step(action)
        return self._drawn(position), *rest

    def _drawn(self, position: np.ndarray) -> np.ndarray:
        distance = np.abs(np.arange(16) - 7.5 * (1 + position[0]))
        row = (255 * np.clip(1.5 - distance, 0, 1)).astype(np.uint8)
        return np.broadcast_to(row[None, :, None], (16, 16, 1)).copy()


def test_from_pictures_alone_to_a_dream_that_is_right_and_a_policy_beside_reality(tmp_path):
    """Its rewards are foreseen on episodes it held out; a policy trained in it is judged in the real environment."""
    experience = Experience(DrawnLine, env_steps=2400, warmup=2399, envs=2, vector_steps=8, updates=0.0)
    (tmp_path / "lived").mkdir()
    run(tmp_path / "lived", data=experience)
    lived = str(tmp_path / "lived" / "store")
    model = functools.partial(WORLD, decoder=0, channels=8, reward=1.0)
    fit(tmp_path / "world", FitWorldModel(model, rate=3e-3), Recordings(lived, batches=250, batch=32, env=DrawnLine))
    evaluate(str(tmp_path / "world"), episodes=4, film=False)
    errors = json.loads((tmp_path / "world" / "report.json").read_text())["drift"]["rewards"]
    assert errors["total"][3] < 0.5 * errors["constant"][3]  # over eight steps
    objective = functools.partial(PolicyPrior, critic=CRITIC, imagined=3)
    module = FitPolicy(str(tmp_path / "world"), functools.partial(SquashedGaussian, width=16), objective)
    fit(tmp_path / "policy", module, Recordings(lived, batches=3, batch=8))
    evaluate(str(tmp_path / "policy"), episodes=2, film=False)
    told = json.loads((tmp_path / "policy" / "report.json").read_text())
    assert len(told["outcome"]["returns"]) == 2 and told["beside"][-1]["horizon"] == 20


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
