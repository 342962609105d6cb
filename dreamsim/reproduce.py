"""Recorded results: a queue of training runs that can be cut at any moment and goes on where it stood.

A queue is ``configs/results/NAME.yaml``: a title, entries of (task, method, config, seeds,
options), how many episodes to evaluate, and which published curves to show beside ours; or the
``program``, a module, that does and records everything itself.
Runs live under ``runs/results/NAME``; the record and its page under ``docs/results``. A long queue may
also be extended over several machines or days: rows that are recorded already are then kept.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dreamsim import results

QUEUES = Path("configs/results")
RUNS = Path("runs/results")
RECORDS = Path("docs/results")
CHECKPOINT = "last.ckpt"


class Entry(NamedTuple):
    """One training run of a queue."""

    task: str
    method: str
    seed: int
    config: str
    options: tuple[str, ...]  # of ``dreamsim fit``, beyond config, run and seed
    folder: Path

    @property
    def settings(self) -> str:
        """A digest of what the config says and the options change: runs with equal settings differ by seed alone."""
        said = yaml.safe_load(Path(self.config).read_text())
        said.pop("seed_everything", None)
        return hashlib.sha256(json.dumps([said, self.options], sort_keys=True).encode()).hexdigest()[:16]


class Cut(RuntimeError):
    """The queue is not finished; doing it again goes on."""


def repeat(name: str, jobs: int = 2, extend: bool = False) -> None:
    """Train and evaluate what is missing of a queue, then record it. Raises Cut where runs failed.

    ``extend`` also counts as finished what an earlier record holds with the same settings, and records
    each run as soon as it is finished; without it the record is made anew, of this machine's runs alone.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more, got {jobs}")
    queue = read(name)
    if "program" in queue:
        return _program(queue["program"])
    entries = expand(queue, RUNS / name)
    episodes = int(queue.get("episodes", 10))
    kept = recorded(name) if extend else {}
    missing = [entry for entry in entries if not judged(entry, episodes) and not (kept and _key(entry) in kept)]
    print(f"{name}: {len(entries)} runs, {len(entries) - len(missing)} finished before, {jobs} at a time")
    writing = threading.Lock()

    def note() -> None:
        with writing:
            _record(name, queue, [entry for entry in entries if entry not in missing or judged(entry, episodes)], kept)

    missing.sort(key=lambda entry: entry.seed)  # every task has one run before any has two
    failed = _work(missing, episodes, jobs, note if extend else lambda: None)
    if failed:
        logs = "\n".join(f"  {entry.folder}: see {log(entry)}" for entry in failed)
        raise Cut(f"{len(failed)} of {len(entries)} runs failed; 'dreamsim reproduce {name}' tries them again\n{logs}")
    _record(name, queue, entries, kept)
    draw(name)


def recorded(name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a queue's record by (task, method, seed, settings)."""
    file = RECORDS / f"{name}.json"
    rows = json.loads(file.read_text())["rows"] if file.is_file() else []
    return {(row["task"], row["method"], row["seed"], row.get("settings")): row for row in rows}


def _key(entry: Entry) -> tuple[Any, ...]:
    return (entry.task, entry.method, entry.seed, entry.settings)


def _record(name: str, queue: dict[str, Any], entries: Sequence[Entry], kept: dict[tuple[Any, ...], Any]) -> None:
    """Write the record of finished entries: what ``kept`` has of them, the rest from their folders."""
    rows = [(kept and kept.get(_key(entry))) or results.row(entry) for entry in entries]
    record = results.gather(queue, rows, f"dreamsim reproduce {name}")
    RECORDS.mkdir(parents=True, exist_ok=True)
    file = RECORDS / f"{name}.json"
    new = file.with_suffix(".json.new")
    new.write_text(json.dumps(record, indent=1) + "\n")
    new.replace(file)


def draw(name: str) -> None:
    """Write a result's page and figure from its recorded numbers alone."""
    file = RECORDS / f"{name}.json"
    if not file.is_file():
        raise FileNotFoundError(f"nothing is recorded in {file}; record it: dreamsim reproduce {name}")
    program = read(name).get("program") if (QUEUES / f"{name}.yaml").is_file() else None
    if program is not None:
        return _program(program, "draw")
    for path in results.write_page(name, json.loads(file.read_text()), RECORDS):
        print(path)


def _program(module: str, *arguments: str) -> None:
    """Run the module that measures and records a result by itself; ``draw`` makes it write the page alone."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    if subprocess.run(command, env=_one_thread()).returncode:
        raise Cut(f"{module} did not finish; the same command goes on where it stood")


def read(name: str) -> dict[str, Any]:
    """Return a queue by name, with the nearest name where there is none of it."""
    file = QUEUES / f"{name}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in QUEUES.glob("*.yaml"))
        near = difflib.get_close_matches(name, known, 1, 0.4)
        hint = f"nearest: {near[0]}" if near else f"known: {', '.join(known) or 'none; run from the repository'}"
        raise FileNotFoundError(f"there is no queue {file}; {hint}")
    return yaml.safe_load(file.read_text())


def expand(queue: dict[str, Any], folder: Path) -> list[Entry]:
    """Return the runs of a queue in order, seeds innermost."""
    return [
        Entry(
            task=run["task"],
            method=run["method"],
            seed=seed,
            config=run["config"],
            options=tuple(f"--{option}={value}" for option, value in run.get("options", {}).items()),
            folder=folder / f"{run['task']}-{run['method']}-{seed}".replace(" ", "_"),
        )
        for run in queue["runs"]
        for seed in run["seeds"]
    ]


def command(entry: Entry) -> list[str]:
    """Return the arguments of ``dreamsim`` that start an entry, or go on with it where it was cut."""
    if (entry.folder / CHECKPOINT).is_file():
        return ["fit", "--run", str(entry.folder), "--resume"]
    seed = f"--seed_everything={entry.seed}"
    return ["fit", "--config", entry.config, "--run", str(entry.folder), seed, *entry.options]


def trained(entry: Entry) -> bool:
    """Say whether an entry's training has come to its end."""
    file = entry.folder / "run.json"
    return file.is_file() and bool(json.loads(file.read_text())["about"].get("finished"))


def judged(entry: Entry, episodes: int) -> bool:
    """Say whether an entry is trained and evaluated over so many episodes."""
    file = entry.folder / "report.json"
    return trained(entry) and file.is_file() and len(json.loads(file.read_text())["outcome"]["returns"]) == episodes


def log(entry: Entry) -> Path:
    """Return the file that holds what an entry's commands said."""
    return entry.folder.with_name(f"{entry.folder.name}.log")


def _work(entries: Sequence[Entry], episodes: int, jobs: int, note: Callable[[], None]) -> list[Entry]:
    """Finish entries, ``jobs`` at a time, noting each, and return those that failed. Ctrl-C lets running ones save."""
    stop = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_finish, entry, episodes, stop, note) for entry in entries]
        try:
            good = [future.result() for future in futures]
        except KeyboardInterrupt:
            # Training processes were interrupted by the same Ctrl-C; each saves and ends by itself.
            stop.set()
            print("\nwaiting for the running ones to save ...", file=sys.stderr)
            raise
    return [entry for entry, fine in zip(entries, good, strict=True) if not fine]


def _finish(entry: Entry, episodes: int, stop: threading.Event, note: Callable[[], None]) -> bool:
    if stop.is_set():
        return False
    if entry.folder.exists() and not (entry.folder / CHECKPOINT).is_file():
        shutil.rmtree(entry.folder)  # cut before it first saved
    if not trained(entry):
        print(f"  {'resuming' if entry.folder.exists() else 'training'} {entry.folder}", flush=True)
        if not _call(command(entry), entry) or not trained(entry):
            return False
    fine = _call(["evaluate", str(entry.folder), f"--episodes={episodes}", "--film=false"], entry)
    print(f"  {'finished' if fine else 'FAILED'} {entry.folder}", flush=True)
    if fine:
        note()
    return fine


def _call(arguments: Sequence[str], entry: Entry) -> bool:
    log(entry).parent.mkdir(parents=True, exist_ok=True)
    with log(entry).open("a") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "dreamsim.cli", *arguments], stdout=stream, stderr=stream, env=_one_thread()
        )
    return done.returncode == 0


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
