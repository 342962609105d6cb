"""One writer at a time for a folder."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

_held: dict[str, int] = {}  # real path of a lock file held by this process -> process id (a fork inherits no lock)


class Busy(RuntimeError):
    """Somebody else is writing here."""


class WriterLock:
    """An exclusive lock on a file, which the operating system lifts when its process ends, however that happens.

    Not inherited by forked processes. Raises Busy while another process, or another object of
    this one, holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.path.realpath(path)
        self._file = None
        if _held.get(self._path) == os.getpid():
            raise Busy(f"{path.parent} is already being written by this process; use that one store, or close it first")
        file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - open as long as the lock is held
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read(200).strip() or "unknown"
            file.close()
            raise Busy(
                f"{path.parent} is being written by another process ({owner}); wait for it or stop it"
            ) from error
        self._file = file
        self._process = _held[self._path] = os.getpid()
        file.truncate(0)
        file.write(f"process {self._process} on {socket.gethostname()}\n")
        file.flush()

    @property
    def held(self) -> bool:
        """Whether this very process still holds the lock."""
        return self._file is not None and self._process == os.getpid()

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if _held.get(self._path) == os.getpid():
                del _held[self._path]

    def __del__(self) -> None:
        self.release()
