"""The parent's side of a child: its progress as a bar, its end as a result or as one error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from dreamsim.data.formats.child import Job
from dreamsim.data.formats.recording import BadRecording


class ChildDied(BadRecording):
    """The process that opened a foreign file came to a bad end."""


def run(job: Job) -> dict[str, Any]:
    """Do a job in a child and return what it says at its end.

    Raises BadRecording naming the file for whatever went wrong there, ChildDied where the child
    was killed: by a crash of a library, or by a cap, which the message says how to raise.
    """
    with tempfile.TemporaryFile() as errors, _started(job, errors) as process:
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(job.seconds, end)
        timer.start()
        try:
            last = _follow(process, job)
            code = process.wait()
        finally:
            timer.cancel()
            timer.join()
        errors.seek(0)
        return _result(job, last, code, late.is_set(), errors.read()[-2000:].decode(errors="replace"))


@contextmanager
def _started(job: Job, errors: BinaryIO) -> Iterator[subprocess.Popen]:
    """Start a child, and end it and what it started whatever happens here."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dreamsim.data.formats.child", json.dumps(job._asdict())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=_environment(),
        start_new_session=True,
        text=True,
    )
    try:
        yield process
    finally:
        _kill(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _environment() -> dict[str, str]:
    """Return the child's variables: one thread, no plugins that a file could ask HDF5 to load."""
    return {**os.environ, "HDF5_PLUGIN_PRELOAD": "::", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _follow(process: subprocess.Popen, job: Job) -> dict[str, Any]:
    """Show progress until the child's output ends; return its last words."""
    last: dict[str, Any] = {}
    doing = "reading" if job.task == "read" else "writing"
    with tqdm(desc=f"{doing} {Path(job.source).name}", unit=" episodes", disable=None, leave=False) as bar:
        for line in process.stdout or ():
            last = json.loads(line)
            if "done" in last:
                bar.total = last["total"]
                bar.update(last["done"] - bar.n)
    return last


def _result(job: Job, last: dict[str, Any], code: int, late: bool, errors: str) -> dict[str, Any]:
    if "ended" in last:
        return last["ended"]
    what = f"{job.source}, read as {job.name}" if job.task == "read" else f"written as {job.name}"
    if late or -code == signal.SIGXCPU:
        raise ChildDied(f"{what}: not done after {job.seconds} s; allow more with --seconds")
    if "error" in last:
        raise BadRecording(f"{what}: {last['error']}")
    if "alloc" in errors.lower() or "memory" in errors.lower():
        raise ChildDied(f"{what}: needs more than {job.memory} MiB of memory; allow more with --memory")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    said = errors.strip().splitlines()
    raise ChildDied(
        f"{what}: the process that opened it {how}{f' ({said[-1].strip()})' if said else ''}; the file is damaged, "
        f"or needs more than {job.memory} MiB (--memory). Nothing was written"
    )
