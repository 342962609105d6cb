"""Mapped files: one range of addresses, windows out of it by one gather, and no more in memory than was allowed."""

from pathlib import Path

import numpy as np
import pytest

from dreamsim.data.mapped import GRANULE, Mapped

MIB = 2**20


def written(folder: Path, sizes: list[int]) -> list[Path]:
    paths = [folder / f"{number}" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(np.random.default_rng(number).bytes(size))
    return paths


def mapped(paths: list[Path], limit: int | None = None) -> Mapped:
    found = Mapped([path.stat().st_size for path in paths], limit)
    for path in paths:
        with open(path, "rb") as file:
            found.add(path, file)
    return found


def resident() -> int:
    """Bytes of mapped files in this process's memory, as the system counts them."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile"))


@pytest.mark.parametrize("limit", [None, 2 * GRANULE, 100 * GRANULE])
def test_a_gather_returns_the_bytes_at_each_address(tmp_path, limit):
    paths = written(tmp_path, [5000, 1, 300_000, 4096])
    files = mapped(paths, limit)
    contents = [path.read_bytes() for path in paths]
    assert [files.bytes[b : b + len(c)].tobytes() for b, c in zip(files.begins, contents, strict=True)] == contents
    offsets = np.array([0, 7, 200_000, 299_900, 131_071])
    rows = files.gather(files.begins[2] + offsets, 100)
    assert [row.tobytes() for row in rows] == [contents[2][offset : offset + 100] for offset in offsets]
    assert b"".join(files.pieces(int(files.begins[2]), 300_000)) == contents[2]
    rows[:] = 0  # a copy
    assert files.bytes[files.begins[2]] == contents[2][0]


def most_resident(files: Mapped, before: int) -> int:
    """Read windows of all sizes at random, then a file in pieces; return the most that lay in memory after a read."""
    random, seen = np.random.default_rng(0), []
    for size in (100, 3000, 200_000):
        for _ in range(40):
            files.gather(random.integers(0, files.bytes.size - size, 64), size)
            seen.append(resident() - before)
    for piece in files.pieces(0, 24 * MIB):
        bytes(piece)
        seen.append(resident() - before)
    return max(seen)


def test_what_is_read_stays_within_the_limit(tmp_path):
    """Never more than allowed; without a limit, everything."""
    paths, before = written(tmp_path, [24 * MIB, 24 * MIB]), resident()
    assert most_resident(mapped(paths), before) > 40 * MIB
    before = resident()
    assert 4 * MIB < most_resident(mapped(paths, 12 * MIB), before) < 12.5 * MIB


def test_bytes_let_go_are_read_again(tmp_path):
    files = mapped(written(tmp_path, [2 * MIB]), 2 * GRANULE)
    kept, before = files.bytes[: 2 * MIB], files.bytes[: 2 * MIB].tobytes()
    files.let_go()
    assert kept.tobytes() == before


def test_limits_that_cannot_be_kept_are_refused(tmp_path):
    paths = written(tmp_path, [20 * MIB])
    with pytest.raises(ValueError, match="must be allowed in memory, got 1000"):
        mapped(paths, 1000)
    with pytest.raises(ValueError, match="allow more"):
        mapped(paths, 4 * MIB).gather(np.array([0]), 10 * MIB)
