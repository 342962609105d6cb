"""From recordings alone to a policy in reality, once on states and once on images, by commands anyone can type.

``dreamsim reproduce pretrain`` runs this in the present folder; what is done stays in ``runs``, and the numbers and
their page go to docs/results. For each chain, in commands (``fit --config CONFIG --run FOLDER``):

1. record: a run whose store is all that the later steps read.
2. world: a world model learns from the stored episodes, one of ten held out; ``evaluate`` judges it by those alone.
3. policy: a policy learns inside that world, which stays as it is; ``evaluate`` carries it to the real environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamsim import results
from dreamsim.data.store import Store
from dreamsim.evaluation.intervals import interval

EPISODES = 10
RUNS, RECORDS = Path("runs"), Path("docs/results")


class Step(NamedTuple):
    """One training: its config, where it goes, and whether it is judged."""

    config: str
    run: str
    judged: bool = True


class Chain(NamedTuple):
    """The three steps of one world."""

    task: str
    seen: str
    record: Step
    world: Step
    policy: Step


CHAINS = (
    Chain(
        "cartpole-swingup",
        "states",
        Step("configs/joint/cartpole_swingup.yaml", "cartpole_swingup", judged=False),
        Step("configs/pretrain/cartpole_swingup.yaml", "cartpole_swingup_world"),
        Step("configs/policy/cartpole_swingup.yaml", "cartpole_swingup_policy"),
    ),
    Chain(
        "cartpole-balance",
        "images, 3 frames of 32x32",
        Step("configs/pretrain/record_cartpole_pixels.yaml", "cartpole_pixels_recorded", judged=False),
        Step("configs/pretrain/cartpole_pixels.yaml", "cartpole_pixels_world"),
        Step("configs/policy/cartpole_pixels.yaml", "cartpole_pixels_policy"),
    ),
)


def main() -> None:
    """Do what is missing, then write the record and its page."""
    if sys.argv[1:] != ["draw"]:
        for chain in CHAINS:
            for step in (chain.record, chain.world, chain.policy):
                finish(step)
        rows = [row(chain) for chain in CHAINS]
        record = {
            "format": 1,
            "title": "A world from recordings alone, and a policy from that world",
            "command": "dreamsim reproduce pretrain",
            "commit": sorted({str(commit) for part in rows for commit in part["commits"].values()}),
            "machine": results.machine(),
            "rows": rows,
        }
        RECORDS.mkdir(parents=True, exist_ok=True)
        (RECORDS / "pretrain.json").write_text(json.dumps(record, indent=1) + "\n")
    record = json.loads((RECORDS / "pretrain.json").read_text())
    (RECORDS / "pretrain.md").write_text(page(record))
    print(RECORDS / "pretrain.md")


def finish(step: Step) -> None:
    """Train and judge what is not yet; a training that was cut goes on."""
    folder = RUNS / step.run
    if not (about(folder).get("finished")):
        begun = time.perf_counter()
        resumed = (folder / "last.ckpt").is_file()
        _dreamsim("fit", *([] if resumed else ["--config", step.config]), "--run", folder, *(["--resume"] * resumed))
        if not resumed:
            (folder / "seconds.json").write_text(json.dumps(time.perf_counter() - begun))
    if step.judged and not (folder / "report.json").is_file():
        _dreamsim("evaluate", folder, f"--episodes={EPISODES}", "--film=false")


def about(folder: Path) -> dict[str, Any]:
    """Return what a run says of itself; nothing where there is none."""
    file = folder / "run.json"
    return json.loads(file.read_text())["about"] if file.is_file() else {}


def row(chain: Chain) -> dict[str, Any]:
    """Return what is recorded of one chain."""
    store = Store(RUNS / chain.record.run / "store")
    returns = [float(np.sum(store.episode(n).reward, dtype=np.float64)) for n in range(len(store))]
    world, policy = (json.loads((RUNS / step.run / "report.json").read_text()) for step in (chain.world, chain.policy))
    kind = "observation" if world["drift"]["observation"] else "latent"
    curve = next(iter(world["drift"][kind].values())) if len(world["drift"][kind]) == 1 else _mean(world["drift"][kind])
    return {
        "task": chain.task,
        "seen": chain.seen,
        "configs": [step.config for step in (chain.record, chain.world, chain.policy)],
        "seconds": {step.run: _seconds(step) for step in (chain.record, chain.world, chain.policy)},
        "episodes": len(store),
        "steps": int(store.steps.sum()),
        "recorded_returns": [round(value, 1) for value in returns],
        "held_out": world["outcome"]["lengths"].__len__(),
        "commits": {
            step.run: about(RUNS / step.run).get("commit") for step in (chain.record, chain.world, chain.policy)
        },
        "gradient_steps": {step.run: about(RUNS / step.run)["gradient_steps"] for step in (chain.world, chain.policy)},
        "drift_of": kind,
        "drift": {"horizons": world["drift"]["horizons"], **curve},
        "trusted": world["trusted"],
        "rewards": world["drift"]["rewards"],
        "ends": world["drift"]["ends"],
        "verdict": world["verdict"],
        "returns": [round(value, 1) for value in policy["outcome"]["returns"]],
        "beside": [{name: part[name] for name in ("name", "horizon", "dream", "real")} for part in policy["beside"]],
    }


def _commits(record: dict[str, Any]) -> str:
    """Return which commit trained each run, as the runs say it."""
    told = {name: value for row in record["rows"] for name, value in row["commits"].items()}
    return ", ".join(f"{name} {value or 'not known'}" for name, value in told.items())


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    box = record["machine"]
    lines = [
        f"# {record['title']}",
        "",
        "A world model learns from stored episodes, without an environment; a policy learns inside it while it stays "
        "as it is; then the policy plays in the real environment. One seed each: a demonstration, not a comparison.",
        "",
        "A frozen world must be learned well: in one of 4,000 gradient steps instead of 14,000 (a run of unknown "
        "commit, equal recordings of cartpole-swingup) the policy earned 132 in reality while the dream told 711.",
        "",
        *([record["note"], ""] if "note" in record else []),
        f"Command: `{record['command']}`. Commits: {_commits(record)}.",
        f"Machine: {box['processor']}, {box['cores']} cores, {box['memory_gib']} GiB, {box['gpu'] or 'no GPU'}; "
        f"Python {box['python']}, torch {box['torch']}; one thread, beside other programs.",
        "",
        "| | " + " | ".join(f"{row['task']}, {row['seen']}" for row in record["rows"]) + " |",
        "|---" * (len(record["rows"]) + 1) + "|",
    ]
    columns = [_told(row) for row in record["rows"]]
    lines += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    lines += [
        "",
        *map(_read, record["rows"]),
        "",
        "Drift is the open-loop error on held-out episodes in standard deviations of the data (of the model's own "
        "latent where it shows no observations), under the recorded actions; in brackets, saying that nothing "
        "changes. The reward error is that of the sum over the first steps; in brackets, always forecasting the mean.",
        "",
        *_drift_table(record["rows"]),
        "",
        "Configs: " + "; ".join(", ".join(f"[{c}](../../{c})" for c in row["configs"]) for row in record["rows"]) + ".",
        "",
    ]
    return "\n".join(lines)


def _told(row: dict[str, Any]) -> dict[str, str]:
    recorded, last = np.array(row["recorded_returns"]), np.array(row["recorded_returns"][-10:])
    found = interval(row["returns"])
    gaps = [f"{np.mean(b['dream']):.1f} / {np.mean(b['real']):.1f} over {b['horizon']}" for b in row["beside"]]
    ends = row["ends"]
    foreseen = "none happened" if not ends["terminations"] else f"{ends['foreseen']:.0%} of {ends['terminations']}"
    names = ("record", "world", "policy")
    seconds = {name: value for name, value in zip(names, row["seconds"].values(), strict=True) if value is not None}
    return {
        "recorded": f"{row['episodes']} episodes, {row['steps']:,} steps",
        "return of the recorded episodes": f"{recorded.mean():.1f}; the last ten {last.mean():.1f}",
        "gradient steps of world and policy": " and ".join(f"{n:,}" for n in row["gradient_steps"].values()),
        "world, on held-out episodes": row["verdict"],
        "ends foreseen": f"{foreseen}; {ends['false_alarms']:.1%} of other steps ended wrongly",
        "real return of the policy": f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f}, {found.size} episodes)",
        "its return in the dream / in reality": "; ".join(gaps),
        "minutes": ", ".join(f"{name} {value / 60:.1f}" for name, value in seconds.items()),
    }


def _read(row: dict[str, Any]) -> str:
    """Say plainly what a chain was worth."""
    real, last = float(np.mean(row["returns"])), float(np.mean(row["recorded_returns"][-10:]))
    dream, same = (float(np.mean(row["beside"][-1][side])) for side in ("dream", "real"))
    worth = "no more than" if real <= last else "more than"
    wrong = "The dream promised it far more: it found what the dream gets wrong. " if dream > 2 * same else ""
    return (
        f"- {row['task']}: over whole episodes the policy earns {real:.0f}, {worth} whoever acted in the last ten "
        f"recordings ({last:.0f}); the dream told {dream:.0f}. {wrong}"
    ).rstrip()


def _drift_table(rows: list[dict[str, Any]]) -> list[str]:
    heads = [f"{row['task']}: {word}" for row in rows for word in (f"drift ({row['drift_of']})", "summed reward")]
    lines = ["| steps | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    shortest = min((row["drift"]["horizons"] for row in rows), key=len)
    for place, steps in enumerate(shortest[:-1]):  # the last is each task's own
        cells = []
        for row in rows:
            drift, rewards = row["drift"], row["rewards"]
            cells.append(f"{drift['model'][place]:.2f} ({drift['copy'][place]:.2f})")
            cells.append(f"{rewards['total'][place]:.2f} ({rewards['constant'][place]:.2f})")
        lines.append(f"| {steps} | " + " | ".join(cells) + " |")
    return lines


def _mean(curves: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    names = ("model", "copy", "linear")
    return {name: np.mean([curve[name] for curve in curves.values()], 0).tolist() for name in names}


def _seconds(step: Step) -> float | None:
    """Return how long a training took that this program ran in one go."""
    file = RUNS / step.run / "seconds.json"
    return json.loads(file.read_text()) if file.is_file() else about(RUNS / step.run).get("wall_s")


def _dreamsim(*words: object) -> None:
    print("dreamsim", *words, flush=True)
    subprocess.run([sys.executable, "-W", "ignore", "-m", "dreamsim.cli", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
