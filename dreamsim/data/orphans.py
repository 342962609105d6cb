"""What is taken out of a store is moved into its ``orphans`` folder and named in the log, never deleted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from dreamsim.data.block import sync_folder, write_whole

_log = logging.getLogger(__name__)


def set_aside(path: Path, why: str) -> Path:
    """Move a file of a store's blocks into its orphans; return where it is."""
    target = new_orphan(path)
    os.replace(path, target)
    sync_folder(target.parent)
    sync_folder(path.parent)
    report(path, why, target)
    return target


def copy_aside(path: Path, why: str) -> Path:
    """As ``set_aside``, leaving the file where it is."""
    target = new_orphan(path)
    write_whole(target, [path.read_bytes()])
    report(path, why, target)
    return target


def new_orphan(path: Path) -> Path:
    """Return a free place in the orphans for a file of a store's blocks."""
    orphans = path.parent.parent / "orphans"
    orphans.mkdir(exist_ok=True)
    number = 0
    while (target := orphans / f"{number:04d}-{path.name}").exists():
        number += 1
    return target


def report(path: Path, why: str, target: Path) -> None:
    """Say in the log what was moved, why and where to."""
    _log.warning("store %s: %s; moved aside to %s", path.parent.parent, why, target)
