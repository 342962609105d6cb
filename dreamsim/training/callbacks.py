"""What happens between rounds of learning: living, judging, keeping, showing."""

from __future__ import annotations

import csv
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lightning
import numpy as np
from tqdm import tqdm

from dreamsim.training.start import check_there

CURVE = ("env_steps", "gradient_steps", "imagined_steps", "wall_s", "return_mean", "return_std", "train_return")


class Collect(lightning.Callback):
    """Lives through one round of vector steps before each round of learning."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        begin = time.perf_counter()
        module.anneal()
        with module.acting():
            module.experience.gather(module.collecting)
        module.spend("environment", time.perf_counter() - begin)


class Evaluate(lightning.Callback):
    """Lets the averaged policy play from fixed seeds every ``evaluate_every`` environment steps and at the end.

    Each evaluation is a row of ``metrics.csv`` in the run folder; ``latest`` is the last mean return.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    @property
    def latest(self) -> float | None:
        """The mean return of the last evaluation; None before the first."""
        return self.rows[-1]["return_mean"] if self.rows else None

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if module.gradient_steps and due(module.experience, module.experience.evaluate_every):
            self._evaluate(trainer, module)

    def _evaluate(self, trainer: Any, module: Any) -> None:
        begin = time.perf_counter()
        with module.acting():
            returns = module.experience.evaluate(module.actor)
        module.spend("evaluate", time.perf_counter() - begin)
        counters = module.counters()
        recent = module.experience.collector.recent_returns[-module.experience.env_count :]
        row = {name: counters[name] for name in CURVE[:4]}
        row |= {"return_mean": float(returns.mean()), "return_std": float(returns.std())}
        row["train_return"] = float(np.mean(recent)) if recent else float("nan")
        self.rows.append(row)
        write_curve(Path(trainer.default_root_dir) / "metrics.csv", self.rows)
        if trainer.logger:
            trainer.logger.log_metrics({"return": row["return_mean"]}, counters["env_steps"])

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]


class Keep(lightning.Callback):
    """Saves the run when the module says ``keep_now()``, at its end, and when Ctrl-C asks to stop.

    A checkpoint is written beside the last one and then takes its place, so a crash at any
    moment leaves a whole one. The first Ctrl-C ends the round, saves and stops; a second
    stops at once.
    """

    def __init__(self) -> None:
        self.asked = False  # whether Ctrl-C was pressed
        self._former: Any = None

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        """Raise FileNotFoundError when the run folder was taken away: nothing could be kept any more."""
        check_there(Path(trainer.default_root_dir))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if self.asked or module.progress >= 1.0 or module.keep_now():
            self.save(trainer, module)
        if self.asked:
            trainer.should_stop = True

    def save(self, trainer: Any, module: Any) -> None:
        """Write checkpoint and run folder. Raises OSError, naming the folder, when the disk is full."""
        folder = Path(trainer.default_root_dir)
        part = folder / "last.ckpt.part"
        try:
            trainer.save_checkpoint(part)
            os.replace(part, folder / "last.ckpt")
            module.save_run(folder, {"finished": module.progress >= 1.0})
        except OSError as error:
            part.unlink(missing_ok=True)
            raise OSError(
                f"could not save the run in {folder}: {error}. Free some space; the last whole checkpoint "
                f"is kept, and 'dreamsim fit --run {folder} --resume' goes on from it"
            ) from error

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self._restore()
        if self.asked and trainer.is_global_zero:
            print(f"\nStopped and saved. Go on with: dreamsim fit --run {trainer.default_root_dir} --resume")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._restore()

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            self._restore()
            raise KeyboardInterrupt
        self.asked = True
        print("\nStopping after this round; press Ctrl-C again to stop at once.", file=sys.stderr)

    def _restore(self) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None


class Progress(lightning.Callback):
    """One line that shows return, environment steps, imagined steps, rates and time left."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        total, done = module.experience.env_steps, module.experience.collector.env_steps
        self._bar = tqdm(total=total, initial=min(done, total), unit="step", unit_scale=True, dynamic_ncols=True)
        self._bar.set_description("living")
        self._marks = (time.perf_counter(), module.gradient_steps, module.imagined_steps)
        self._judge = next(c for c in trainer.callbacks if isinstance(c, Evaluate))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        now = time.perf_counter()
        then, gradient, imagined = self._marks
        if now - then > 1.0:
            self._bar.set_description("learning" if module.gradient_steps else "living")
            updates = (module.gradient_steps - gradient) / (now - then)
            rate = _short((module.imagined_steps - imagined) / (now - then))
            self._bar.set_postfix_str(
                f"return {_shown(self._judge.latest)}, {updates:.0f} updates/s, "
                f"{_short(module.imagined_steps)} imagined ({rate}/s)",
                refresh=False,
            )
            self._marks = (now, module.gradient_steps, module.imagined_steps)
        self._bar.update(min(module.experience.collector.env_steps, self._bar.total) - self._bar.n)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._bar.close()
        folder = Path(trainer.default_root_dir)
        print(ending(folder, module, self._judge.rows))

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        if "_bar" in vars(self):
            self._bar.close()


def due(experience: Any, every: int) -> bool:
    """Say whether the round that just ended crossed a multiple of ``every`` environment steps, or ended the run."""
    now = experience.collector.env_steps
    before = now - experience.per_round * experience.repeat
    return now // every > before // every or now >= experience.env_steps


def write_curve(file: Path, rows: list[dict[str, float]]) -> None:
    """Write the learning curve, replacing what later rounds of an interrupted run had written."""
    part = file.with_suffix(".part")
    with part.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, CURVE)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(part, file)


def ending(folder: Path, module: Any, rows: list[dict[str, float]]) -> str:
    """Say what a run made and what to do next."""
    counters = module.counters()
    lines = [
        f"\n{folder}: {counters['env_steps']:,} environment steps, {counters['gradient_steps']:,} gradient steps, "
        f"{counters['imagined_steps']:,} imagined steps in {counters['wall_s'] / 60:.1f} minutes"
    ]
    if not counters["gradient_steps"]:
        lines.append(
            f"nothing was learned: learning begins when the warm-up of {module.experience.warmup:,} environment steps "
            "is over and a first episode has ended; give the run more --data.init_args.env_steps"
        )
    if rows:
        lines += ["return " + sparkline([row["return_mean"] for row in rows]) + f" {rows[-1]['return_mean']:.0f}"]
    lines += [f"next:  dreamsim evaluate {folder}", f"       dreamsim play {folder} --film film.mp4"]
    return "\n".join(lines)


def sparkline(values: list[float]) -> str:
    """Draw numbers as one line of at most 60 blocks, the lowest an eighth high; of more numbers the latest of each."""
    values = [values[-1 - number * len(values) // 60] for number in range(60)][::-1] if len(values) > 60 else values
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (value - low) / span))] for value in values)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
