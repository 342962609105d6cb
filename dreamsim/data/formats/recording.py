"""What a reader of a foreign format returns, and what every format here is.

A format is a module in this package, named in ``dreamsim.data.convert.FORMATS``, with up to three functions:

    sniff(path: Path, head: bytes) -> bool
        Runs in the user's process, so it looks at file names and at ``head``, the first 4096 bytes of a
        file (empty for a folder), and parses nothing.
    read(path: Path) -> Recording
        Runs in the child process, with its memory and time capped. Imports its heavy packages itself.
    write(store: Store, target: Path, report: Report) -> list[str]
        Runs in the child process. ``target`` does not exist yet: the writer makes it, a file or a folder.
        Returns notes: what the format could not hold.

What ``read`` yields is the store's own form, so that nothing is converted twice: a reader makes a
``Codec(observation_space, action_space)`` and encodes whole columns by ``formats.columns``. The child
checks each episode (shapes, finite numbers) and appends it to a store. Numbers keep the type they were
recorded in; windows and dreams are float32 whatever lies in the store.

An episode that cannot be used is yielded as ``LeftOut(number, reason)``; the rest loads. What ends the
whole reading is raised: ``BadRecording`` with a sentence for the user, or whatever the library raises.

An action that was recorded without the observation it led to (a format with as many observations as
actions) is no step. It is kept in ``meta["last"]`` by ``without_outcome`` as plain JSON, never trained on, and
written back by ``last_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from gymnasium import spaces

from dreamsim.core.types import Episode

LAST = "last"
T = TypeVar("T")

Report = Callable[[int, int | None], None]
"""Called with (episodes done, of how many; None: unknown) while a format is written."""


class BadRecording(ValueError):
    """A recording cannot be read; the message says what was expected, what came and what to do."""


class LeftOut(NamedTuple):
    """An episode that is not used."""

    name: int | str  # its number or name in the source
    reason: str


class Recording(NamedTuple):
    """A recording that is being read."""

    observation_space: spaces.Space  # raw, as the recorded environment had it, or derived from the data
    action_space: spaces.Space  # raw; where the format has no bounds: ``formats.bounds``
    rate: float | None  # control steps per second; None: the format does not say
    episodes: Iterator[Episode | LeftOut]
    notes: list[str]  # what was dropped, masked or assumed; may grow until ``episodes`` ends
    total: int | None = None  # number of episodes, where it is known beforehand
    meta: dict[str, Any] = {}  # of the whole recording, plain JSON: what the format says and a writer gives back


def without_outcome(
    action: np.ndarray, reward: float | None = None, terminated: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the ``meta`` of a last action (A,) in raw units whose outcome nobody saw."""
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in more.items()}
    return {LAST: {"action": np.asarray(action).tolist(), "reward": reward, "terminated": terminated, **plain}}


def last_of(episode: Episode) -> dict[str, Any] | None:
    """Return what ``without_outcome`` kept, the action as an array again; None: every action has its outcome."""
    kept = episode.meta.get(LAST)
    return None if kept is None else {**kept, "action": np.asarray(kept["action"], episode.action.dtype)}


def each(names: Iterable[Any], read_one: Callable[[Any], T]) -> Iterator[T | LeftOut]:
    """Yield what ``read_one`` makes of each name, and LeftOut with the reason where it cannot."""
    for name in names:
        try:
            found: T | LeftOut = read_one(name)
        except (ValueError, LookupError, TypeError, OSError, ArithmeticError, RuntimeError) as error:
            found = LeftOut(name, words(error))
        yield found


def words(error: Exception) -> str:
    """Return an error as a sentence: ours as it stands, a library's with its kind."""
    ours = type(error).__module__.partition(".")[0] == "dreamsim" or type(error) is ValueError
    said = " ".join(str(error).split()) or "no reason given"
    return said if ours else f"{type(error).__name__}: {said}"
