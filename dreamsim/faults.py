"""How an error is told: one line where it explains itself, the user's own lines where it arose in them."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary

TRACE = "DREAMSIM_TRACE"
EXPLAINED = ("dreamsim", "worldmodels", "robots", "lightning", "gymnasium")  # packages whose errors are for their user


def explains_itself(error: BaseException) -> bool:
    """Say whether an error's message is meant for the user; any other one is a fault of ours."""
    ours = type(error).__module__.partition(".")[0] in EXPLAINED
    return ours or isinstance(error, (ValueError, ArithmeticError, OSError, ImportError, MemoryError))


def in_own_code(error: BaseException) -> str | None:
    """Return the user's own lines that led to an error; None: it did not pass through any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
    if not frames:
        return None
    here = Path.cwd()
    lines = ["an error in your own code:"]
    for frame in frames:
        path = Path(frame.filename)
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        lines.append(f"  {shown}, line {frame.lineno}, in {frame.name}: {frame.line}")
    lines += traceback.format_exception_only(error)
    return "\n".join(line.rstrip() for line in [*lines, f"{TRACE}=1 shows the whole way there."])


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the place in our source that they come from."""
    former = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: print(f"dreamsim: warning: {message}", file=sys.stderr)
    try:
        yield
    finally:
        warnings.showwarning = former


def _is_own(frame: FrameSummary) -> bool:
    path = Path(os.path.abspath(frame.filename))
    return path.is_file() and not any(path.is_relative_to(home) for home in _homes())


def _homes() -> list[Path]:
    """Return where installed packages, Python and this project lie."""
    root = Path(__file__).parents[1]
    python = [sys.prefix, *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))]
    return [*map(Path, python), *(root / name for name in ("dreamsim", "worldmodels", "robots"))]
