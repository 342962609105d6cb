"""Mend a store whose files were damaged from outside."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from dreamsim.data.block import Block, DamagedBlock, sync_folder, write_block
from dreamsim.data.lock import WriterLock
from dreamsim.data.orphans import copy_aside, set_aside

_log = logging.getLogger(__name__)


def repair(folder: str | Path) -> list[Path]:
    """Keep every readable episode of a store, in order; return the damaged files, moved into its ``orphans/``.

    Reads everything. Episodes after a lost one get lower numbers, so a run that remembers
    numbers (a checkpoint to be resumed) does not go on from such a store.
    """
    folder = Path(folder)
    lock = WriterLock(folder / "lock")
    try:
        moved = [aside for path in sorted((folder / "blocks").glob("*.block")) if (aside := _mend(path))]
        for number, path in enumerate(sorted((folder / "blocks").glob("*.block"))):
            os.replace(path, path.with_name(f"{number:08d}.block"))
        sync_folder(folder / "blocks")
    finally:
        lock.release()
    return moved


def _mend(path: Path) -> Path | None:
    """Rewrite a block with its readable episodes; return where the damaged one went, None: it is whole."""
    try:
        block = Block(path)
    except DamagedBlock as error:
        return set_aside(path, str(error))
    readable = [number for number in range(len(block)) if _is_readable(block, number)]
    if len(readable) == len(block):
        return None
    if not readable:
        return set_aside(path, "no episode in it can be read")
    aside = copy_aside(path, f"{len(block) - len(readable)} of its {len(block)} episodes cannot be read")
    write_block(path, [block.record(number) for number in readable], block.steps[readable])
    return aside


def _is_readable(block: Block, number: int) -> bool:
    try:
        block.episode(number)
    except DamagedBlock as error:
        _log.warning("%s", error)
        return False
    return True
