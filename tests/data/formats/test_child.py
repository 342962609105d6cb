"""Foreign files are opened in a process whose end, whatever it is, is one clear error and nothing more."""

import importlib
import json
import os
import time

import pytest

from dreamsim.data.convert import FORMATS, as_store, convert, recognise, source_fingerprint
from dreamsim.data.formats.child import Job, read, write
from dreamsim.data.formats.recording import BadRecording
from dreamsim.data.formats.watch import ChildDied, run
from dreamsim.data.store import Store
from tests.data.formats.recorded import d4rl, robomimic, traces

ENDS = {
    "crashes": ("os.kill(os.getpid(), 11)", "SIGSEGV"),
    "allocates": ("bytearray(300 * 2**20)", "more than 64 MiB of memory; allow more with --memory"),
    "waits": ("time.sleep(60)", "not done after 1 s; allow more with --seconds"),
    "exits": ("os._exit(3)", "ended with code 3"),
}


@pytest.fixture(scope="module", autouse=True)
def bad_formats(tmp_path_factory):
    """Formats that come to bad ends, where the child can import them."""
    folder = tmp_path_factory.mktemp("formats")
    for name, (body, _) in ENDS.items():
        lines = ["import os, time", "def read(path):", f"    {body}"]
        (folder / f"format_that_{name}.py").write_text("\n".join(lines) + "\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize("name", ENDS)
def test_every_bad_end_is_one_error_that_names_file_and_cap(name, tmp_path):
    start = time.monotonic()
    seconds = 1 if name == "waits" else 60
    with pytest.raises(BadRecording) as caught:
        run(Job("read", f"format_that_{name}", name, str(tmp_path), str(tmp_path / "store"), 64, seconds))
    assert str(tmp_path) in str(caught.value) and ENDS[name][1] in str(caught.value)
    assert (caught.type is ChildDied) == (name != "allocates")
    assert time.monotonic() - start < 60


def test_nothing_is_left_of_what_failed_and_nothing_is_overwritten(tmp_path):
    (tmp_path / "bad.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(BadRecording, match=r"bad\.hdf5, read as hdf5"):
        convert(tmp_path / "bad.hdf5", tmp_path / "store")
    assert os.listdir(tmp_path) == ["bad.hdf5"]
    (tmp_path / "store").mkdir()
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        convert(tmp_path / "bad.hdf5", tmp_path / "store")


def test_formats_are_recognised_by_their_files(tmp_path):
    made = {
        "hdf5": d4rl(tmp_path / "walker.h5"),
        "traces": traces(tmp_path / "log.txt", [{"observation": "a", "action": "b"}]),
    }
    (tmp_path / "set" / "data").mkdir(parents=True)
    for name in ("metadata.json", "main_data.hdf5"):
        (tmp_path / "set" / "data" / name).write_bytes(b"")
    for name, path in {**made, "minari": tmp_path / "set"}.items():
        assert recognise(path) == name
    (tmp_path / "song.wav").write_bytes(b"RIFF")
    with pytest.raises(BadRecording, match="looks like no recording known here: store"):
        recognise(tmp_path / "song.wav")
    with pytest.raises(BadRecording, match=f"but {', '.join(n for n, kind in FORMATS.items() if kind.reads)}"):
        convert(tmp_path / "song.wav", tmp_path / "x", start="wav")


def test_a_recording_becomes_a_store_once_and_again_when_it_changes(tmp_path, capsys):
    source = robomimic(tmp_path / "lift.hdf5")
    first = as_store(source, tmp_path / "spare")
    assert first.parent == tmp_path and len(Store(first)) == 3 and "20 steps a second" in capsys.readouterr().out
    assert as_store(source, tmp_path / "spare") == first and capsys.readouterr().out == ""
    before = source_fingerprint(source)
    os.utime(source, (1, 1))
    assert source_fingerprint(source) != before
    assert as_store(first, tmp_path / "spare") == first


def test_stores_alike_are_merged_and_others_refused(tmp_path):
    def make(name, observations):
        lines = [{"observation": observations[0], "action": 0.5, "episode": name}, {"observation": observations[1]}]
        path = traces(tmp_path / f"{name}.jsonl", [lines[0], {**lines[1], "episode": name}])
        here(read, "traces", path, tmp_path / "all" / name)

    def here(task, name, source, target):
        module = importlib.import_module(FORMATS[name].module)
        return task(Job("", "", name, str(source), str(target), 64, 60), module)

    for name in "ab":
        make(name, [[0.5], [1.5]])
    done = here(read, "store", tmp_path / "all", tmp_path / "merged")
    assert done["episodes"] == 2 and done["notes"] == ["merged 2 stores"]
    assert [episode.meta["episode"] for episode in Store(tmp_path / "merged")] == ["a", "b"]
    here(write, "traces", tmp_path / "merged", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["observation"] for line in lines] == [[0.5], [1.5]] * 2
    make("c", [[0.5, 1], [1, 2]])
    with pytest.raises(BadRecording, match="another observation_space than"):
        here(read, "store", tmp_path / "all", tmp_path / "again")
