"""A judgement on disk: one HTML page with everything in it, and its numbers as JSON beside it."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.evaluation import page, sections
from dreamsim.evaluation.intervals import interval
from dreamsim.evaluation.judge import Judgement
from dreamsim.evaluation.reading import reading, text, verdict

__all__ = ["numbers", "text", "write"]


def write(judgement: Judgement, folder: str | Path) -> Path:
    """Write report.html, report.json and films/dream.mp4 into ``folder``; return the page's path.

    Each file is replaced whole or not at all. Without a film encoder the page shows pictures.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(numbers(judgement), indent=1, allow_nan=False)
    _replace(folder / "report.json", content)
    _replace(folder / "report.html", html(judgement, folder / "films"))
    return folder / "report.html"


def numbers(judgement: Judgement) -> dict[str, Any]:
    """Return everything measured as plain JSON; what is not a finite number is null."""
    returns = interval(judgement.outcome.returns)
    outcome = judgement.outcome._asdict()
    del outcome["episodes"]
    return _plain(
        {
            "format": 1,
            **{name: value for name, value in judgement._asdict().items() if name not in ("outcome", "film")},
            "limits": None if judgement.drift is None else sections.bounds(judgement),
            "outcome": {**outcome, "mean_return": returns, "success": _success_interval(judgement)},
            "verdict": verdict(judgement),
            "reading": reading(judgement),
        }
    )


def html(judgement: Judgement, films: Path) -> str:
    """Return the page; a film is also written to ``films``."""
    task, policy = judgement.task or "Task", judgement.policy or "policy"
    world = f" Its dream: {judgement.world}." if judgement.world else ""
    body = [
        f"<h1>{escape(task)}</h1>",
        page.paragraph(f"{policy}, {len(judgement.outcome.returns)} real episodes.{world}", "soft"),
        *(page.paragraph(f"Warning: {tag}", "tag") for tag in judgement.tags),
        sections.headline(judgement),
        sections.trust(judgement),
        sections.side_by_side(judgement),
        sections.leaving(judgement),
        sections.doubted(judgement),
        sections.seen(judgement.film, films),
        sections.episodes(judgement),
        sections.late(judgement),
        sections.learnt(judgement),
        sections.origin(judgement),
    ]
    return page.page(f"{task}: {policy}", "".join(body))


def _success_interval(judgement: Judgement) -> Any:
    told = judgement.outcome.successes
    return None if told is None else interval(told[~np.isnan(told)])


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and type(value) is not tuple:
        named: Any = value
        return _plain(named._asdict())
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _replace(file: Path, content: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
