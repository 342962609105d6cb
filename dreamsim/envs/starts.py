"""Where a dream may begin: real first observations, or real histories that are lived through first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.protocols import WorldModel
from dreamsim.core.types import Before, Episode, Obs, Segment, State

Starts = Segment | Obs | Iterable[Episode]


class Table(NamedTuple):
    """Real histories to begin from."""

    obs: Obs  # (S, c + 1, ...)
    action: Tensor  # (S, c, A)
    mask: Tensor  # (S, c) bool
    before: Before | None  # beliefs (S, ...) stored at obs[:, 0]

    @classmethod
    def read(cls, starts: Starts, device: torch.device) -> Table:
        """Return starts of every accepted kind as one table on ``device``."""
        if isinstance(starts, Segment):
            table = cls(starts.obs, starts.action, starts.mask.bool(), starts.before)
        else:
            obs = starts if isinstance(starts, dict) else _first_observations(starts)
            count = tree.batch_size(obs)
            nothing = torch.zeros(count, 0, 0), torch.zeros(count, 0, dtype=torch.bool)
            table = cls({name: value[:, None] for name, value in obs.items()}, *nothing, None)
        if not table.size:
            raise ValueError("a dream needs at least one real start, got none")
        return tree.to(table, device)

    def action_space(self) -> spaces.Box:
        """Return Box(-1, 1, (A,)) as long as the actions of the histories."""
        if not self.action.shape[2]:
            raise ValueError("these starts hold no actions; give the real environment's codec to the Dream")
        return spaces.Box(-1.0, 1.0, (self.action.shape[2],), np.float32)

    @property
    def size(self) -> int:
        """The number of starts S."""
        return len(self.mask)

    def believe(self, model: WorldModel, index: Tensor) -> State:
        """Return the beliefs (k, ...) after the histories of ``index`` (k,)."""
        obs = tree.select(self.obs, index)
        first = tree.select(obs, (slice(None), 0))
        state = model.start(first)
        if self.before is not None:
            state = tree.select(self.before, index).over(state)
        for time in range(self.mask.shape[1]):
            seen = tree.select(obs, (slice(None), time + 1))
            updated = model.update(state, self.action[index, time], seen)
            real = self.mask[index, time]
            state = updated if bool(real.all()) else tree.where(real, updated, state)
        return state


def _first_observations(episodes: Iterable[Episode]) -> Obs:
    rows = [{name: torch.from_numpy(value[0].copy()) for name, value in episode.obs.items()} for episode in episodes]
    if not rows:
        raise ValueError("a dream needs at least one real start, got no episodes")
    return tree.stack(rows)
