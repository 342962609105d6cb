"""What a round just lived, whole, unfinished episodes included: the data of on-policy learning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core.spaces import Scale
from dreamsim.core.types import Episode, Segment

Lengths = dict[tuple[int, int], int]
"""Steps of each unfinished episode, by its slot and its number there."""


def lengths(going: Iterable[Episode]) -> Lengths:
    """Return how far unfinished episodes are lived."""
    return {_name(episode): len(episode.action) for episode in going}


def lived_since(before: Lengths, episodes: Iterable[Episode]) -> list[Episode]:
    """Return of each episode the steps after those of ``before``; one without any is left out.

    The first observation of such a piece is the last one of before, its last one has a future unless the
    piece ``terminated``: a cut is a truncation, wherever it falls.
    """
    pieces = [_behind(episode, before.get(_name(episode), 0)) for episode in episodes]
    return [piece for piece in pieces if len(piece.action)]


def whole(pieces: Sequence[Episode], space: spaces.Dict, scale: Scale) -> Segment:
    """Return pieces as one Segment (B, T) of all of them, T being the longest; actions in [-1, 1].

    Traces are those that every piece has. ``index`` counts from -1 downwards: these windows are none of a replay's.
    """
    steps = np.array([len(piece.action) for piece in pieces])
    real = np.arange(steps.max()) < steps[:, None]

    def rows(parts: list[np.ndarray], more: int = 0) -> torch.Tensor:
        table = np.zeros((len(parts), steps.max() + more, *parts[0].shape[1:]), parts[0].dtype)
        for row, part in enumerate(parts):
            table[row, : len(part)] = part
        return torch.from_numpy(table)

    terminated = np.zeros_like(real)
    terminated[np.arange(len(pieces)), steps - 1] = [piece.terminated for piece in pieces]
    traced = set.intersection(*(set(piece.trace) for piece in pieces))
    names = -1 - torch.arange(len(pieces))
    return Segment(
        obs={name: rows([piece.obs[name] for piece in pieces], 1) for name in space.spaces},
        action=rows([scale.unit(piece.action) for piece in pieces]),
        reward=rows([np.asarray(piece.reward, np.float32) for piece in pieces]),
        terminated=torch.from_numpy(terminated),
        mask=torch.from_numpy(real.astype(np.float32)),
        trace={name: rows([piece.trace[name] for piece in pieces]) for name in sorted(traced)},
        before=None,
        index=torch.stack([names, torch.zeros_like(names)], 1),
    )


def _behind(episode: Episode, start: int) -> Episode:
    return episode._replace(
        obs={name: value[start:] for name, value in episode.obs.items()},
        action=episode.action[start:],
        reward=None if episode.reward is None else episode.reward[start:],
        time=None if episode.time is None else episode.time[start:],
        trace={name: value[start:] for name, value in episode.trace.items()},
    )


def _name(episode: Episode) -> tuple[int, int]:
    return episode.meta["slot"], episode.meta["episode"]
