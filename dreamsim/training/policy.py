"""A policy improved inside a world model that stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from gymnasium import spaces
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn

from dreamsim.core.random import derive_seed
from dreamsim.core.run import describe, load, save, view_space
from dreamsim.core.types import Segment
from dreamsim.data.module import Recordings
from dreamsim.training.callbacks import Keep
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.start import refuse_finished, refuse_many


class FitPolicy(lightning.LightningModule):
    """Trains ``policy`` by ``objective`` in the frozen model of a run, from starts in recordings.

    Args:
        world: run folder of the pretrained world model.
        policy: makes the policy from the model's view space and the action space.
        objective: makes what judges and improves the policy, from the same two spaces.
        average: share kept of the averaged policy at each gradient step; that policy is saved.
        keep_every: batches between checkpoints.
    """

    def __init__(
        self,
        world: str,
        policy: Callable[[spaces.Dict, spaces.Space], nn.Module],
        objective: Callable[[spaces.Dict, spaces.Space], nn.Module],
        average: float = 0.998,
        keep_every: int = 1000,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.world, self.average, self.keep_every = world, average, keep_every
        self._make_policy, self._make_objective = policy, objective
        self.gradient_steps, self.imagined_steps = 0, 0
        self.model: nn.Module | None = None

    def setup(self, stage: str) -> None:
        """Load the world and build policy and objective on its view."""
        if self.model is not None:
            return
        refuse_many(self.trainer)
        run = load(self.world)
        self.run, self.model = run, run.model.requires_grad_(False)
        view = view_space(run.model, run.codec.observation_space)
        self.policy = self._make_policy(view, run.codec.action_space)
        self.objective = self._make_objective(view, run.codec.action_space)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the learner and return its optimiser."""
        seed = derive_seed(torch.initial_seed() & 0x7FFFFFFF, "learn")
        self.learner = Learner(
            self.model,
            self.policy,
            self.objective,
            learn_model=False,
            average=self.average,
            seed=seed,
            device=self.device,
        )
        return self.learner.optimiser

    def training_step(self, batch: Segment, index: int) -> None:
        """Take one gradient step from the starts of a batch."""
        report = run_round(self.learner, [batch])
        self.recordings.used = index + 1
        self.gradient_steps += report.gradient_steps
        self.imagined_steps += report.imagined_steps
        self.log_dict({f"train/{name}": value for name, value in report.metrics.items()}, batch_size=len(batch.action))

    @property
    def recordings(self) -> Recordings:
        """The run's data module."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, Recordings):
            raise TypeError(f"FitPolicy starts from dreamsim.data.module.Recordings, got {type(data).__name__}")
        return data

    @property
    def progress(self) -> float:
        """Share of the batches that are used."""
        return self.recordings.used / self.recordings.batches

    def keep_now(self) -> bool:
        """Say whether a checkpoint is due."""
        return self.recordings.used % self.keep_every == 0

    def configure_callbacks(self) -> list[lightning.Callback]:
        """Keep checkpoints and show the progress."""
        return [Keep(), TQDMProgressBar(refresh_rate=20)]

    def on_train_end(self) -> None:
        """Say what was made and what to do next."""
        folder = self.trainer.default_root_dir
        print(f"\n{folder}: policy of {self.gradient_steps:,} gradient steps, {self.imagined_steps:,} imagined steps")
        print(f"next:  dreamsim evaluate {folder}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add counters, random numbers and the averaged policy."""
        checkpoint["dreamsim"] = {
            "gradient_steps": self.gradient_steps,
            "imagined_steps": self.imagined_steps,
            "used": self.recordings.used,
            "stream": self.learner.stream.state_dict(),
            "steady": dict(self.learner.steady.state_dict()),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the counters; the learner gets its part when it exists."""
        self._saved = checkpoint["dreamsim"]
        self.gradient_steps, self.imagined_steps = self._saved["gradient_steps"], self._saved["imagined_steps"]
        self.recordings.used = self._saved["used"]
        refuse_finished(self.recordings.used, self.recordings.batches)

    def on_fit_start(self) -> None:
        """Give a resumed learner its random numbers and averaged policy."""
        saved = self.__dict__.pop("_saved", None)
        if saved is not None:
            self.learner.stream.load_state_dict(saved["stream"])
            self.learner.steady.load_state_dict(saved["steady"])

    def save_run(self, folder: Path, about: dict[str, Any]) -> None:
        """Write ``run.json`` and ``model.safetensors``; the environment is the world's, where it names one."""
        parts = {name: part for name, part in self.run.parts.items() if name in ("model", "environment")}
        parts |= {"policy": describe(self._make_policy), "objective": describe(self._make_objective)}
        codec = self.run.codec
        counters = {"gradient_steps": self.gradient_steps, "imagined_steps": self.imagined_steps, "env_steps": 0}
        save(
            folder,
            model=self.model,
            policy=self.learner.steady,
            observation_space=codec.raw_observation_space,
            action_space=codec.raw_action_space,
            parts=parts,
            about={"world": self.world, "seed": torch.initial_seed() & 0x7FFFFFFF, **counters, **about},
        )
