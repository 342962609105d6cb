"""What ``store.json`` says of a store, and how older stores are brought up to date."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamsim.data.block import write_whole

FORMAT = 1

MIGRATIONS: dict[int, Callable[[Path], None]] = {}
"""Format version -> function that brings a folder of that version to the next one.

Opening an older store runs the functions from its version up to ``FORMAT`` as the only
writer. A function must be repeatable: it may be killed half-way, and ``store.json`` gets
the new version only after it returns. A newer store is refused.
"""

_log = logging.getLogger(__name__)


class DamagedStore(ValueError):
    """A store's files are not what was written."""


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write ``store.json`` whole or not at all."""
    write_whole(folder / "store.json", [json.dumps(about, indent=1).encode()])


def read_about(folder: Path) -> dict[str, Any]:
    """Return ``store.json``. Raises FileNotFoundError without one, DamagedStore for one that cannot be read."""
    path = folder / "store.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no store (no store.json); make one with Store.create, or check the path"
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        missing = {"format", "observation_space", "action_space", "rate", "meta"} - about.keys()
        version = about["format"]
        if type(version) is not int or not isinstance(about.get("meta", {}), dict):
            raise TypeError(f"format {version!r}, meta of {type(about.get('meta')).__name__}")
        if not (about.get("rate") is None or type(about["rate"]) in (int, float)):
            raise TypeError(f"rate {about['rate']!r} is no number of steps per second")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedStore(f"{path} cannot be read ({error}); put it back from a copy") from error
    if version > FORMAT:
        raise DamagedStore(f"{path} has format {version}, this program reads up to {FORMAT}; update dreamsim-engine")
    if missing and version == FORMAT:
        raise DamagedStore(f"{path} lacks {sorted(missing)}; put it back from a copy")
    return about


def migrate(folder: Path) -> dict[str, Any]:
    """Bring an older store to this program's format, one version after another; return its new ``store.json``."""
    about = read_about(folder)
    for version in range(about["format"], FORMAT):
        if version not in MIGRATIONS:
            raise DamagedStore(f"{folder}: no rule brings a store of format {version} to {version + 1}")
        MIGRATIONS[version](folder)
        write_about(folder, {**read_about(folder), "format": version + 1})
        _log.warning("%s: brought from format %s to %s", folder, version, version + 1)
    return read_about(folder)
