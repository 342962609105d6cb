"""How a run starts: a Trainer set up for our modules, and a folder that may be started or continued in."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

from dreamsim.core.run import name_modules, read
from dreamsim.data.lock import Busy, WriterLock

SAVED_CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"

DEFAULTS: dict[str, Any] = {
    "accelerator": "auto",
    "devices": 1,
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer_defaults(folder: Path | str, **options: Any) -> dict[str, Any]:
    """Return arguments for ``lightning.Trainer``: budgets, checkpoints and the bar are ours, the rest Lightning's."""
    return {**DEFAULTS, "default_root_dir": str(folder), **options}


def refuse_many(trainer: Any) -> None:
    """Raise ValueError for a run on several devices, which would learn from equal batches."""
    if trainer.world_size > 1:
        raise ValueError(
            f"a run learns on one device, the trainer has {trainer.world_size}; set trainer.devices to 1 "
            "(several seeds side by side: dreamsim reproduce)"
        )


def refuse_finished(used: int, batches: int) -> None:
    """Raise ValueError for going on with a run that has used all its batches."""
    if used >= batches:
        raise ValueError(f"this run has finished: it has used {used:,} batches of {batches:,}; start another one")


def check_startable(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds a run."""
    if (folder / CHECKPOINT).is_file():
        cure = f"continue it with --run {folder} --resume, or name another folder with --run"
        raise FileExistsError(f"{folder} already holds a run; {cure}")
    if (folder / "store").exists():
        why = _writer(folder) or f"it stopped before it first saved: delete it with 'rm -r {folder}'"
        raise FileExistsError(f"{folder} already holds a run; {why}, or name another folder with --run")


def check_resumable(folder: Path) -> None:
    """Raise FileNotFoundError or ValueError, with one cure, for a folder that no run can go on in.

    Names the user's own modules and warns of those that have changed since the run was saved.
    """
    config = folder / SAVED_CONFIG
    start = f"dreamsim fit --config {config if config.is_file() else 'CONFIG'}"
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run in {folder}; start it: {start} --run {folder}")
    if writer := _writer(folder):
        raise FileExistsError(f"{folder} cannot be resumed now: {writer}")
    file, saved = folder / CHECKPOINT, (folder / "run.json").is_file()
    if file.is_file() and _is_whole(file):
        if saved:
            name_modules(read(folder))
        return
    what = f"{file} is damaged" if file.is_file() else f"{folder} has no {CHECKPOINT}"
    if saved:
        raise FileNotFoundError(
            f"{what}, so the run cannot be resumed; its world model is kept and can begin another run: "
            f"{start} --from {folder} --run {folder}-2"
        )
    raise FileNotFoundError(
        f"{what}: it stopped before it first saved, and there is nothing to go on from; "
        f"start anew: {start} --run {folder}-2"
    )


def check_there(folder: Path) -> None:
    """Raise FileNotFoundError where the folder of a run at work was taken away."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the run folder {folder} was deleted or moved while the run was training in it; "
            "nothing can be kept any more: start it again"
        )


def discard_unlived(folder: Path) -> None:
    """Remove what a start left that failed before anything was saved or an episode was stored."""
    if not (folder / CHECKPOINT).exists() and not any((folder / "store" / "blocks").glob("*")):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.is_dir() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _writer(folder: Path) -> str | None:
    """Say who is training in a folder; None: nobody."""
    if not (folder / "store" / "lock").is_file():
        return None
    try:
        WriterLock(folder / "store" / "lock").release()
    except Busy as error:
        return str(error)
    return None


def _is_whole(file: Path) -> bool:
    """Say whether a checkpoint, which is a zip file with checksums, is all there."""
    try:
        with zipfile.ZipFile(file) as content:
            return content.testzip() is None
    except (zipfile.BadZipFile, EOFError):
        return False
