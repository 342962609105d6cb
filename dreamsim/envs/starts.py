"""Where a dream may begin: real first observations, or real histories that are lived through first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.protocols import WorldModel
from dreamsim.core.spaces import as_seen
from dreamsim.core.types import Before, Episode, Obs, Segment, State

Starts = Segment | Obs | Iterable[Episode]


class Table(NamedTuple):
    """Real histories to begin from."""

    obs: Obs  # (S, c + 1, ...)
    action: Tensor  # (S, c, A)
    mask: Tensor  # (S, c) bool
    before: Before | None  # beliefs (S, ...) stored at obs[:, 0]
    origin: Tensor  # (S, 2) episode and step where a dream begins, -1: unknown

    @classmethod
    def read(cls, starts: Starts, device: torch.device) -> Table:
        """Return starts of every accepted kind as one table on ``device``."""
        if isinstance(starts, Segment):
            lived = starts.mask.bool().sum(1)
            origin = torch.stack([starts.index[:, 0].long(), starts.index[:, 1].long() + lived], 1)
            table = cls(starts.obs, starts.action, starts.mask.bool(), starts.before, origin)
        else:
            obs = starts if isinstance(starts, dict) else _first_observations(starts)
            count = tree.batch_size(obs)
            nothing = torch.zeros(count, 0, 0), torch.zeros(count, 0, dtype=torch.bool)
            known = not isinstance(starts, dict)
            origin = torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.int64)], 1)
            origin = origin if known else torch.full_like(origin, -1)
            table = cls({name: value[:, None] for name, value in obs.items()}, *nothing, None, origin)
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


def from_any_step(episodes: Sequence[Episode], count: int = 4096, seed: int = 0) -> Segment:
    """Return ``count`` recorded observations, or as many as there are, drawn evenly over all steps, to begin from.

    The last observation of an episode that terminated has no future and is left out.
    """
    places = [
        (number, step)
        for number, episode in enumerate(episodes)
        for step in range(len(episode.action) + (not episode.terminated))
    ]
    if not places:
        raise ValueError("a dream needs at least one real start, got no episodes")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(places))[:count])
    index = torch.tensor([places[place] for place in drawn])
    rows = [
        {name: torch.from_numpy(as_seen(value[step : step + 1]).copy()) for name, value in episodes[number].obs.items()}
        for number, step in index.tolist()
    ]
    none = torch.zeros(len(rows), 0)
    actions = torch.zeros(len(rows), 0, episodes[0].action.shape[-1])
    return Segment(tree.stack(rows), actions, none, none.bool(), none, {}, None, index)


def _first_observations(episodes: Iterable[Episode]) -> Obs:
    rows = [
        {name: torch.from_numpy(as_seen(value[:1])[0].copy()) for name, value in episode.obs.items()}
        for episode in episodes
    ]
    if not rows:
        raise ValueError("a dream needs at least one real start, got no episodes")
    return tree.stack(rows)
