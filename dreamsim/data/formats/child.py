"""The process in which foreign files are opened: one job, with memory, time and file size capped.

    python -m dreamsim.data.formats.child JOB      JOB: a Job as JSON

It reads SOURCE and writes TARGET, and says on stdout, a JSON object a line, how far it is ({"done", "total",
"steps"}) and how it ended ({"ended": ...} or {"error": ...}). Libraries that parse foreign files may crash,
run away or allocate without end; here that costs this process and nothing else.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MIB = 2**20
NOTES = 20  # notes of one kind that are told one by one


class Job(NamedTuple):
    """What a child is to do."""

    task: str  # "read": a foreign recording into a store; "write": a store into a foreign recording
    module: str  # of the format
    name: str  # of the format, as the user calls it
    source: str
    target: str  # does not exist
    memory: int  # MiB beside the program itself
    seconds: int
    options: dict[str, Any] = {}  # further arguments of the format's read or write, plain JSON


def main(arguments: list[str]) -> int:
    """Do one job and return 0, or 1 after telling the error."""
    job = Job(**json.loads(arguments[0]))
    try:
        module = importlib.import_module(job.module)
        limit(job)
        say(ended=TASKS[job.task](job, module))
    except MemoryError:
        say(error=f"needs more than {job.memory} MiB of memory; allow more with --memory", memory=True)
        return 1
    except ImportError as error:
        say(error=f"needs a package more ({error}); pip install -c constraints.txt -e '.[data]'")
        return 1
    except Exception as error:
        from dreamsim.data.formats.recording import words

        too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
        larger = f"makes a file larger than {job.memory} MiB; allow more with --memory"
        say(error=larger if too_large else words(error), trace=_trace(error))
        return 1
    return 0


def limit(job: Job) -> None:
    """Cap this process: address space beyond what the program has, processor time, file size; no core files."""
    from dreamsim.data import store  # loads what a job needs, before its memory is counted

    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    mapped = sum(path.stat().st_size for path in Path(job.source).rglob("*.block"))  # stores are read by mapping them
    room = own + job.memory * MIB
    resource.setrlimit(resource.RLIMIT_AS, (room + mapped, room + mapped))
    resource.setrlimit(resource.RLIMIT_CPU, (job.seconds, job.seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if job.task == "read":  # a block of the store holds one long episode at most, and that was in memory
        largest = max(job.memory * MIB, store.BLOCK_BYTES) + store.BLOCK_BYTES
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def read(job: Job, module: Any) -> dict[str, Any]:
    """Read a recording into a new store and return what was understood."""
    from dreamsim.data.formats.recording import BadRecording, Recording
    from dreamsim.data.store import Store

    recording: Recording = module.read(Path(job.source), **accepted(module.read, job))
    meta = {"source": {"format": job.name, "name": Path(job.source).name}, **recording.meta}
    with Store.create(
        job.target, recording.observation_space, recording.action_space, rate=recording.rate, meta=meta
    ) as store:
        left_out = fill(store, recording, job)
        if not len(store):
            why = f": {left_out[0]}" if left_out else "; the recording is empty"
            raise BadRecording(f"no episode in it can be used{why}")
    return {**facts(store), "notes": recording.notes + brief(left_out)}


def facts(store: Any) -> dict[str, Any]:
    """Return what a store holds, in plain JSON."""
    fields = [f"{name}: {_words(space)}" for name, space in store.codec.observation_space.spaces.items()]
    return {
        "episodes": len(store),
        "steps": int(store.steps.sum()),
        "rate": store.rate,
        "observations": fields,
        "actions": _words(store.codec.raw_action_space),
    }


def _words(space: Any) -> str:
    """Return a space in one line, however many numbers its bounds are."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return " ".join(str(space).split())
    low, high = float(space.low.min()), float(space.high.max())
    return f"{space.dtype} {tuple(space.shape)} in [{low:g}, {high:g}]"


def fill(store: Any, recording: Any, job: Job) -> list[str]:
    """Append every good episode to a store; return why the others were left out."""
    left_out: list[str] = []
    told_at, steps = 0.0, 0
    for number, (item, reason) in enumerate(checked(recording, store.codec)):
        if reason is None:
            store.append(item)
            steps += len(item.action)
        else:
            left_out.append(reason)
        if time.monotonic() - told_at > 0.1:
            told_at = time.monotonic()
            say(done=number + 1, total=recording.total, steps=steps)
    return left_out


def checked(recording: Any, codec: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield (episode, None) for each good episode and (None, why) for each bad one."""
    from dreamsim.data.formats.recording import LeftOut
    from dreamsim.data.store import check_episode

    for number, item in enumerate(recording.episodes):
        if isinstance(item, LeftOut):
            yield None, f"episode {item.name} left out: {item.reason}"
            continue
        try:
            check_episode(item, codec)
            check_numbers(item)
        except ValueError as error:
            yield None, f"episode {number} left out: {error}"
            continue
        yield item, None


def check_numbers(episode: Any) -> None:
    """Raise ValueError for an episode without a step, or with a number that is none in what is learned from."""
    import numpy as np

    if not len(episode.action):
        raise ValueError("it has no step")
    named = {f"obs {name!r}": value for name, value in episode.obs.items()}
    for name, value in {**named, "action": episode.action, "reward": episode.reward, "time": episode.time}.items():
        if value is not None and not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            raise ValueError(f"{name} is NaN or infinite at step {row}")


def write(job: Job, module: Any) -> dict[str, Any]:
    """Write a store in a foreign format and return what that could not hold."""
    from dreamsim.data.store import Store

    store = Store(job.source)
    options = accepted(module.write, job)
    notes = module.write(store, Path(job.target), lambda done, total: say(done=done, total=total), **options)
    return {**facts(store), "notes": notes}


def accepted(function: Any, job: Job) -> dict[str, Any]:
    """Return a job's options if a format's function takes them all. Raises BadRecording naming those it takes."""
    from dreamsim.data.formats.recording import BadRecording

    known = [name for name, given in inspect.signature(function).parameters.items() if given.default is not given.empty]
    if unknown := sorted(job.options.keys() - set(known)):
        raise BadRecording(
            f"{job.name} has no option {unknown[0]!r} to {job.task}; it takes {', '.join(known) or 'none'}"
        )
    return job.options


TASKS = {"read": read, "write": write}


def brief(reasons: list[str]) -> list[str]:
    """Return the first reasons, and how many more there are."""
    more = len(reasons) - NOTES
    return reasons[:NOTES] + ([f"{more} more episodes left out for such reasons"] if more > 0 else [])


def say(**words: Any) -> None:
    """Tell the parent one thing."""
    print(json.dumps(words), file=OUT, flush=True)


def _trace(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


OUT = sys.stdout

if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")  # what libraries print goes to stderr, the parent's words stay whole
    os.dup2(2, 1)
    sys.exit(main(sys.argv[1:]))
