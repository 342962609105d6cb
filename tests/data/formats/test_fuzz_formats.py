"""Damaged files of every format end in one clear error or in what is still whole; nothing in them runs."""

import contextlib
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dreamsim.data.convert import recognise
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.formats.watch import _environment
from tests.data.formats.recorded import d4rl, robomimic, traces
from tests.data.formats.test_minari import buffer, dataset
from tests.data.formats.test_traces import STEPS, WHOLE

ROOT = Path(__file__).parents[3]
DEATHS = 3  # of a library, in all the damaged files: the child is there for them


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return, by name: format, what to read, and the file in it to damage."""
    folder = tmp_path_factory.mktemp("whole")
    found = {
        "d4rl": ("hdf5", d4rl(folder / "d4rl.hdf5"), "."),
        "robomimic": ("hdf5", robomimic(folder / "robomimic.hdf5"), "."),
        "steps": ("traces", traces(folder / "steps.jsonl", STEPS), "."),
        "episodes": ("traces", traces(folder / "episodes.jsonl", WHOLE), "."),
    }
    for kind, file in (("hdf5", "main_data.hdf5"), ("arrow", "0/part-0.arrow"), ("parquet", "0/part-0.parquet")):
        source = dataset(folder / kind, kind, [buffer(0, 3), buffer(1, 2)], jpeg=kind != "arrow")
        found[f"minari {kind}"] = ("minari", source, f"data/{file}")
    found["minari about"] = ("minari", folder / "hdf5", "data/metadata.json")
    return found


def damages():
    """Draw a way to damage bytes, as numbers that fit any file."""
    place = st.floats(0, 1, exclude_max=True)
    return st.one_of(
        st.tuples(st.just("cut"), place),
        st.tuples(st.just("flip"), st.lists(st.tuples(place, st.integers(0, 7)), min_size=1, max_size=6)),
        st.tuples(st.just("overwrite"), place, st.binary(min_size=1, max_size=16)),
        st.tuples(st.just("overwrite"), place, st.sampled_from([b"\xff" * 8, bytes(8), b"\x01" + bytes(7)])),
        st.tuples(st.just("insert"), place, st.binary(min_size=1, max_size=16)),
        st.tuples(st.just("replace"), st.integers(0, 16), st.binary(max_size=64)),
    )


def damaged(data, damage):
    kind, *rest = damage
    at = int(rest[0] * len(data)) if isinstance(rest[0], float) else 0
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        out = bytearray(data)
        for place, bit in rest[0]:
            out[int(place * len(out))] ^= 1 << bit
        return bytes(out)
    if kind == "overwrite":
        return data[:at] + rest[1] + data[at + len(rest[1]) :]
    return data[:at] + rest[1] + data[at:] if kind == "insert" else data[: rest[0]] + rest[1]


def outcomes(jobs):
    """Return what became of each job, a death of the process included, and the number of deaths."""
    said, deaths = {}, 0
    while len(said) < len(jobs):
        lines = "".join(json.dumps(job) + "\n" for job in jobs[len(said) :])
        done = subprocess.run(
            [sys.executable, "-m", "tests.data.formats.fuzz_child"],
            input=lines, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=300,
        )  # fmt: skip
        said |= dict(json.loads(line) for line in done.stdout.splitlines())
        if len(said) < len(jobs):
            assert "Timeout" not in done.stderr, f"{jobs[len(said)]} hangs\n{done.stderr[-3000:]}"
            deaths += 1
            said[Path(jobs[len(said)][1]).name] = f"refused: died with {done.returncode}"
    return said, deaths


# Two lists: hypothesis draws the simplest of all damages first. Shrinking would start hundreds of processes.
@settings(
    max_examples=2, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.lists(damages(), min_size=96, max_size=96))
def test_damaged_files_are_refused_or_read_and_never_hang_or_take_us_along(whole, tmp_path_factory, ways):
    folder = tmp_path_factory.mktemp("damaged")
    jobs = []
    for number, damage in enumerate(ways):
        name, source, part = list(whole.values())[number % len(whole)]
        target = folder / f"{number}{source.suffix}"
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        (target / part).write_bytes(damaged((target / part).read_bytes(), damage)) if part != "." else (
            target.write_bytes(damaged(target.read_bytes(), damage))
        )
        with contextlib.suppress(BadRecording):
            recognise(target)  # runs in the user's process, on every file there is
        jobs.append([name, str(target), str(folder / "stores" / str(number))])
    said, deaths = outcomes(jobs)
    assert len(said) == len(jobs) and deaths <= DEATHS, said
    assert all(words.startswith("read ") or len(words) > len("refused: ") + 5 for words in said.values())
    assert sum(words.startswith("refused") for words in said.values()) > 10


class Bomb:
    """Unpickling this would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_in_a_file_is_never_loaded(tmp_path):
    import h5py

    bomb = pickle.dumps(Bomb(tmp_path / "went off"))
    with h5py.File(d4rl(tmp_path / "a.hdf5"), "a") as file:
        rows = np.empty(11, object)
        rows[:] = [np.frombuffer(bomb, np.uint8)] * 11
        file.create_dataset("infos/pickled", data=rows, dtype=h5py.vlen_dtype(np.uint8))
        file.create_dataset("infos/opaque", data=np.array([bomb] * 11, h5py.opaque_dtype(np.dtype(f"V{len(bomb)}"))))
        file.attrs["pickled"] = np.void(bomb)
    np.save(tmp_path / "b.jsonl", np.array([Bomb(tmp_path / "went off")], object), allow_pickle=True)
    (tmp_path / "b.jsonl.npy").rename(tmp_path / "b.jsonl")
    jobs = [[name, str(tmp_path / file), str(tmp_path / f"{file}.store")] for name, file in (
        ("hdf5", "a.hdf5"), ("traces", "b.jsonl"),
    )]  # fmt: skip
    said, deaths = outcomes(jobs)
    assert said["a.hdf5"] == "read 3", said
    assert said["b.jsonl"].startswith("refused") and not deaths
    assert not (tmp_path / "went off").exists()
