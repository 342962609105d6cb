"""Share of a main job's time by phase, its rates, and its peak memory.

    python -m tests.benchmarks.bench_phases              trains for a short while first
    python -m tests.benchmarks.bench_phases --run RUN    reads a run that has finished

Phases are the run's own clocks: environment (collecting: environment, policy and
exploration), data (drawing batches), learn and imagine (gradient steps), evaluate. ``rest``
is what no clock saw: Lightning, storing, checkpoints, logs. ``neither`` adds data and rest:
all that is neither environment, model, planner nor evaluation.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.measure import REPOSITORY, Effort, publish, quantity

CONFIG = "configs/joint/cartpole_swingup.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run folder; none: train one now")
    parser.add_argument("--config", default=CONFIG, help=f"what to train (default {CONFIG})")
    parser.add_argument("--env-steps", type=int, default=16_000, help="environment steps to train for (default 16,000)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.run:
        publish("phases", _shares(_about(asked.run)), Effort(1, 0.0), source="a finished run")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _train(asked.config, run, asked.env_steps)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        rows = [*_shares(_about(run)), quantity("peak memory", peak, "MiB")]
    publish("phases", rows, Effort(1, 0.0), source=f"dreamsim fit --config {asked.config}, {asked.env_steps} steps")


def _train(config: str, run: Path, env_steps: int) -> None:
    command = [sys.executable, "-m", "dreamsim.cli", "fit", "--config", config, "--run", str(run)]
    command += [f"--data.init_args.env_steps={env_steps}"]
    subprocess.run(command, cwd=REPOSITORY, check=True)


def _about(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())["about"]


def _shares(about: dict[str, Any]) -> list[dict[str, Any]]:
    wall, seconds = about["wall_s"], dict(about["seconds"])
    seconds["rest"] = wall - sum(seconds.values())
    rows = [quantity(phase, 100 * value / wall, "% of wall time") for phase, value in seconds.items()]
    neither = seconds["rest"] + seconds.get("data", 0.0)
    rows.append(quantity("neither environment, model, planner nor evaluation", 100 * neither / wall, "% of wall time"))
    for name in ("env_steps", "gradient_steps", "imagined_steps"):
        rows.append(quantity(name.replace("_", " "), about[name] / wall, "per second of wall time"))
    return rows


if __name__ == "__main__":
    main()
