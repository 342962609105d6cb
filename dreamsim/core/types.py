"""The data every part of dreamsim exchanges, and the one rule of time.

The alignment rule. Step t reads ``obs[t]``, takes ``action[t]``, and receives
``reward[t]`` and ``obs[t + 1]``. Observation fields are one longer than step
fields. Nothing in this project counts time in another way.

Letters used for shapes everywhere: B batch, T real steps, H imagined steps,
S candidate plans, A action, F features, C.H.W image, L tokens, K context frames.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from dreamsim.core import tree

Obs = dict[str, Tensor]
"""``{name: (B, ...)}``. Images are uint8 (C, H, W); text is UTF-8 bytes, uint8 (L,), padded with 255."""

State = Any
"""A model's own tree of dicts, tuples and tensors, batch axis first. Only the model and its planners look inside."""


class Episode(NamedTuple):
    """One whole episode in numpy and raw units."""

    obs: dict[str, np.ndarray]  # (T+1, ...)
    action: np.ndarray  # (T, A), as really applied, in the codec's vector form
    reward: np.ndarray | None  # (T,); None: the recording has none
    terminated: bool  # False: cut short, so the last observation has a future
    time: np.ndarray | None  # (T+1,) seconds
    trace: dict[str, np.ndarray]  # (T, ...) what the policy recorded of itself; may be empty
    meta: dict[str, Any]  # seed, origin (real, dream, expert), task, success; plain JSON


class Before(NamedTuple):
    """What was believed at obs[0] when a window was last learned from."""

    state: State  # (B, ...), zero in rows without a stored belief
    known: Tensor  # (B,) bool: False: nothing is stored for this row

    def over(self, started: State) -> State:
        """Return the stored belief on rows that have one, ``started`` (B, ...) on the others."""
        return tree.where(self.known, self.state, started)


class Segment(NamedTuple):
    """A batch of windows; none crosses an episode. Padding has ``mask`` 0 and is zero everywhere."""

    obs: Obs  # (B, T+1, ...)
    action: Tensor  # (B, T, A)
    reward: Tensor | None  # (B, T) float32
    terminated: Tensor  # (B, T) bool: the step ended the episode for good
    mask: Tensor  # (B, T) float32: 1 a real step, 0 padding
    trace: dict[str, Tensor]  # (B, T, ...)
    before: Before | None  # beliefs stored at obs[0]; None: none are stored, use start
    index: Tensor  # type: ignore[assignment]  # (B, 2) int64 episode and offset: where beliefs are written back


class Rollout(NamedTuple):
    """An imagined Segment."""

    view: Obs  # (B, H+1, ...)
    action: Tensor  # (B, H, A)
    reward: Tensor  # (B, H)
    proceed: Tensor  # (B, H) probability of not having terminated; undiscounted, not sampled
    trace: dict[str, Tensor]  # (B, H, ...)
    final: State


class Act(NamedTuple):
    """What a policy does and what it wants remembered."""

    action: Tensor  # (B, A)
    memory: Any = None
    trace: dict[str, Tensor] = {}  # (B, ...) log_prob, own token ids and roles, flow noise, ...


class Learned(NamedTuple):
    """What ``WorldModel.loss`` returns."""

    losses: dict[str, Tensor]  # weighted scalars, summed by the caller
    # (B, T+1, ...) beliefs with their graph, which an objective may shape; None: the caller runs start/update
    states: State | None
    observed: State | None = None  # (B, T+1, ...) beliefs from real observations, without graph; None: states detached
    metrics: dict[str, Tensor] = {}  # scalars without graph that the caller shows and does not sum
