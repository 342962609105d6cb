"""A collector in a second process, exactly one phase behind the learner.

``start`` freezes the weights it is given, so a phase's episodes do not depend on how fast
either process is, and equal those of the same schedule in one process.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context, util
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import nn

from dreamsim.core.types import Episode
from dreamsim.data.collect import Collector


class Counters(NamedTuple):
    """What the collector had counted at the end of a phase."""

    env_steps: int = 0
    episode_count: int = 0
    recent_returns: tuple[float, ...] = ()


class _Phase(NamedTuple):
    weights: bytes
    steps: int


class Ahead:
    """``start(weights, steps)``, learn meanwhile, then ``finish()``.

    ``make_collector`` runs in the second process; ``policy`` (an nn.Module with ``act``) is
    copied there once and then follows the weights of each ``start``. ``threads`` are torch's
    there. Errors of a phase are raised by ``finish``; the process's death is a RuntimeError.
    The process ends with ``close``, with this process, and when this process is killed.
    """

    def __init__(self, make_collector: Callable[[], Collector], policy: nn.Module, threads: int = 1) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        work = cloudpickle.dumps((make_collector, policy))
        self._process = context.Process(
            target=_serve, args=(theirs, work, threads, os.getpid()), name="dreamsim-collector"
        )
        self._process.start()
        theirs.close()
        self._stop = util.Finalize(self, _end, (self._process, self._pipe), exitpriority=10)
        self._phase: _Phase | None = None
        self._result: tuple[str, Any, list[Episode], Counters, str] | None = None
        self.counters = Counters()
        self.finished: list[Episode] = []
        """Episodes that ended before a phase failed."""

    @property
    def pid(self) -> int | None:
        """The second process's number."""
        return self._process.pid

    @property
    def under_way(self) -> bool:
        """Say whether a phase was started and not finished."""
        return self._phase is not None

    def start(self, weights: dict[str, Any], steps: int) -> None:
        """Begin to collect ``steps`` vector steps with these weights (a ``policy.state_dict()``)."""
        if self._phase is not None:
            raise RuntimeError("a phase is already being collected; finish() it before the next start()")
        self._begin(_Phase(_to_bytes(weights), steps))

    def finish(self) -> list[Episode]:
        """Wait for the phase that was started and return the episodes that ended in it."""
        if self._phase is None:
            raise RuntimeError("no phase is being collected; start() one before finish()")
        kind, error, episodes, self.counters, trace = self._wait()
        self._phase = self._result = None
        if kind == "failed":
            self.finished = episodes
            error.add_note(f"In the collecting process:\n{trace}")
            raise error
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Return a state that ``load_state_dict`` goes on from exactly, the phase under way included."""
        if self._phase is not None:
            self._wait()  # its result stays for finish(); what is saved is the instant before it
        collector = _from_bytes(self._ask("state", self._phase is not None))
        phase = [_from_bytes(self._phase.weights), self._phase.steps] if self._phase is not None else []
        return {"collector": collector, "phase": phase, "counters": [*self.counters[:2], list(self.counters[2])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; a phase that was under way is collected again from its weights."""
        if self._phase is not None:
            self._wait()
            self._phase = self._result = None
        self._ask("load", _to_bytes(state["collector"]))
        steps, episodes, returns = state["counters"]
        self.counters = Counters(steps, episodes, tuple(returns))
        if state["phase"]:
            weights, steps = state["phase"]
            self._begin(_Phase(_to_bytes(weights), steps))

    def close(self) -> None:
        """End the second process."""
        self._stop()

    def _begin(self, phase: _Phase) -> None:
        self._phase = phase
        self._send(("run", phase.weights, phase.steps))

    def _wait(self) -> tuple[str, Any, list[Episode], Counters, str]:
        if self._result is None:
            self._result = self._receive()
        return self._result

    def _ask(self, *message: Any) -> Any:
        self._send(message)
        kind, answer, *_, trace = self._receive()
        if kind == "failed":
            answer.add_note(f"In the collecting process:\n{trace}")
            raise answer
        return answer

    def _send(self, message: tuple) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._death() from error

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error

    def _death(self) -> RuntimeError:
        self._process.join(5)
        return RuntimeError(
            f"the collecting process ended (exit code {self._process.exitcode}); its episodes since the last phase "
            "are lost. Resume from the last checkpoint; exit code -9 usually means that memory ran out"
        )


def _serve(pipe: Connection, work: bytes, threads: int, parent: int) -> None:
    """Run in the second process: answer messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which then closes us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(threads)
    make_collector, policy = cloudpickle.loads(work)
    collector: Collector | None = None
    before = b""
    while True:
        try:
            kind, *rest = pipe.recv()
        except EOFError:
            return
        finished: list[Episode] = []
        try:
            collector = collector or make_collector()
            if kind == "state":
                state = before if rest[0] else _to_bytes(collector.state_dict())
                reply: tuple = ("done", state, [], Counters(), "")
            elif kind == "load":
                collector.load_state_dict(_from_bytes(rest[0]))
                reply = ("done", None, [], Counters(), "")
            else:
                before = _to_bytes(collector.state_dict())
                policy.load_state_dict(_from_bytes(rest[0]))
                finished = collector.collect(policy, rest[1])
                reply = ("done", None, finished, _counted(collector), "")
        except Exception as error:
            kept = collector.finished if collector is not None else []
            counted = _counted(collector) if collector is not None else Counters()
            reply = ("failed", _portable(error), kept, counted, traceback.format_exc())
        pipe.send(reply)


def _counted(collector: Collector) -> Counters:
    return Counters(collector.env_steps, collector.episode_count, tuple(collector.recent_returns))


def _portable(error: Exception) -> Exception:
    """Return the error itself where the learner's process can read it, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _end(process: Any, pipe: Connection) -> None:
    pipe.close()
    process.join(1)
    if process.is_alive():
        process.terminate()
        process.join(5)
    if process.is_alive():
        process.kill()
        process.join()


def _to_bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


class Behind:
    """``Ahead`` with the face of a Collector: ``collect`` gives what was lived while the caller last learned.

    The first call waits for its own phase; every call then starts the next one with the
    policy's present weights, so what is lived is exactly one phase old.
    """

    def __init__(self, make_collector: Callable[[], Collector], threads: int = 1) -> None:
        self._make_collector, self._threads = make_collector, threads
        self._ahead: Ahead | None = None
        self._saved: dict[str, Any] | None = None
        self._counters = Counters()
        self.finished: list[Episode] = []
        """Episodes that ended before a phase failed."""

    @property
    def env_steps(self) -> int:
        """Steps of the raw environment in the phases handed out."""
        return self._counters.env_steps

    @property
    def recent_returns(self) -> list[float]:
        """Returns of the latest episodes handed out, oldest first."""
        return list(self._counters.recent_returns)

    def collect(self, policy: nn.Module, steps: int) -> list[Episode]:
        """Return the episodes of the phase under way and start the next one of ``steps`` vector steps."""
        ahead = self._ahead or self._open(policy)
        if not ahead.under_way:
            ahead.start(policy.state_dict(), steps)
        try:
            episodes = ahead.finish()
        except Exception:
            self.finished = ahead.finished
            raise
        self._counters = ahead.counters
        ahead.start(policy.state_dict(), steps)
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Return a state that ``load_state_dict`` goes on from exactly, the phase under way included."""
        if self._ahead is None:
            raise RuntimeError("nothing has been collected yet; there is no instant to keep")
        return self._ahead.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state`` at the next ``collect``."""
        steps, episodes, returns = state["counters"]
        self._saved, self._counters = state, Counters(steps, episodes, tuple(returns))

    def close(self) -> None:
        """End the second process, where there is one."""
        if self._ahead is not None:
            self._ahead.close()

    def _open(self, policy: nn.Module) -> Ahead:
        self._ahead = Ahead(self._make_collector, policy, self._threads)
        if self._saved is not None:
            self._ahead.load_state_dict(self._saved)
        return self._ahead
