"""A folder may be started or continued in, or the one cure is told."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dreamsim.training.callbacks import Keep
from dreamsim.training.start import check_resumable, check_startable, discard_unlived

HOLD = (
    "import sys; from dreamsim.data.lock import WriterLock; lock = WriterLock(sys.argv[1]); print(flush=True); input()"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/a/store/blocks").mkdir(parents=True)
    (tmp_path / "runs/a/config.yaml").touch()
    return Path("runs/a")


def test_what_cannot_be_continued_names_a_cure_that_works(folder):
    with pytest.raises(
        FileNotFoundError, match=r"no run in runs/b; start it: dreamsim fit --config CONFIG --run runs/b"
    ):
        check_resumable(Path("runs/b"))
    anew = r"before it first saved.*start anew: dreamsim fit --config runs/a/config.yaml --run runs/a-2"
    with pytest.raises(FileNotFoundError, match=anew):
        check_resumable(folder)
    check_startable(Path("runs/a-2"))
    with pytest.raises(FileExistsError, match="delete it with 'rm -r runs/a', or name another"):
        check_startable(folder)


def test_a_torn_checkpoint_is_told_and_a_whole_one_is_not(folder):
    torch.save({"weights": torch.arange(1000)}, folder / "last.ckpt")
    check_resumable(folder)
    with pytest.raises(FileExistsError, match="continue it with --run runs/a --resume"):
        check_startable(folder)
    whole = (folder / "last.ckpt").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for broken in (whole[:-200], bytes(flipped), b""):
        (folder / "last.ckpt").write_bytes(broken)
        with pytest.raises(FileNotFoundError, match=r"last.ckpt is damaged: .*start anew"):
            check_resumable(folder)
    (folder / "run.json").touch()
    with pytest.raises(
        FileNotFoundError, match=r"is damaged, so the run cannot be resumed.*--from runs/a --run runs/a-2"
    ):
        check_resumable(folder)


def test_a_folder_that_another_process_trains_in_is_left_to_it(folder):
    (folder / "store/lock").touch()
    with subprocess.Popen([sys.executable, "-c", HOLD, folder / "store/lock"], stdin=-1, stdout=-1) as holder:
        holder.stdout.readline()
        for check in (check_resumable, check_startable):
            with pytest.raises(FileExistsError, match=f"being written by another process .process {holder.pid} "):
                check(folder)
        holder.communicate(b"\n")


def test_a_start_that_failed_leaves_nothing_unless_something_was_lived(folder):
    (folder / "store/blocks/00000000.block").touch()
    discard_unlived(folder)
    assert folder.is_dir()
    (folder / "store/blocks/00000000.block").unlink()
    discard_unlived(folder)
    assert not Path("runs").exists()


def test_a_folder_that_was_taken_away_is_named(tmp_path):
    trainer = SimpleNamespace(default_root_dir=str(tmp_path))
    Keep().on_train_batch_start(trainer, None, None, 0)
    tmp_path.rmdir()
    with pytest.raises(FileNotFoundError, match="was deleted or moved"):
        Keep().on_train_batch_start(trainer, None, None, 0)
