"""A recording of someone else's becomes a world model by its path alone, and the world is judged by it."""

import functools

import lightning
import numpy as np
import torch

from dreamsim.commands import evaluate
from dreamsim.core.run import load
from dreamsim.data.module import Recordings
from dreamsim.data.store import Store
from dreamsim.envs.starts import from_any_step
from dreamsim.training.start import trainer_defaults
from dreamsim.training.world_model import FitWorldModel
from tests.data.formats.recorded import traces
from worldmodels.decoder_free import DecoderFree

WORLD = functools.partial(DecoderFree, latent=16, width=32, encoder_width=32, bins=21, low=-3.0, high=5.0, decoder=16)


def test_from_a_path_to_a_judged_world(tmp_path, capsys):
    random, lines = np.random.default_rng(0), []
    for _ in range(12):  # numbers that float32 does not hold exactly
        pushes = random.uniform(-1, 1, 8)
        places = np.concatenate([[0.0], np.cumsum(pushes)])
        lines.append({"observations": places[:, None].tolist(), "actions": pushes.tolist(), "rewards": pushes.tolist()})
    source, run = traces(tmp_path / "walks.jsonl", lines), tmp_path / "run"
    run.mkdir()
    lightning.seed_everything(3, verbose=False)
    data = Recordings(str(source), batches=20, batch=16)
    lightning.Trainer(**trainer_defaults(run)).fit(FitWorldModel(WORLD, rate=3e-3, keep_every=10), datamodule=data)
    assert "12 episodes, 96 steps" in capsys.readouterr().out
    store = Store(data.data)
    assert data.data.parent == tmp_path and store[0].obs["observation"].dtype == np.float64
    evaluate(str(run))
    assert (run / "report.html").is_file()
    starts = from_any_step(store[:], 4)
    assert starts.obs["observation"].dtype == torch.float32
    load(run).model.start({name: value[:, 0] for name, value in starts.obs.items()})
