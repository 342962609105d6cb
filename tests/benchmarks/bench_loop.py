"""Rounds per second of the main job's loop: under Lightning as a run has it, and bare.

Both collect, store, draw and learn alike in the toy world Line with our main job's sizes; the bare loop
calls the same parts without a Trainer. Evaluations and checkpoints are left out of both
(they fall outside the rounds timed). The ratio is the share of the bare speed that is left
under Lightning; ``ms_a_round`` what Lightning adds to a round.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import torch

from dreamsim.core.random import derive_seed
from dreamsim.core.run import view_space
from dreamsim.data.module import Experience
from dreamsim.envs.toy import Line
from dreamsim.imagination.explore import Noisy
from dreamsim.imagination.imagine import Believer
from dreamsim.training.joint import FitJoint
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.losses import LossFile
from dreamsim.training.objectives.policy_prior import PolicyPrior
from dreamsim.training.start import trainer_defaults
from tests.benchmarks.measure import Rates, compare, effort, publish
from worldmodels.actors import QEnsemble, SquashedGaussian
from worldmodels.decoder_free import DecoderFree

WARMUP, TIMED = 3, 10  # rounds of 16 updates each


class Clock(lightning.Callback):
    """Takes the time at the start and the end of the rounds that count."""

    def __init__(self) -> None:
        self.rounds, self.began, self.seconds = 0, (0.0, 0.0), (0.0, 0.0)

    def on_train_batch_start(self, *_: Any) -> None:
        now = (time.perf_counter(), time.process_time())
        if self.rounds == WARMUP:
            self.began = now
        if self.rounds == WARMUP + TIMED:
            self.seconds = (now[0] - self.began[0], now[1] - self.began[1])
        self.rounds += 1


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    asked = effort(__doc__, turns=7, seconds=0.0)
    rows = []
    for name, width in (("the main job's width, 128", 128), ("width 16", 16)):
        times = {party: [] for party in (under_lightning, with_losses, bare)}
        for _ in range(asked.turns):
            for party in times:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    times[party].append(party(width))
        rates = {party: Rates(*(TIMED / np.array(values)).T) for party, values in times.items()}
        for party, label in ((under_lightning, "Lightning"), (with_losses, "Lightning with its log of losses")):
            row = compare(f"{name}, {label}", rates[party], rates[bare], "rounds/s", "bare loop")
            row["ms_a_round"] = 1000 * float(np.median(1 / rates[party].wall - 1 / rates[bare].wall))
            print(f"{row['name']}: Lightning adds {row['ms_a_round']:.2f} ms a round")
            rows.append(row)
    publish("loop", rows, asked, rounds_a_turn=TIMED)


def under_lightning(width: int, logger: bool = False) -> tuple[float, float]:
    """Return wall and processor seconds of the timed rounds of a FitJoint run."""
    with tempfile.TemporaryDirectory() as folder:
        lightning.seed_everything(0, verbose=False)
        clock, model, policy, objective = Clock(), *_parts(width)
        log = [LossFile(Path(folder))] if logger else False
        trainer = lightning.Trainer(**trainer_defaults(folder, callbacks=[clock], logger=log))
        trainer.fit(FitJoint(model, policy, objective), datamodule=_experience())
    return clock.seconds


def with_losses(width: int) -> tuple[float, float]:
    """As ``under_lightning``, with the losses of each round logged to a file as the command does."""
    return under_lightning(width, logger=True)


def bare(width: int) -> tuple[float, float]:
    """Return wall and processor seconds of the same rounds without a Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        data = _experience()
        data.trainer = SimpleNamespace(default_root_dir=folder)
        data.setup("fit")
        learner, explorer = _learner(data, *_parts(width))
        policy = Believer(learner.model, explorer)
        steps, begun = 0, (0.0, 0.0)
        for number in range(WARMUP + TIMED):
            if number == WARMUP:
                begun = (time.perf_counter(), time.process_time())
            explorer.anneal(min(1.0, data.collector.env_steps / data.env_steps), steps == 0)
            data.gather(policy)
            steps += run_round(learner, data.draw(), data.replay.write).gradient_steps
        seconds = (time.perf_counter() - begun[0], time.process_time() - begun[1])
        data.teardown("fit")
    return seconds


def _experience() -> Experience:
    """Return experience of the toy world Line, whose steps cost next to nothing."""
    never, per_round = 10**9, 16 * 4
    options = {"evaluate_every": never, "evaluate_episodes": 1, "keep_every": never}
    return Experience(Line, env_steps=(WARMUP + TIMED + 1) * per_round, warmup=2 * per_round, envs=4, **options)


def _parts(width: int) -> tuple[Callable, Callable, Callable]:
    critic = functools.partial(QEnsemble, members=2, width=width, activation="relu", dropout=0.0, bins=51)
    return (
        functools.partial(DecoderFree, latent=width // 2, width=width, encoder_width=width, activation="relu", bins=51),
        functools.partial(SquashedGaussian, width=width, activation="relu"),
        functools.partial(PolicyPrior, critic=critic, imagined=3),
    )


def _learner(data: Experience, model: Callable, policy: Callable, objective: Callable) -> tuple[Learner, Noisy]:
    codec = data.codec
    made = model(codec.observation_space, codec.action_space)
    view = view_space(made, codec.observation_space)
    actor = policy(view, codec.action_space)
    learner = Learner(made, actor, objective(view, codec.action_space), seed=derive_seed(0, "learn"))
    return learner, Noisy(actor)


if __name__ == "__main__":
    main()
