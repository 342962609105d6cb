"""One HDF5 file: which of the known layouts it has stands in it, so only the child finds out."""

from __future__ import annotations

from pathlib import Path

from dreamsim.data.formats import d4rl, guarded, robomimic
from dreamsim.data.formats.recording import BadRecording, Recording

LAYOUTS = {"robomimic": robomimic, "D4RL": d4rl}


def sniff(path: Path, head: bytes) -> bool:
    """Say whether a file begins like HDF5."""
    return head.startswith(guarded.SIGNATURE)


def read(path: Path) -> Recording:
    """Read a file in the first layout that fits."""
    with guarded.opened(path) as file:
        found = guarded.names(file)
        layout = next((layout for layout in LAYOUTS.values() if layout.fits(file)), None)
    if layout is not None:
        return layout.read(path)
    if any(name.startswith("episode_") for name in found):
        raise BadRecording("it is the data of a Minari dataset; name its folder, where metadata.json lies")
    raise BadRecording(
        f"expected robomimic (data/demo_0/actions) or D4RL (observations, actions, terminals) inside, found "
        f"{', '.join(found[:10]) or 'nothing'}"
    )
