"""Episodes that a recorder merged, because it was not told of a reset."""

from __future__ import annotations

import numpy as np

from dreamsim.core.types import Episode


def split(episode: Episode, ends: np.ndarray) -> list[Episode]:
    """Return the episodes in one whose steps ``ends`` (T,) says ended something before its last step.

    What the step at such an end led to was either the last observation of one episode or the first of
    the next, and the recording does not say which. So neither side uses it: the step that ended, and the
    one that began there, are dropped, and no step crosses the border.
    """
    steps = len(episode.action)
    ends = np.asarray(ends, bool)
    if ends.shape != (steps,):
        raise ValueError(f"its marks of an end have shape {ends.shape} in an episode of {steps} steps")
    inner = np.flatnonzero(ends[:-1]).tolist()
    if not inner:
        return [episode]
    begins, stops = [0, *(end + 2 for end in inner)], [*inner, steps]
    pieces = [(begin, stop) for begin, stop in zip(begins, stops, strict=True) if stop > begin]
    return [_cut(episode, begin, stop, number) for number, (begin, stop) in enumerate(pieces)]


def _cut(episode: Episode, begin: int, stop: int, number: int) -> Episode:
    last = stop == len(episode.action)
    return Episode(
        {name: value[begin : stop + 1] for name, value in episode.obs.items()},
        episode.action[begin:stop],
        None if episode.reward is None else episode.reward[begin:stop],
        episode.terminated and last,
        None if episode.time is None else episode.time[begin : stop + 1],
        {name: value[begin:stop] for name, value in episode.trace.items()},
        {**episode.meta, "part": number},
    )
