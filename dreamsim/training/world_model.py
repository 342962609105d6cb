"""A world model trained on recordings alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.protocols import FitsStatistics, find_power
from dreamsim.core.types import Segment


class FitWorldModel(lightning.LightningModule):
    """Sums and logs ``model.loss``; everything else is Lightning's.

    Args:
        model: makes the world model from observation and action space.
        rate: learning rate of Adam.
        clip: largest norm of the gradient.
    """

    def __init__(
        self, model: Callable[[spaces.Dict, spaces.Space], nn.Module], rate: float = 3e-4, clip: float = 20.0
    ) -> None:
        super().__init__()
        self._make_model, self.rate, self.clip = model, rate, clip
        self.model: nn.Module | None = None

    def setup(self, stage: str) -> None:
        """Build the model for the recordings' spaces and set its statistics from them."""
        if self.model is not None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.model = self._make_model(data.codec.observation_space, data.codec.action_space)
        fit = find_power(self.model, FitsStatistics)
        if fit is not None:
            fit(data.statistics_batch())

    def training_step(self, batch: Segment, index: int) -> torch.Tensor:
        """Return the sum of the model's losses."""
        return self._loss(batch, "train")

    def validation_step(self, batch: Segment, index: int) -> torch.Tensor:
        """Log the losses on held-out episodes."""
        return self._loss(batch, "held_out")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over all parameters of the model."""
        return torch.optim.Adam(self.parameters(), self.rate, fused=True)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip the gradient to ``clip``."""
        self.clip_gradients(optimizer, self.clip, "norm")

    def _loss(self, batch: Segment, name: str) -> torch.Tensor:
        losses = self.model.loss(batch).losses
        total = torch.stack(list(losses.values())).sum()
        rows = batch.action.shape[0]
        self.log_dict({f"{name}/{key}": value for key, value in losses.items()}, batch_size=rows)
        self.log(f"{name}/loss", total, prog_bar=True, batch_size=rows)
        return total
