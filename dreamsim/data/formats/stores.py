"""Our own stores: copied, or several alike merged into one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dreamsim.core.spaces import space_to_json
from dreamsim.core.types import Episode
from dreamsim.data.block import DamagedBlock
from dreamsim.data.format import DamagedStore
from dreamsim.data.formats.recording import BadRecording, LeftOut, Recording, Report
from dreamsim.data.store import Store

DEPTH = ("store.json", "*/store.json", "*/*/store.json")


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a folder is a store or holds some."""
    return path.is_dir() and bool(_folders(path))


def read(path: Path) -> Recording:
    """Read a store, or every store in a folder (two levels deep) in the order of their names."""
    stores = [Store(folder) for folder in _folders(path)]
    if not stores:
        raise BadRecording(f"{path} holds no store (no store.json)")
    first = stores[0]
    for other in stores[1:]:
        for part in ("raw_observation_space", "raw_action_space"):
            ours, theirs = (space_to_json(getattr(store.codec, part)) for store in (first, other))
            if ours != theirs:
                raise BadRecording(f"{other.folder} has another {part[4:]} than {first.folder}; convert them apart")
    rates = {store.rate for store in stores}
    notes = [f"merged {len(stores)} stores"] if len(stores) > 1 else []
    if len(rates) > 1:
        notes.append(f"the stores have different rates ({sorted(map(str, rates))}); the merged one has none")
    return Recording(
        first.codec.raw_observation_space,
        first.codec.raw_action_space,
        first.rate if len(rates) == 1 else None,
        _episodes(stores),
        notes,
        sum(len(store) for store in stores),
        first.meta,
    )


def write(store: Store, target: Path, report: Report) -> list[str]:
    """Copy a store."""
    with Store.create(
        target, store.codec.raw_observation_space, store.codec.raw_action_space, rate=store.rate, meta=store.meta
    ) as copy:
        for number in range(len(store)):
            copy.append(store.episode(number))
            report(number + 1, len(store))
    return []


def _folders(path: Path) -> list[Path]:
    for pattern in DEPTH:
        if found := sorted(file.parent for file in path.glob(pattern)):
            return found
    return []


def _episodes(stores: list[Store]) -> Iterator[Episode | LeftOut]:
    for store in stores:
        for number in range(len(store)):
            try:
                yield store.episode(number)
            except (DamagedStore, DamagedBlock) as error:
                yield LeftOut(number, str(error))
