"""A world model trained on recordings alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from gymnasium import spaces
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn

from dreamsim.core.protocols import FitsStatistics, Revises, find_power
from dreamsim.core.run import describe, save
from dreamsim.core.types import Segment
from dreamsim.data.module import Recordings
from dreamsim.training.callbacks import Keep
from dreamsim.training.start import refuse_finished, refuse_many


class FitWorldModel(lightning.LightningModule):
    """Sums and logs ``model.loss``; everything else is Lightning's.

    Args:
        model: makes the world model from observation and action space.
        rate: learning rate of AdamW.
        decay: its weight decay.
        warm: share of the batches over which the rate rises to ``rate``, before it falls as a cosine to 0;
            None: it stays as it is.
        clip: largest norm of the gradient.
        keep_every: batches between checkpoints.
    """

    def __init__(
        self,
        model: Callable[[spaces.Dict, spaces.Space], nn.Module],
        rate: float = 3e-4,
        decay: float = 0.0,
        warm: float | None = None,
        clip: float = 20.0,
        keep_every: int = 1000,
    ) -> None:
        super().__init__()
        if warm is not None and not 0 < warm < 1:
            raise ValueError(f"warm is a share of the batches between 0 and 1, got {warm}")
        self._make_model, self.rate, self.clip, self.keep_every = model, rate, clip, keep_every
        self.decay, self.warm = decay, warm
        self.model: nn.Module | None = None

    @property
    def recordings(self) -> Recordings:
        """The run's data module."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, Recordings):
            raise TypeError(f"FitWorldModel learns from dreamsim.data.module.Recordings, got {type(data).__name__}")
        return data

    def setup(self, stage: str) -> None:
        """Build the model for the recordings' spaces and set its statistics from them."""
        if self.model is not None:
            return
        refuse_many(self.trainer)
        data = self.recordings
        self.model = self._make_model(data.codec.observation_space, data.codec.action_space)
        fit = find_power(self.model, FitsStatistics)
        if fit is not None:
            fit(data.statistics_batch())

    def configure_callbacks(self) -> list[lightning.Callback]:
        """Keep checkpoints and show the progress."""
        return [Keep(), TQDMProgressBar(refresh_rate=20)]

    def training_step(self, batch: Segment, index: int) -> torch.Tensor:
        """Return the sum of the model's losses."""
        self.recordings.used = index + 1
        revise = find_power(self.model, Revises)
        if revise is not None and (self.keep_now() or self.progress >= 1):
            revise(self.recordings.statistics_batch())
        return self._loss(batch, "train")

    def validation_step(self, batch: Segment, index: int) -> torch.Tensor:
        """Log the losses on held-out episodes."""
        return self._loss(batch, "held_out")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW over the parameters of the model that learn."""
        learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(learning, self.rate, weight_decay=self.decay, fused=True)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the rate its place in the run."""
        if self.warm is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.rate * warmed(self.progress, self.warm)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip the gradient to ``clip``."""
        self.clip_gradients(optimizer, self.clip, "norm")

    @property
    def progress(self) -> float:
        """Share of the batches that are used."""
        return self.recordings.used / self.recordings.batches

    def keep_now(self) -> bool:
        """Say whether a checkpoint is due."""
        return self.recordings.used % self.keep_every == 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add how many batches are used and the random numbers of the model."""
        checkpoint["dreamsim"] = {"used": self.recordings.used, "global_random": torch.get_rng_state()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on behind the batches that are used."""
        self.recordings.used = checkpoint["dreamsim"]["used"]
        refuse_finished(self.recordings.used, self.recordings.batches)
        self._random = checkpoint["dreamsim"]["global_random"]

    def on_train_start(self) -> None:
        """Give a resumed run its random numbers."""
        if "_random" in self.__dict__:
            torch.set_rng_state(self.__dict__.pop("_random").cpu())

    def save_run(self, folder: Path, about: dict[str, Any]) -> None:
        """Write ``run.json`` and ``model.safetensors``: a world without a policy."""
        data = self.recordings
        save(
            folder,
            model=self.model,
            policy=None,
            observation_space=data.codec.raw_observation_space,
            action_space=data.codec.raw_action_space,
            parts={"model": describe(self._make_model)} | data.environment_part(),
            about={**data.origin(), "gradient_steps": data.used, **about},
        )

    def on_train_end(self) -> None:
        """Say what was made and what to do next."""
        folder = self.trainer.default_root_dir
        losses = {n: float(v) for n, v in self.trainer.callback_metrics.items() if n.startswith("held_out/")}
        told = ", ".join(f"{name.removeprefix('held_out/')} {value:.4g}" for name, value in losses.items())
        print(f"\n{folder}: world model of {self.recordings.used:,} gradient steps; held-out losses: {told or 'none'}")
        print(f"next:  dreamsim evaluate {folder}")
        print(f"       dreamsim fit --config POLICY.yaml --model.init_args.world {folder}  # see configs/policy")

    def _loss(self, batch: Segment, name: str) -> torch.Tensor:
        learned = self.model.loss(batch)
        losses = learned.losses
        total = torch.stack(list(losses.values())).sum()
        rows = batch.action.shape[0]
        self.log_dict({f"{name}/{key}": value for key, value in {**losses, **learned.metrics}.items()}, batch_size=rows)
        self.log(f"{name}/loss", total, prog_bar=True, batch_size=rows)
        return total


def warmed(progress: float, warm: float) -> float:
    """Return the share of a rate at ``progress`` in [0, 1]: a line from 0 to 1 at ``warm``, then half a cosine to 0."""
    if progress < warm:
        return progress / warm
    return 0.5 * (1 + math.cos(math.pi * (progress - warm) / (1 - warm)))
