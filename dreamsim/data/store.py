"""A folder of Episodes in raw units, with the spaces they belong to. Append-only, safe against a crash, no pickle.

    store.json      format version, spaces, control rate, what the creator wants known
    blocks/         00000000.block, ...: many episodes each (dreamsim.data.block)
    orphans/        what was moved aside: unfinished or damaged files, rows beyond a resumed checkpoint
    lock            held by the one writer

After ``flush`` returns, all appended episodes outlive a kill and a power cut.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from gymnasium import spaces

from dreamsim.core.spaces import Codec, space_from_json, space_to_json
from dreamsim.core.types import Episode
from dreamsim.data.block import (
    Block,
    DamagedBlock,
    decode,
    encode,
    read_table,
    sync_folder,
    write_block,
)
from dreamsim.data.format import FORMAT, DamagedStore, migrate, read_about, write_about
from dreamsim.data.lock import Busy, WriterLock
from dreamsim.data.orphans import new_orphan, report, set_aside
from dreamsim.data.records import Records

BLOCK_BYTES = 64 * 2**20


class NotWritten(OSError):
    """The disk did not take what was to be written. Nothing stored is lost."""


class Store(Sequence[Episode]):
    """A sequence of Episodes on disk: ``store[i]`` maps them from the file, ``append`` and ``flush`` add to them.

    Anyone may read at any time and sees what was there at opening; the first ``append`` or
    ``cut`` makes this object the only writer until ``close``. Raises Busy for a second writer,
    DamagedStore for damage that opening cannot set aside. May be pickled (a worker process
    opens its own) when nothing waits for ``flush``.

    ``limit``: bytes of the files that reading keeps in this process's memory at most, None: what
    the system likes. Whoever reads an episode whole has it in memory whole for that long.
    ``mend`` False: nothing is moved or written; what a crash left unfinished is passed over, damage raises.
    """

    def __init__(
        self, folder: str | Path, *, block_bytes: int = BLOCK_BYTES, limit: int | None = None, mend: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.block_bytes, self.limit, self.mend = block_bytes, limit, mend
        self._lock: WriterLock | None = None
        self._waiting: list[bytearray] = []
        self._waiting_steps: list[int] = []
        self._waiting_bytes = 0
        self._read: Records | None = None
        self._steps = np.empty(0, np.int64)  # of every flushed episode
        self._ends = np.empty(0, np.int64)  # of every block: number of episodes up to its end
        about = read_about(self.folder)
        if about["format"] < FORMAT:
            self._refuse_reader()
            with self._writing():
                about = migrate(self.folder)
        try:
            self.codec = Codec(space_from_json(about["observation_space"]), space_from_json(about["action_space"]))
        except ValueError as error:
            raise DamagedStore(f"{self.folder / 'store.json'}: {error}; put it back from a copy") from error
        self.rate: float | None = about["rate"]
        self.meta: dict[str, Any] = about["meta"]
        self._scan()

    @classmethod
    def create(
        cls,
        folder: str | Path,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        rate: float | None = None,
        meta: dict[str, Any] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> Store:
        """Make a new, empty store for an environment's raw spaces. ``rate``: control steps per second."""
        folder = Path(folder)
        if (folder / "store.json").exists():
            raise FileExistsError(
                f"{folder} already holds a store; open it with Store({str(folder)!r}) or name another"
            )
        about = {
            "format": FORMAT,
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "rate": rate,
            "meta": meta or {},
        }
        Codec(observation_space, action_space)  # refuses spaces that cannot be stored
        for name in ("blocks", "orphans"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        write_about(folder, about)
        sync_folder(folder.parent)
        return cls(folder, block_bytes=block_bytes)

    def __len__(self) -> int:
        return len(self._steps) + len(self._waiting)

    @property
    def steps(self) -> np.ndarray:
        """Length (E,) of every episode, known without reading them."""
        return np.concatenate([self._steps, np.array(self._waiting_steps, np.int64)])

    @overload
    def __getitem__(self, number: int) -> Episode: ...

    @overload
    def __getitem__(self, number: slice) -> list[Episode]: ...

    def __getitem__(self, number: int | slice) -> Episode | list[Episode]:
        if isinstance(number, slice):
            return [self.episode(i) for i in range(*number.indices(len(self)))]
        return self.episode(number + len(self) if number < 0 else number)

    def episode(self, number: int) -> Episode:
        """Return one episode. Its arrays are read-only and, once flushed, lie in the file.

        Raises IndexError beyond the last one, DamagedStore where the bytes do not fit their checksum.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"there is no episode {number}; the store {self.folder} has {len(self)}")
        if number >= len(self._steps):
            return decode(self._waiting[number - len(self._steps)])
        with told_as_damage():
            return self.records().episode(number)

    def records(self) -> Records:
        """Return the flushed episodes as they lie in memory; a later flush or cut does not change them."""
        if self._read is None:
            counts = np.diff(self._ends, prepend=0).tolist()
            with told_as_damage():
                self._read = Records([self._path(n) for n in range(len(counts))], counts, self.limit)
        return self._read

    def append(self, episode: Episode) -> int:
        """Add an episode in raw units and return its number; it is durable after ``flush``.

        Flushes first when ``block_bytes`` are waiting. Raises ValueError for an episode that
        does not fit the store's spaces, NotWritten when that flush fails: the episode was not taken then.
        """
        self._become_writer()
        check_episode(episode, self.codec)
        record = encode(episode)
        if self._waiting and self._waiting_bytes + len(record) > self.block_bytes:
            self.flush()
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        self._waiting_steps.append(len(episode.action))
        return len(self) - 1

    def flush(self) -> None:
        """Make everything appended durable. Raises NotWritten; then nothing is lost and it may be called again."""
        if not self._waiting:
            return
        self._become_writer()
        number, records, steps = self._block_to_write()
        try:
            write_block(self._path(number), [*records, *self._waiting], [*steps, *self._waiting_steps])
        except OSError as error:
            raise self._not_written(number, error) from error
        self._read = None
        self._steps = self.steps
        self._ends = np.append(self._ends[:number], len(self._steps))
        self._waiting, self._waiting_steps, self._waiting_bytes = [], [], 0

    def cut(self, count: int) -> list[Path]:
        """Keep the first ``count`` episodes; move the others into ``orphans/``, log it, and return the files there."""
        self._become_writer()
        self.flush()
        if not 0 <= count <= len(self):
            raise ValueError(f"cannot keep {count} episodes; the store {self.folder} has {len(self)}")
        moved = []
        for number in reversed(range(len(self._ends))):
            first = int(self._ends[number - 1]) if number else 0
            if self._ends[number] > count:
                moved.append(self._cut_block(number, max(0, count - first), f"episodes from {max(first, count)} on"))
        self._scan()
        return moved[::-1]

    def close(self) -> None:
        """Flush, and let others write."""
        self.flush()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Path]]:
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} episodes wait in memory; flush the store before sending it away")
        return partial(Store, limit=self.limit, mend=self.mend), (self.folder,)

    def _path(self, number: int) -> Path:
        return self.folder / "blocks" / f"{number:08d}.block"

    def _scan(self) -> None:
        """Read the table of every block; set aside what a crash left at the end."""
        self._read = None
        tables: list[np.ndarray] = []
        for unfinished in sorted((self.folder / "blocks").glob("*.tmp")) if self.mend else ():
            self._set_aside_unfinished(unfinished)
        found = sorted((self.folder / "blocks").glob("*.block"))
        for number, path in enumerate(found):
            if path != self._path(number):
                raise DamagedStore(_advice(DamagedBlock(f"{self._path(number)}: missing, though {path.name} is there")))
            try:
                tables.append(read_table(path))
            except DamagedBlock as error:
                if number < len(found) - 1 or not self.mend:
                    raise DamagedStore(_advice(error)) from error
                self._set_aside_damaged(path, error)
        self._ends = np.cumsum([len(table) for table in tables], dtype=np.int64)
        self._steps = np.concatenate([np.empty(0, np.int64), *(table["steps"].astype(np.int64) for table in tables)])

    def _set_aside_unfinished(self, path: Path) -> None:
        try:
            with self._writing():
                if path.exists():
                    set_aside(path, "an unfinished block, whose writer was killed before its flush ended")
        except (Busy, OSError):
            return  # it belongs to a writer at work, or nobody may write here; in any case it is no block

    def _set_aside_damaged(self, path: Path, error: DamagedBlock) -> None:
        try:
            with self._writing():
                set_aside(path, f"the last block is damaged ({error})")
        except (Busy, OSError) as hindrance:
            raise DamagedStore(f"{_advice(error)} It was not moved aside: {hindrance}") from error

    def _refuse_reader(self) -> None:
        if not self.mend:
            raise PermissionError(
                f"{self.folder} was opened only to be read; this needs Store(folder), without mend=False"
            )

    def _become_writer(self) -> None:
        self._refuse_reader()
        if self._lock is None or not self._lock.held:
            self._lock = WriterLock(self.folder / "lock")
            self._scan()  # another writer may have been here since this store was opened

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer for a moment."""
        if self._lock is not None and self._lock.held:
            yield
            return
        lock = WriterLock(self.folder / "lock")
        try:
            yield
        finally:
            lock.release()

    def _block_to_write(self) -> tuple[int, list[memoryview], list[int]]:
        """Return the number of the block to write, and what it already holds: frequent flushes make no tiny files."""
        last = len(self._ends) - 1
        if last < 0 or self._path(last).stat().st_size >= self.block_bytes // 64:
            return last + 1, [], []
        try:
            block = Block(self._path(last))
            first = len(self._steps) - len(block)
            return last, [block.record(i) for i in range(len(block))], self._steps[first:].tolist()
        except DamagedBlock:  # reading it will say so; what is new must not get lost with it
            return last + 1, [], []

    def _cut_block(self, number: int, keep: int, what: str) -> Path:
        path = self._path(number)
        if not keep:
            return set_aside(path, what)
        block = Block(path)
        target = new_orphan(path)
        write_block(target, [block.record(i) for i in range(keep, len(block))], block.steps[keep:])
        write_block(path, [block.record(i) for i in range(keep)], block.steps[:keep])
        report(path, what, target)
        return target

    def _not_written(self, number: int, error: OSError) -> NotWritten:
        free = shutil.disk_usage(self.folder).free
        return NotWritten(
            error.errno,
            f"cannot write {self._waiting_bytes} bytes ({len(self._waiting)} episodes) to {self._path(number)}: "
            f"{error.strerror}; {free} bytes are free there. They are kept in memory and what was stored before "
            "is whole: free some space and flush again",
        )


def check_episode(episode: Episode, codec: Codec) -> None:
    """Raise ValueError, naming the field, unless an episode has the codec's fields aligned in time."""
    steps = len(episode.action)
    space = codec.observation_space.spaces
    if episode.obs.keys() != space.keys():
        raise ValueError(f"the episode observes {sorted(episode.obs)}, the store's space is {sorted(space)}")
    wanted: dict[str, tuple[np.ndarray, tuple[int | None, ...]]] = {
        f"obs {name!r}": (episode.obs[name], (steps + 1, *(part.shape or ()))) for name, part in space.items()
    }
    wanted["action"] = episode.action, (steps, codec.action_size)
    if episode.reward is not None:
        wanted["reward"] = episode.reward, (steps,)
    if episode.time is not None:
        wanted["time"] = episode.time, (steps + 1,)
    for name, array in episode.trace.items():
        wanted[f"trace {name!r}"] = array, (steps, *np.shape(array)[1:])
    for field, (array, shape) in wanted.items():
        if np.shape(array) != shape:
            raise ValueError(f"{field} of an episode of {steps} steps has shape {np.shape(array)}, expected {shape}")
    for name, part in space.items():
        if part.dtype == np.uint8 and np.asarray(episode.obs[name]).dtype != np.uint8:
            raise ValueError(
                f"obs {name!r} of an episode has type {np.asarray(episode.obs[name]).dtype}, expected uint8"
            )


@contextmanager
def told_as_damage() -> Iterator[None]:
    """Say with a block's damage what to do about it."""
    try:
        yield
    except DamagedBlock as error:
        raise DamagedStore(_advice(error)) from error


def _advice(error: DamagedBlock) -> str:
    return (
        f"damaged store: {error}. Put the file back from a copy, or call dreamsim.data.repair.repair(folder), "
        "which keeps every readable episode and moves the rest aside (later episodes get lower numbers)."
    )
