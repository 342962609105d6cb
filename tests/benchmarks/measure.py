"""How benchmarks measure and what they write: rates taken in turn, medians, spreads, one JSON each.

All parties of a comparison run in one process on one thread and take short turns, so that
whatever else the machine does meets all of them alike; ratios are taken turn by turn.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "docs" / "results"
PACKAGES = (
    "torch",
    "numpy",
    "stable-worldmodel",
    "torchrl",
    "tensordict",
    "dm_control",
    "mujoco",
    "gymnasium",
    "lightning",
)


class Effort(NamedTuple):
    """How long to measure: every party gets ``turns`` turns of about ``seconds`` each."""

    turns: int
    seconds: float


class Rates(NamedTuple):
    """Units of work per second of one party, one number a turn (turns,)."""

    wall: np.ndarray  # per second of the clock
    processor: np.ndarray  # per second of this process's processor time, which other programs do not stretch


def measure(parties: dict[str, Callable[[], float]], effort: Effort) -> dict[str, Rates]:
    """Return the rates of each party, a function that does some work and returns how many units it was.

    Each is called once unmeasured (compilation, caches), then as often in a turn as fills
    ``effort.seconds``. The order of the parties alternates from turn to turn.
    """
    gc.collect()
    gc.freeze()  # what exists now costs no party a later collection
    calls = {name: _calls_per_turn(work, effort.seconds) for name, work in parties.items()}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in parties}
    for turn in range(effort.turns):
        for name in list(parties)[:: -1 if turn % 2 else 1]:
            rates[name].append(_rate(parties[name], calls[name]))
    return {name: Rates(*np.array(values).T) for name, values in rates.items()}


def compare(name: str, ours: Rates, peer: Rates, unit: str, against: str) -> dict[str, Any]:
    """Return one row of a table. ``ratio`` above 1: ours is faster. ``against``: what the peer is."""
    ratios = ours.wall / peer.wall
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {
        "name": name,
        "against": against,
        "unit": unit,
        "ours": float(np.median(ours.wall)),
        "peer": float(np.median(peer.wall)),
        "ratio": float(middle),
        "ratio_quartiles": [float(low), float(high)],
        "ratio_processor": float(np.median(ours.processor / peer.processor)),
    }


def quantity(name: str, value: float, unit: str) -> dict[str, Any]:
    """Return a row of something that is measured on its own."""
    return {"name": name, "against": None, "unit": unit, "ours": value, "peer": None, "ratio": None}


def effort(description: str | None, turns: int = 15, seconds: float = 0.3) -> Effort:
    """Read ``--turns`` and ``--seconds`` from the command line and settle the process on one thread."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--turns", type=int, default=turns, help=f"turns of each party (default {turns})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"seconds of a turn (default {seconds})")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Effort(asked.turns, asked.seconds)


def publish(name: str, rows: list[dict[str, Any]], effort: Effort, **more: Any) -> None:
    """Print the rows as a table and write them to docs/results/bench_NAME.json."""
    print(table(rows))
    record = {
        "benchmark": name,
        "command": f"python -m tests.benchmarks.bench_{name}",
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "turns": effort.turns,
        "seconds_a_turn": effort.seconds,
        "method": "parties take turns in one process; rates are medians, ratio the median of the ratios turn by turn",
        **more,
        "rows": rows,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"bench_{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path.relative_to(REPOSITORY)}")


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as aligned text."""
    head = ("what", "against", "ours", "peer", "ratio", "quartiles", "processor", "unit")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on, and how busy it was."""
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_GiB": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter here, as far as they are installed."""
    installed = {part.metadata["Name"].lower(): part.version for part in importlib.metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def commit() -> str:
    """Return the commit measured, with a plus where files of the engine differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "dreamsim", "worldmodels")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _calls_per_turn(work: Callable[[], float], seconds: float) -> int:
    work()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < min(seconds, 0.2) or not calls:
        work()
        calls += 1
    return max(1, round(seconds * calls / (time.perf_counter() - start)))


def _rate(work: Callable[[], float], calls: int) -> tuple[float, float]:
    done = 0.0
    busy, start = time.process_time(), time.perf_counter()
    for _ in range(calls):
        done += work()
    return done / (time.perf_counter() - start), done / (time.process_time() - busy)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["against"] is None:
        return (row["name"], "", f"{row['ours']:,.4g}", "", "", "", "", row["unit"])
    low, high = row["ratio_quartiles"]
    return (
        row["name"],
        row["against"],
        f"{row['ours']:,.4g}",
        f"{row['peer']:,.4g}",
        f"{row['ratio']:.2f}",
        f"{low:.2f}-{high:.2f}",
        f"{row['ratio_processor']:.2f}",
        row["unit"],
    )
