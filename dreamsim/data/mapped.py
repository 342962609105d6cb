"""Files as read-only bytes in memory, and how much of them may stay there."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

GRANULE = 2**21  # bytes that a read of one byte brings in at most: Linux maps the whole huge page, where it has one
SMALLEST = 2 * GRANULE  # limit: a few bytes may lie on a border
PIECE = 2**20  # bytes read at a time where order does not matter
_FIXED = 0x10  # MAP_FIXED, which the mmap module does not name


class Mapped:
    """Files of ``sizes``, laid one after another in one range of addresses: ``bytes`` (N,), read-only.

    One range makes any window of any file a single address, so that a batch of windows is one
    gather; between files it reads as zeros. Holds no file handle: Python's own mmap keeps one
    for each map until version 3.13, and thousands of files would run into the limit of open
    files. What is cut out of ``bytes`` keeps the range alive.

    ``limit``: bytes of the files that this process keeps in memory at most, None: what the
    system likes. What is read in through ``gather`` and ``pieces``, or told to ``touch``, is counted in whole granules
    and let go together when the limit is reached; the system's own cache, which it gives up
    whenever memory is needed, is not touched. Bytes that are let go stay readable.
    """

    def __init__(self, sizes: Sequence[int], limit: int | None = None) -> None:
        if limit is not None and limit < SMALLEST:
            raise ValueError(f"at least {SMALLEST} bytes of recordings must be allowed in memory, got {limit}")
        self.limit, in_memory = limit, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        self._ask_ahead = sum(sizes) > (in_memory if limit is None else limit)
        self._begins = np.cumsum([0, *(-(-size // GRANULE) * GRANULE for size in sizes)])
        self._filled = 0
        self._libc = _libc()
        length = int(self._begins[-1]) or GRANULE
        reserved = length + GRANULE  # so that files can begin where a huge page can
        free = self._place(None, reserved, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._address = -(-free // GRANULE) * GRANULE
        memory = (ctypes.c_uint8 * length).from_address(self._address)
        weakref.finalize(memory, self._libc.munmap, free, reserved)
        self.bytes = np.ctypeslib.as_array(memory)
        self.bytes.flags.writeable = False
        self._runs: dict[int, np.ndarray] = {}
        self._touched = np.zeros(0 if limit is None else -(-length // GRANULE), bool)
        self._count = 0  # granules touched since the last letting go

    def add(self, path: Path, file: BinaryIO) -> np.ndarray:
        """Map the next file, of exactly its size, and return its bytes."""
        size, begin = os.fstat(file.fileno()).st_size, int(self._begins[self._filled])
        try:
            self._place(self._address + begin, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, file.fileno())
        except OSError as error:
            raise OSError(error.errno, f"cannot map {size} bytes into memory", str(path)) from error
        self._filled += 1
        return self.bytes[begin : begin + size]

    @property
    def begins(self) -> np.ndarray:
        """Where each file begins in ``bytes`` (files,)."""
        return self._begins[:-1]

    def gather(self, address: np.ndarray, size: int) -> np.ndarray:
        """Return ``size`` bytes from each ``address`` (N,) as a new array (N, size) of uint8."""
        if self._ask_ahead:
            self._ask(address, size)
        if self.limit is None:
            return _bytes(self._items(size)[address], size)
        out = np.empty((len(address), size), np.uint8)
        at_once = self._fitting(address, size)
        for first in range(0, len(address), at_once):
            part = address[first : first + at_once]
            self.touch(part, size)
            out[first : first + at_once] = _bytes(self._items(size)[part], size)
        return out

    def pieces(self, begin: int, size: int) -> Iterator[memoryview]:
        """Yield ``size`` bytes from ``begin`` on in pieces, each of which is to be used before the next."""
        for first in range(begin, begin + size, PIECE):
            length = min(PIECE, begin + size - first)
            self.touch(np.array([first]), length)
            yield self.bytes[first : first + length].data

    def let_go(self) -> None:
        """Give back the memory that bytes read so far take; they are read again when needed."""
        self._libc.madvise(self._address, self.bytes.size, mmap.MADV_DONTNEED)
        self._touched[:] = False
        self._count = 0

    def _ask(self, address: np.ndarray, size: int) -> None:
        """Ask the system to bring in all of a gather at once: 10 to 30 times faster where the disk must be read."""
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        length = (address + size - first).tolist()
        for begin, wanted in zip((self._address + first).tolist(), length, strict=True):
            self._libc.madvise(begin, wanted, mmap.MADV_WILLNEED)

    def touch(self, address: np.ndarray, size: int) -> None:
        """Count what reading ``size`` bytes from each ``address`` (N,) brings in; let go first where it is too much."""
        if self.limit is None:
            return
        granules = self._granules(address, size)
        new = len(granules) - int(self._touched[granules].sum())
        if (self._count + new) * GRANULE > self.limit:
            self.let_go()
            new = len(granules)
        self._touched[granules] = True
        self._count += new

    def _granules(self, address: np.ndarray, size: int) -> np.ndarray:
        found = np.unique(address[:, None] // GRANULE + np.arange(-(-size // GRANULE) + 1))
        return found[found < len(self._touched)]

    def _fitting(self, address: np.ndarray, size: int) -> int:
        """Return how many reads of ``size`` bytes at a time surely stay within the limit."""
        assert self.limit is not None
        one = GRANULE * (-(-size // GRANULE) + 1)
        if one > self.limit:
            raise ValueError(
                f"a window of {size} bytes may take {one} in memory, but {self.limit} are allowed; allow more"
            )
        whole = len(self._granules(address, size)) * GRANULE <= self.limit
        return max(1, len(address)) if whole else self.limit // one

    def _items(self, size: int) -> np.ndarray:
        """Return every run of ``size`` bytes as one opaque item, which numpy copies whole."""
        if size not in self._runs:
            item = np.dtype((np.void, size))
            self._runs[size] = np.ndarray((self.bytes.size - size + 1,), item, self.bytes, strides=(1,))
        return self._runs[size]

    def _place(self, address: int | None, size: int, rights: int, flags: int, handle: int) -> int:
        found = self._libc.mmap(address, size, rights, flags, handle, 0)
        if found in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"cannot map {size} bytes into memory")
        return found


def _bytes(items: np.ndarray, size: int) -> np.ndarray:
    return np.ndarray((len(items), size), np.uint8, items)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
