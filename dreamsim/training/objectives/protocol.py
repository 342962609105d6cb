"""What an objective is: the part of a run that judges behaviour and improves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from dreamsim.core.types import Learned, Segment


class Judged(NamedTuple):
    """What ``Objective.loss`` returns."""

    losses: dict[str, Tensor]  # weighted scalars, summed by the caller with those of the model
    metrics: dict[str, Tensor]  # scalars to show, without graph
    imagined: int  # imagined steps that this call took


class Objective(Protocol):
    """Owns critics, target copies, scales. Also an ``nn.Module``, so that a checkpoint is complete."""

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups.

        Each has ``params``, ``lr`` and ``name``; groups that share ``clip_name`` are clipped
        together to the gradient norm ``clip``. ``adaptive_clip`` clips each tensor of a group to
        that share of its own norm.
        """

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Judge a batch. ``learned.states`` carry their graph: losses may shape the model."""

    def settle(self) -> None:
        """Follow an optimiser step: target copies, running scales."""


class Equips(Protocol):
    """Power: lend a policy what the objective knows of values, for planners that look at where plans end."""

    def equip(self, policy: nn.Module, make: Callable) -> tuple[nn.Module, Callable]:
        """Return ``policy`` with the power ``Values``, and a maker of such a policy from ``make``, which made it."""


class Unfolds(Protocol):
    """Power: take several gradient steps on one batch, such as passes over steps that are used only once."""

    def unfold(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Iterator[Segment]:
        """Yield what each gradient step learns from; ``learned`` holds the batch's beliefs, without graph."""
