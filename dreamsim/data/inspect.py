"""What is wrong with recordings, told before they are learned from. Only reads; ``dreamsim check data``.

A foreign recording is read into a store in a temporary folder first, as ``dreamsim convert`` would, and what that
had to leave out, cut or assume is told with the rest. Each finding says what is done about it: by whoever reads
the recording (drop, mask, interpolate), or, in a store of ours, by training.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.format import DamagedStore
from dreamsim.data.formats.lerobot_clock import faults, listen
from dreamsim.data.inspect_steps import Law, Numbers, Seams
from dreamsim.data.store import Store, check_episode

SHOWN = 8  # findings of one kind that are told one by one
OFF_RATE = 0.02  # share by which a clock may differ from the declared rate
CLOCKED = (": masked: ", ": interpolated: ", ": dropped: ")  # how notes about a clock begin
FRAMES = 4  # pictures of each episode and camera that are looked at


class Finding(NamedTuple):
    """Something the user should know."""

    what: str  # and where
    done: str  # what is done about it unless the user does something else
    decide: bool  # whether the user should


class Watcher(Protocol):
    """Looks at every episode, and then tells (what, what is done, whether to decide) of each finding."""

    def see(self, number: int, episode: Episode) -> None: ...

    def tell(self) -> list[tuple[str, str, bool]]: ...


class Examined(NamedTuple):
    """A recording, looked through."""

    facts: list[str]
    findings: list[Finding]

    @property
    def undecided(self) -> int:
        """How many findings need a decision."""
        return sum(finding.decide for finding in self.findings)


def examine(
    path: str | Path, clock: str | None = None, memory: int | None = None, seconds: int | None = None
) -> Examined:
    """Look through a store of ours or a recording in any format that can be read.

    ``clock``: what reading does where frames are missing, for the formats that ask. ``memory`` (MiB), ``seconds``:
    what reading it may take. Raises FileNotFoundError, BadRecording and DamagedStore for what cannot be read at all.
    """
    from dreamsim.data.convert import MEMORY, SECONDS, convert

    path = Path(path)
    if (path / "store.json").is_file():
        return _examine_store(Store(path, mend=False), "a store of ours", _leftovers(path))
    with tempfile.TemporaryDirectory(prefix="dreamsim-check-") as folder:
        reading = {} if clock is None else {"clock": clock}
        made = convert(
            path, Path(folder) / "store", memory=memory or MEMORY, seconds=seconds or SECONDS, reading=reading
        )
        notes = [_noted(note, clock is not None) for note in made.notes]
        return _examine_store(Store(Path(folder) / "store", mend=False), made.source_format, notes)


def tell(examined: Examined) -> list[str]:
    """Return the examination as short lines; ``?`` marks what needs a decision."""
    lines = list(examined.facts)
    for finding in examined.findings:
        mark = "?" if finding.decide else "-"
        lines.append(f"{mark} {finding.what}" + (f"; {finding.done}" if finding.done else ""))
    if not examined.findings:
        return [*lines, "nothing wrong was found"]
    return [*lines, f"{examined.undecided} of {len(examined.findings)} findings need a decision"]


def _noted(note: str, chosen: bool) -> Finding:
    """Return what reading said as a finding; ``chosen``: the user said what to do about missing frames."""
    if any(word in note for word in CLOCKED):
        return Finding(note, "" if chosen else "choose --clock mask, drop or interpolate", not chosen)
    return Finding(note, "", note.startswith(("episode", "orphan")))


def _examine_store(store: Store, what: str, notes: list[Finding]) -> Examined:
    numbers = Numbers()
    watchers: list[Watcher] = [_Clock(store.rate), _Actions(store.codec), _Copies(), _Pictures(), numbers]
    lengths, findings = [], list(notes)
    for number, episode in _readable(store, findings):
        lengths.append(len(episode.action))
        for watcher in watchers:
            watcher.see(number, episode)
    law = Law(numbers.ranges())
    seams = Seams(law)
    for look in (law.see, law.measure, seams.see):
        for number, episode in _readable(store, []):
            look(number, episode)
    for words in (*(watcher.tell() for watcher in watchers), seams.tell()):
        findings += [Finding(*each) for each in _brief(words)]
    return Examined([*_facts(store, what, lengths), *numbers.facts()], findings)


def _facts(store: Store, what: str, lengths: list[int]) -> list[str]:
    if not lengths:
        return [f"{what}: no episode"]
    spread = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else f"{lengths[0]}"
    rate = "no declared rate" if store.rate is None else f"{store.rate:g} steps/s"
    return [
        f"{what}: {len(lengths)} episodes of {spread} steps, {sum(lengths)} in all, {rate}",
        f"actions {store.codec.raw_action_space}",
    ]


def _readable(store: Store, findings: list[Finding]) -> Iterator[tuple[int, Episode]]:
    """Yield the episodes that can be read and keep the alignment rule; name the others."""
    for number in range(len(store)):
        try:
            episode = store.episode(number)
            check_episode(episode, store.codec)
        except (DamagedStore, ValueError) as error:
            findings.append(Finding(f"episode {number}: {error}", "passed over", True))
            continue
        if len(episode.action):
            yield number, episode
        else:
            findings.append(Finding(f"episode {number} has no step", "passed over", False))


def _leftovers(folder: Path) -> list[Finding]:
    """Return what lies in a store's folder and belongs to no episode."""
    found = [*sorted((folder / "orphans").glob("*")), *sorted((folder / "blocks").glob("*.tmp"))]
    known = {"store.json", "blocks", "orphans", "lock"}
    found += [path for path in sorted(folder.iterdir()) if path.name not in known]
    return [Finding(f"orphan: {path.relative_to(folder)} belongs to no episode", "not read", False) for path in found][
        :SHOWN
    ]


def _brief(words: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """Return the first findings of a kind, and how many more there are."""
    if len(words) <= SHOWN:
        return words
    return [*words[:SHOWN], (f"{len(words) - SHOWN} more episodes like these", words[SHOWN][1], words[SHOWN][2])]


class _Clock:
    """Recorded times against the declared rate."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.words: list[tuple[str, str, bool]] = []
        self._periods: list[float] = []

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        if episode.time is None:
            return
        if not np.isfinite(episode.time).all():
            self.words.append((f"episode {number}: its times are not all finite", "kept; leave it out", True))
            return
        period = float(np.median(np.diff(episode.time)))
        self._periods.append(period)
        beats = listen(episode.time, 1 / period if period > 0 else self.rate or 1.0)
        if len(beats.gaps) or len(beats.back):
            done = "kept, and steps span it: drop it, or convert the source again with the clock mask or interpolate"
            self.words.append((f"episode {number}: {faults(beats)}", done, True))

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        if not self._periods:
            return self.words
        found = 1 / max(float(np.median(self._periods)), 1e-12)
        if self.rate is None:
            return [
                (f"no rate is declared; the clock says {found:.4g} steps/s", "nothing needs one", False),
                *self.words,
            ]
        if abs(found / self.rate - 1) > OFF_RATE:
            what = f"declared {self.rate:g} steps/s, but the clock says {found:.4g}"
            return [(what, "the declared rate is used; correct one of them", True), *self.words]
        return self.words


class _Actions:
    """Actions against the bounds of their space; columns that never change, or are no numbers."""

    def __init__(self, codec: Codec) -> None:
        self._low, self._high = (
            codec.scale.raw(-np.ones(codec.action_size)),
            codec.scale.raw(np.ones(codec.action_size)),
        )
        self._slack = 1e-4 * np.maximum(self._high - self._low, 1e-9)
        self._outside = self._count = 0
        self._worst, self._where = 0.0, -1
        self.words: list[tuple[str, str, bool]] = []

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        bad = [name for name, rows in _fields(episode) if not np.isfinite(rows).all()]
        if bad:
            self.words.append((f"episode {number}: NaN or infinity in {', '.join(bad)}", "leave it out", True))
        over = np.maximum(self._low - self._slack - episode.action, episode.action - self._high - self._slack)
        over = np.where(np.isfinite(over), over, 0)
        self._count += len(over)
        self._outside += int((over > 0).any(1).sum())
        if over.max() > self._worst:
            self._worst, self._where = float(over.max()), number

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        if not self._outside:
            return self.words
        what = (
            f"{self._outside} of {self._count} actions lie outside their bounds, the worst by {self._worst:.3g} in "
            f"episode {self._where}"
        )
        return [
            *self.words,
            (what, "kept in raw units; a policy can never repeat them", self._outside > self._count / 100),
        ]


def _fields(episode: Episode) -> Iterator[tuple[str, np.ndarray]]:
    for name, rows in episode.obs.items():
        if rows.dtype.kind == "f":
            yield f"observation {name!r}", rows
    yield "the actions", episode.action
    if episode.reward is not None:
        yield "the rewards", episode.reward


class _Copies:
    """Episodes that are there twice."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self.words: list[tuple[str, str, bool]] = []

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        digest = hashlib.blake2b(np.ascontiguousarray(episode.action).tobytes(), digest_size=16)
        for name in sorted(episode.obs):
            digest.update(np.ascontiguousarray(episode.obs[name]).tobytes())
        first = self._seen.setdefault(digest.digest(), number)
        if first != number:
            self.words.append((f"episode {number} is episode {first} again", "both are used: leave one out", True))

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        return self.words


class _Pictures:
    """Cameras that show nothing."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str, bool]] = []

    def see(self, number: int, episode: Episode) -> None:
        """Look at one episode."""
        for name, rows in episode.obs.items():
            if rows.dtype != np.uint8 or rows.ndim < 4:
                continue
            few = rows[np.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).astype(int)]
            if few.min() == few.max():
                self.words.append((f"episode {number}: camera {name!r} shows one colour only", "kept", True))
            elif len(few) > 1 and (few == few[:1]).all():
                self.words.append((f"episode {number}: camera {name!r} shows a picture that stands", "kept", False))

    def tell(self) -> list[tuple[str, str, bool]]:
        """Return what was found."""
        return self.words
