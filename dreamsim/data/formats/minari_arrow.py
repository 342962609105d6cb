"""Minari's Arrow layout, for writing; ``minari.read`` reads every layout."""

from __future__ import annotations

from pathlib import Path

from dreamsim.data.formats.minari_write import write_as
from dreamsim.data.formats.recording import Report
from dreamsim.data.store import Store


def write(store: Store, target: Path, report: Report) -> list[str]:
    """Write a dataset's folder, an Arrow file an episode."""
    return write_as("arrow", store, target, report)
