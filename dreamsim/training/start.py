"""A Trainer set up for our modules; the CLI and the tests start runs by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
