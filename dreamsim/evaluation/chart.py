"""Charts as inline SVG, readable on light and dark pages: colours and text come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 44  # margins


class Series(NamedTuple):
    """One line. ``look`` is a CSS class of the page: "a" solid, "b" dashed, "c" dotted, "d" thin."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    look: str


class Mark(NamedTuple):
    """A straight line across the chart at a value, with a word beside it."""

    value: float
    word: str


class _Axes(NamedTuple):
    """From data to pixels; ``log`` spaces x by doublings."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool

    def right(self, value: float) -> float:
        low, high, value = (math.log2(v) if self.log else v for v in (*self.x, value))
        return LEFT + (value - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        low, high = self.y
        share = min((value - low) / ((high - low) or 1), 100.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    title: str,
    log: bool = False,
    top: float | None = None,
    across: Sequence[Mark] = (),
    upright: Sequence[Mark] = (),
) -> str:
    """Return a line chart. ``log`` spaces x by doublings; what rises above ``top`` leaves the chart, and is told."""
    xs = np.concatenate([np.asarray(s.x, float) for s in series])
    ys = np.concatenate([np.asarray(s.y, float) for s in series] + [[mark.value for mark in across], [0.0]])
    ys = ys[np.isfinite(ys)]
    high = float(ys.max()) if top is None else top
    axes = _Axes((float(xs.min()), float(xs.max())), _padded(float(ys.min()), high), log)
    marks = sorted(set(xs.tolist())) if log else _ticks(*axes.x)
    parts = [_frame(axes, _thinned(marks, axes), x_label, y_label)]
    parts += [_across(axes, mark) for mark in across] + [_upright(axes, mark) for mark in upright]
    # An inner picture without its own scale: what lies outside it is not drawn.
    inner = f'<svg width="{WIDTH}" height="{HEIGHT - BOTTOM + 4}" viewBox="0 0 {WIDTH} {HEIGHT - BOTTOM + 4}">'
    parts.append(f"{inner}{''.join(_line(axes, one) for one in series)}</svg>")
    leaves = {one.name: np.nanmax([*one.y, -np.inf]) > axes.y[1] for one in series}
    return _svg(title, "".join(parts)) + _legend(
        [(f"{one.name} (leaves the chart)" if leaves[one.name] else one.name, one.look) for one in series]
    )


def points(
    values: Sequence[float], words: Sequence[str], band: tuple[float, float], mean: float, y_label: str, title: str
) -> str:
    """Return one dot per value, in order, over a band with its mean; ``words`` appear on pointing at a dot."""
    finite = [value for value in (*values, *band, mean) if math.isfinite(value)]
    low, high = min(finite), max(finite)
    pad = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    axes = _Axes((0.5, len(values) + 0.5), (low - pad, high + pad), False)
    numbers = [n for n in _ticks(1, max(2, len(values))) if n == int(n)]
    parts = [_frame(axes, _thinned(numbers, axes), "episode", y_label)]
    if all(math.isfinite(side) for side in band):
        parts.append(
            f'<rect class="band" x="{LEFT}" width="{WIDTH - LEFT - RIGHT}" y="{axes.down(band[1]):.1f}" '
            f'height="{max(1.0, axes.down(band[0]) - axes.down(band[1])):.1f}"/>'
        )
    parts.append(_across(axes, Mark(mean, "mean")))
    for number, (value, word) in enumerate(zip(values, words, strict=True), 1):
        parts.append(
            f'<circle class="dot" cx="{axes.right(number):.1f}" cy="{axes.down(value):.1f}" r="5">'
            f"<title>{escape(word)}</title></circle>"
        )
    return _svg(title, "".join(parts))


def _svg(title: str, content: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{content}</svg>"
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">'
        f'<line class="line {look}" x1="0" y1="4" x2="28" y2="4"/></svg>{escape(name)}</li>'
        for name, look in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _line(axes: _Axes, one: Series) -> str:
    spots = [(axes.right(x), axes.down(y)) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    dots = "".join(f'<circle class="knot {one.look}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in spots)
    return f'<polyline class="line {one.look}" points="{path}"/>' + (dots if len(spots) <= 24 else "")


def _frame(axes: _Axes, marks: Sequence[float], x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in _ticks(*axes.y):
        y = axes.down(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{_number(value)}</text>')
    for value in marks:
        parts.append(f'<text class="middle" x="{axes.right(value):.1f}" y="{bottom + 18}">{_number(value)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text class="middle label" x="{(LEFT + right) / 2}" y="{HEIGHT - 6}">{escape(x_label)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="middle label" transform="rotate(-90 12 {middle})" x="12" y="{middle}">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _across(axes: _Axes, mark: Mark) -> str:
    y = axes.down(mark.value)
    return (
        f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="end word" x="{WIDTH - RIGHT - 4}" y="{y - 5:.1f}">{escape(mark.word)}</text>'
    )


def _upright(axes: _Axes, mark: Mark) -> str:
    x = axes.right(mark.value)
    late = x > WIDTH / 2
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="{"end " if late else ""}word" x="{x + (-5 if late else 5):.1f}" y="{TOP + 10}">'
        f"{escape(mark.word)}</text>"
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = (high - low) * 0.06 or 1.0
    return (low - pad if low < 0 else 0.0), high + pad


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _thinned(marks: Sequence[float], axes: _Axes, room: float = 34) -> list[float]:
    """Drop marks whose numbers would touch; the last one is kept."""
    kept: list[float] = []
    for mark in marks:
        if kept and axes.right(mark) - axes.right(kept[-1]) < room:
            if mark != marks[-1]:
                continue
            kept.pop()
        kept.append(mark)
    return kept


def _number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:g}k"
    return f"{round(value, 10):g}"
