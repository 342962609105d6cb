"""Windows of real episodes as one padded batch, from which dreams begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamsim.core.spaces import Scale, as_seen
from dreamsim.core.types import Episode, Obs


class Cut(NamedTuple):
    """One window: the ``context`` real steps begin at ``offset`` of episode ``episode``."""

    episode: int
    offset: int
    left: int  # real steps after the context


class Batch(NamedTuple):
    """Windows side by side; beyond a window's end observations repeat and the rest is zero."""

    obs: Obs  # (B, T+1, ...)
    action: Tensor  # (B, T, A) in [-1, 1]
    reward: Tensor | None  # (B, T)
    left: Tensor  # (B,) real steps after the context
    terminated: Tensor  # (B,) bool: the last of these steps ended the episode for good


def choose(episodes: Sequence[Episode], context: int, count: int, seed: int) -> tuple[list[Cut], int]:
    """Return at most ``count`` windows and the number of episodes too short for one.

    First one from the beginning of every episode (of a random choice of them if they are
    more), because these reach furthest; then others at random, none twice.
    """
    if context < 1:
        raise ValueError(
            f"context must be at least 1 real step, got {context}: the linear baseline needs two observations"
        )
    lengths = [len(episode.action) for episode in episodes]
    first = [Cut(i, 0, length - context) for i, length in enumerate(lengths) if length > context]
    if not first:
        raise ValueError(
            f"none of {len(episodes)} episodes is longer than the context of {context} steps "
            f"(longest: {max(lengths, default=0)}); choose a shorter context"
        )
    random = np.random.default_rng(seed)
    if len(first) > count:
        first = [first[i] for i in sorted(random.choice(len(first), count, replace=False))]
    others = [Cut(i, t, length - context - t) for i, length in enumerate(lengths) for t in range(1, length - context)]
    more = min(count - len(first), len(others))
    extra = random.choice(len(others), more, replace=False).tolist() if more else []
    return first + [others[i] for i in sorted(extra)], sum(length <= context for length in lengths)


def longest(cuts: Sequence[Cut]) -> int:
    """Return the most real steps that any window has after its context."""
    return max(cut.left for cut in cuts)


def take(
    episodes: Sequence[Episode], cuts: Sequence[Cut], length: int, scale: Scale, device: torch.device | str = "cpu"
) -> Batch:
    """Return windows of T = ``length`` steps, padded where an episode ends before."""
    chosen = [episodes[cut.episode] for cut in cuts]
    context = [len(episode.action) - cut.offset - cut.left for episode, cut in zip(chosen, cuts, strict=True)]
    obs = {
        name: np.stack([_held(e.obs[name][c.offset :], length + 1) for e, c in zip(chosen, cuts, strict=True)])
        for name in chosen[0].obs
    }
    action = np.stack([_zeros(scale.unit(e.action[c.offset :]), length) for e, c in zip(chosen, cuts, strict=True)])
    rewards = [_zeros(e.reward[c.offset :], length) for e, c in zip(chosen, cuts, strict=True) if e.reward is not None]
    reward = np.stack(rewards) if len(rewards) == len(chosen) else None
    left = np.minimum([cut.left for cut in cuts], length - np.array(context))
    ended = [e.terminated and cut.left == kept for e, cut, kept in zip(chosen, cuts, left, strict=True)]
    return Batch(
        {name: torch.from_numpy(as_seen(value)).to(device) for name, value in obs.items()},
        torch.from_numpy(action.astype(np.float32)).to(device),
        None if reward is None else torch.from_numpy(reward.astype(np.float32)).to(device),
        torch.from_numpy(left).to(device),
        torch.tensor(ended, device=device),
    )


def spreads(episodes: Sequence[Episode], observation_space: spaces.Dict) -> dict[str, Tensor]:
    """Return the standard deviation of every field over the episodes, by component; text has none.

    All pixels of an image share one. A component that hardly varies takes a hundredth of
    its field's mean deviation, a field that does not vary at all takes 1: no division by zero.
    """
    found = {}
    for name, space in observation_space.spaces.items():
        if is_text(space):
            continue
        centre = np.asarray(episodes[0].obs[name][0], np.float64)
        count, total, squares = 0, np.zeros_like(centre), np.zeros_like(centre)
        for episode in episodes:
            values = episode.obs[name].astype(np.float64) - centre
            count, total, squares = count + len(values), total + values.sum(0), squares + np.square(values).sum(0)
        if space.dtype == np.uint8:
            total, squares = np.full_like(total, total.mean()), np.full_like(squares, squares.mean())
        deviation = np.sqrt((squares / count - np.square(total / count)).clip(0))
        usual = float(np.sqrt(np.square(deviation).mean()))
        floor = usual / 100 if usual > 1e-9 else 1.0
        found[name] = torch.from_numpy(np.maximum(deviation, floor)).float()
    return found


def is_text(space: spaces.Space) -> bool:
    """Say whether a field of a codec's observation space holds text."""
    return space.dtype == np.uint8 and len(space.shape or ()) == 1


def _held(rows: np.ndarray, length: int) -> np.ndarray:
    rows = rows[:length]
    return np.concatenate([rows, np.repeat(rows[-1:], length - len(rows), 0)]) if len(rows) < length else rows


def _zeros(rows: np.ndarray, length: int) -> np.ndarray:
    rows = rows[:length]
    return np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)])
