"""A recorded result: its numbers as JSON, and a page with table and curves drawn from them alone."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamsim.doctor import GIB, memory
from dreamsim.evaluation.intervals import interval

if TYPE_CHECKING:
    from dreamsim.reproduce import Entry

FORMAT = 1
SUMMARY = (
    *("task", "method", "runs", "mean", "interval", "IQM", "std over runs", "lowest"),
    *("env steps", "gradient steps", "imagined steps", "minutes"),
)
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
MARKS = (("#444444", "o"), ("#777777", "s"), ("#a0a0a0", "^"))  # of published curves
SPARSE = 4  # published points fewer than this are not joined: a line would claim what happened between


def gather(queue: dict[str, Any], rows: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    """Return everything a queue's finished runs say, as plain JSON."""
    return {
        "format": FORMAT,
        "title": queue["title"],
        "note": queue.get("note", ""),
        "command": command,
        "commit": sorted({str(row["commit"]) for row in rows}),
        "machine": machine(),
        "published": queue.get("published", []),
        "rows": list(rows),
    }


def machine() -> dict[str, Any]:
    """Describe this machine without naming it."""
    import torch

    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory()[1] / GIB, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def row(entry: Entry) -> dict[str, Any]:
    """Return what a finished run says: how it was made, its score and curve, and what it earns in its own dream."""
    about = json.loads((entry.folder / "run.json").read_text())["about"]
    report = json.loads((entry.folder / "report.json").read_text())
    returns = report["outcome"]["returns"]
    with (entry.folder / "metrics.csv").open(newline="") as stream:
        curve = [[int(float(row["env_steps"])), round(float(row["return_mean"]), 2)] for row in csv.DictReader(stream)]
    return {
        "task": entry.task,
        "method": entry.method,
        "seed": entry.seed,
        "settings": entry.settings,
        **{name: about[name] for name in ("env_steps", "gradient_steps", "imagined_steps", "wall_s", "commit")},
        "score": round(float(np.mean(returns)), 2),
        "returns": [round(value, 2) for value in returns],
        "curve": curve,
        "beside": [
            {
                "horizon": part["horizon"],
                "dream": round(float(np.mean(part["dream"])), 3),
                "real": round(float(np.mean(part["real"])), 3),
            }
            for part in report.get("beside") or []
        ],
    }


def write_page(name: str, record: dict[str, Any], folder: Path) -> list[Path]:
    """Write NAME.md and a figure per task into ``folder``; return their paths."""
    figures = []
    for task in _ordered(row["task"] for row in record["rows"]):
        path = folder / f"{name}-{task}.svg"
        _figure(path, task, record, folder / "published")
        figures.append(path)
    page = folder / f"{name}.md"
    page.write_text(_page(record, figures, folder / "published"))
    return [page, *figures]


def _page(record: dict[str, Any], figures: Sequence[Path], published: Path) -> str:
    box = record["machine"]
    lines = [
        f"# {record['title']}",
        "",
        *([record["note"].strip(), ""] if record["note"] else []),
        f"Command: `{record['command']}`. Commit: {', '.join(record['commit'])}.",
        f"Machine: {box['processor']}, {box['cores']} cores, {box['memory_gib']} GiB, {box['gpu'] or 'no GPU'}; "
        f"Python {box['python']}, torch {box['torch']}; each run on one thread.",
        "",
        "The score of a run is the mean return of its final policy over evaluation episodes that training never saw. "
        "Means are over runs (seeds); the interval is a 95 % bootstrap over them.",
        "",
        f"| {' | '.join(SUMMARY)} |",
        "|---" * len(SUMMARY) + "|",
        *(_summary(task, method, rows) for (task, method), rows in _groups(record["rows"])),
        "",
        *_compared(record, published),
        *_gaps(record),
        *(f"![{figure.stem}]({figure.name})" for figure in figures),
        "",
        "Curves are means over runs of evaluations during training; bands and bars reach from lowest to highest run.",
        "",
        "## Every run",
        "",
        "| task | method | seed | score | worst and best episode | env steps | minutes |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['task']} | {row['method']} | {row['seed']} | {row['score']:.1f} | {min(row['returns']):.0f} to "
            f"{max(row['returns']):.0f} | {row['env_steps']:,} | {row['wall_s'] / 60:.1f} |"
            for row in record["rows"]
        ),
        "",
    ]
    if record["published"]:
        lines += ["Published curves are described in [published](published/README.md).", ""]
    return "\n".join(lines)


def _summary(task: str, method: str, rows: Sequence[dict[str, Any]]) -> str:
    scores = [row["score"] for row in rows]
    found = interval(scores)
    spread = f"{np.std(scores, ddof=1):.1f}" if len(scores) > 1 else "-"
    bounds = f"{found.low:.1f} to {found.high:.1f}" if len(scores) > 1 else "-"
    means = {name: np.mean([row[name] for row in rows]) for name in ("env_steps", "gradient_steps", "imagined_steps")}
    minutes = np.mean([row["wall_s"] for row in rows]) / 60
    return (
        f"| {task} | {method} | {len(rows)} | {found.mean:.1f} | {bounds} | {found.middle:.1f} | {spread} | "
        f"{min(scores):.1f} | " + " | ".join(f"{value:,.0f}" for value in means.values()) + f" | {minutes:.1f} |"
    )


def _compared(record: dict[str, Any], published: Path) -> list[str]:
    """Return a table of our mean scores as a share of the published ones at as many environment steps."""
    lines = []
    for (task, method), rows in _groups(record["rows"]):
        ours, steps = float(np.mean([row["score"] for row in rows])), min(row["env_steps"] for row in rows)
        for curve in _of(record["published"], task):
            theirs = _published_at(published / curve["file"], curve["where"], steps)
            if theirs is None:
                continue
            mean, runs = theirs
            share = f"{100 * ours / mean:.0f} %" if mean > 0 else "-"
            lines.append(
                f"| {task} | {method} | {ours:.1f} | {len(rows)} | {curve['name']} | {mean:.1f} | {runs} | {share} |"
            )
    if not lines:
        return []
    head = ("task", "method", "mean", "n", "published", "mean", "n", "ours of theirs")
    told = "Beside published means at as many environment steps (between two published points by a straight line):"
    return [told, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, ""]


def _gaps(record: dict[str, Any]) -> list[str]:
    """Return a table of what policies earn in their own dreams and, from the same starts, in reality."""
    lines = []
    for (task, method), rows in _groups(record["rows"]):
        for horizon in sorted({part["horizon"] for row in rows for part in row.get("beside", ())}):
            pairs = [part for row in rows for part in row.get("beside", ()) if part["horizon"] == horizon]
            dream, real = (float(np.mean([part[name] for part in pairs])) for name in ("dream", "real"))
            lines.append(
                f"| {task} | {method} | {len(pairs)} | {horizon} | {dream:.1f} | {real:.1f} | {dream - real:+.1f} |"
            )
    if not lines:
        return []
    head = ("task", "method", "runs", "steps", "return in the dream", "real return", "gap")
    told = "The exploitation gap: each final policy in its own model's dream and in reality, from the same starts:"
    return [told, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, ""]


def _figure(path: Path, task: str, record: dict[str, Any], published: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": task, "backend": "svg"}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        furthest = 0
        for colour, ((_, method), rows) in zip(COLOURS, _groups(_of(record["rows"], task)), strict=False):
            steps, curves = _aligned([row["curve"] for row in rows])
            furthest = max(furthest, *steps)
            _band(axes, steps, curves, f"{method} (dreamsim, n={len(rows)})", colour)
        for (colour, mark), curve in zip(MARKS, _of(record["published"], task), strict=False):
            steps, curves = _published(published / curve["file"], curve["where"], max(100_000, furthest))
            _points(axes, steps, curves, f"{curve['name']} (published, n={len(curves)})", colour, mark)
        axes.set(xlabel="environment steps", ylabel="return", title=task)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(path, metadata={"Date": None})


def _band(axes: Any, steps: np.ndarray, curves: np.ndarray, label: str, colour: str) -> None:
    axes.plot(steps, curves.mean(0), color=colour, label=label)
    axes.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)


def _points(axes: Any, steps: np.ndarray, curves: np.ndarray, label: str, colour: str, mark: str) -> None:
    mean = curves.mean(0)
    reach = np.abs(np.stack([curves.min(0), curves.max(0)]) - mean)
    line = "none" if len(steps) < SPARSE else "--"
    axes.errorbar(steps, mean, reach, color=colour, label=label, marker=mark, linestyle=line, capsize=3, markersize=5)


def _aligned(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return common steps (n,) and values (runs, n), interpolated up to the shortest run's end."""
    steps = np.unique([step for curve in curves for step, _ in curve])
    steps = steps[steps <= min(curve[-1][0] for curve in curves)]
    tables = [np.asarray(curve, np.float64) for curve in curves]
    return steps, np.stack([np.interp(steps, table[:, 0], table[:, 1]) for table in tables])


def _published(file: Path, where: dict[str, str], furthest: float) -> tuple[np.ndarray, np.ndarray]:
    by_seed: dict[str, list[list[float]]] = {}
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if all(row[name] == value for name, value in where.items()) and float(row["step"]) <= furthest:
                by_seed.setdefault(row["seed"], []).append([float(row["step"]), float(row["reward"])])
    if not by_seed:
        raise ValueError(f"{file} has no rows where {where}")
    return _aligned([sorted(curve) for curve in by_seed.values()])


def _published_at(file: Path, where: dict[str, str], step: float) -> tuple[float, int] | None:
    """Return a published mean at a step and the number of its runs; None where its curve does not reach so far."""
    steps, curves = _published(file, where, float("inf"))
    if not steps[0] <= step <= steps[-1]:
        return None
    return float(np.mean([np.interp(step, steps, curve) for curve in curves])), len(curves)


def _groups(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    for key in _ordered((row["task"], row["method"]) for row in rows):
        yield key, [row for row in rows if (row["task"], row["method"]) == key]


def _of(rows: Sequence[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["task"] == task]


def _ordered(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
