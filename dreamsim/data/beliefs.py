"""What a model believed at each stored observation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.types import Before, State
from dreamsim.data.ring import allocate


class Beliefs:
    """A state for each row of a replay, and whether there is one. The last row stays zero and unknown."""

    def __init__(self, state: State, known: Tensor) -> None:
        self.state = state  # (rows, ...)
        self.known = known  # (rows,) bool

    @classmethod
    def like(cls, states: State, rows: int, device: torch.device) -> Beliefs:
        """Return ``rows`` rows without a belief, for states that come as (B, T+1, ...)."""
        state = tree.map(lambda leaf: allocate(rows, leaf.shape[2:], leaf.dtype, device), states)
        return cls(state, torch.zeros(rows, dtype=torch.bool, device=device))

    @classmethod
    def load(cls, saved: Sequence[Tensor], like: State, held: Tensor, rows: int, device: torch.device) -> Beliefs:
        """Put what ``save`` returned for the rows ``held`` (N,) back there; the tree has the shape of ``like``."""
        known = torch.zeros(rows, dtype=torch.bool, device=device)
        fields = [allocate(rows, leaf.shape[1:], leaf.dtype, device) for leaf in saved[1:]]
        for field, leaf in zip([known, *fields], saved, strict=True):
            field[held.to(device)] = leaf.to(device)
        remaining = iter(fields)
        return cls(tree.map(lambda _: next(remaining), like), known)

    def save(self, held: Tensor) -> list[Tensor]:
        """Return the rows ``held`` (N,) as plain tensors (N, ...), first whether each is known."""
        return [field[held.to(field.device)].cpu() for field in (self.known, *tree.leaves(self.state))]

    def forget(self, rows: slice) -> None:
        """Say that nothing is believed there."""
        self.known[rows] = False

    def write(self, rows: Tensor, place: Tensor, states: State) -> None:
        """Store at ``rows`` (N,) the states found at ``place`` (N,) in (B * (T+1)) of ``states`` (B, T+1, ...)."""
        rows = rows.to(self.known.device)

        def store(field: Tensor, leaf: Tensor) -> None:
            field[rows] = leaf.detach().flatten(0, 1)[place.to(leaf.device)].to(field)

        tree.map(store, self.state, states)
        self.known[rows] = True

    def read(self, rows: Tensor) -> Before:
        """Return the beliefs of ``rows`` (B,)."""
        known = self.known[rows]
        rows = torch.where(known, rows, len(self.known) - 1)
        return Before(tree.map(lambda field: field.index_select(0, rows), self.state), known)
