"""The sections of a report's page, from the headline to where the numbers come from."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dreamsim.evaluation import chart, page
from dreamsim.evaluation.film import CannotFilm, Film, write
from dreamsim.evaluation.intervals import interval
from dreamsim.evaluation.judge import Judgement
from dreamsim.evaluation.openloop import Curve, Drift, limits, overall
from dreamsim.evaluation.pictures import png
from dreamsim.evaluation.reading import number, reading, spread, steps, success, verdict

STRIP = 6  # pictures where no film can be written


def headline(judgement: Judgement) -> str:
    """Return the figures that matter most."""
    returns = interval(judgement.outcome.returns)
    between = f"{returns.level:.0%} interval {number(returns.low)} to {number(returns.high)}"
    tiles = [
        page.tile(
            number(returns.mean), "mean real return", between if returns.size > 1 else "one episode: no interval"
        ),
        page.tile(number(returns.middle), "interquartile mean", f"of {returns.size} episodes"),
    ]
    if judgement.outcome.successes is not None:
        share, _, rest = success(judgement).partition(" ")
        tiles.append(page.tile(share, "success", rest))
    if judgement.drift is not None:
        tiles.append(
            page.tile(steps(judgement.trusted or 0), "trusted horizon", f"of {judgement.drift.horizons[-1]} measured")
        )
    if judgement.beside:
        last = judgement.beside[-1]
        name = f"exploitation gap, {last.horizon} steps"
        between = f"dream - real, {number(last.gap.low)} to {number(last.gap.high)}"
        tiles.append(page.tile(number(last.gap.mean), name, between if last.gap.size > 1 else "one episode"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def trust(judgement: Judgement) -> str:
    """Return how far the dream can be trusted, in plain words."""
    if judgement.drift is None:
        kind = "plain"
    elif judgement.trusted == judgement.drift.horizons[-1]:
        kind = "good"
    else:
        kind = "" if judgement.trusted else "bad"
    body = page.paragraph(verdict(judgement)) + page.bullets(reading(judgement))
    return page.section("", body, f"verdict {kind}".strip())


def doubted(judgement: Judgement) -> str:
    """Return the table of the world's uncertainty against its errors; empty where it tells none."""
    found = judgement.calibration
    if found is None:
        return ""
    columns = zip(found.horizons, found.counts, found.correlation, found.factor, found.doubt, found.error, strict=True)
    rows = [
        (str(h), str(n), f"{c:.2f}", f"{f:.1f}", f"{d[0]:.2g} to {d[-1]:.2g}", f"{e[0]:.2g} to {e[-1]:.2g}")
        for h, n, c, f, d, e in columns
    ]
    head = ("after steps", "n", "rank correlation", "error / doubt", "doubt, least to most", "error there")
    note = (
        "Doubt is the largest uncertainty that a dream has met, error its distance from reality, both in standard "
        "deviations of the data; the last columns are means of the least and the most doubtful fifth of the dreams."
    )
    return page.section("Does it know where it errs?", page.table(head, rows) + page.paragraph(note, "soft small"))


def side_by_side(judgement: Judgement) -> str:
    """Return the table of dream and real returns; empty where there is no dream."""
    if not judgement.beside:
        return ""
    rows = [
        (
            row.name if row.name == f"{row.horizon} steps" else f"{row.name}: {steps(row.horizon)}",
            str(len(row.real)),
            *(spread(found).replace(" ", "\n", 1) for found in (interval(row.dream), interval(row.real), row.gap)),
        )
        for row in judgement.beside
    ]
    if judgement.trusted == 0:
        rows.insert(1, ("trusted: 0 steps", "0", "-", "-", "-"))
    head = ("over the first", "n", "return in the dream", "real return", "exploitation gap")
    note = (
        "The same policy from the same starts over the same steps; the gap is dream minus reality, paired by start. "
        "Brackets are 95% bootstrap intervals."
    )
    return page.section("Dream beside reality", page.table(head, rows) + page.paragraph(note, "soft small"))


def leaving(judgement: Judgement) -> str:
    """Return drift by horizon against the baselines; empty where it was not measured."""
    found = judgement.drift
    if found is None:
        return ""
    kind, curve, _ = overall(found)
    upright = [chart.Mark(judgement.trusted, "trusted up to here")] if judgement.trusted else []
    mean = _curve(found, curve, "mean of all fields", bounds(judgement), upright)
    caption = (
        f"Root mean square error of {'observations' if kind == 'observation' else 'the latent view'} by horizon, in "
        f"standard deviations of the data; {found.context} real steps, then the recorded actions only. "
        "The thin line is the limit of trust."
    )
    charts = [page.figure(mean, caption)]
    if found.rewards is not None:
        drawn = chart.lines(
            [
                chart.Series("dream", found.horizons, found.rewards.total, "a"),
                chart.Series("always the mean reward", found.horizons, found.rewards.constant, "b"),
            ],
            "horizon (steps)",
            "error of the summed reward",
            "Error of summed rewards by horizon",
            log=True,
        )
        charts.append(page.figure(drawn, "Mean absolute error of the sum of rewards over the first h steps."))
    curves = {**found.observation, **({} if kind == "latent" else {f"view: {k}": v for k, v in found.latent.items()})}
    curves = curves or found.latent
    singles = [page.figure(_curve(found, one, name), name) for name, one in curves.items()] if len(curves) > 1 else []
    more = (
        f'<details><summary>Every field</summary><div class="pair">{"".join(singles)}</div></details>'
        if singles
        else ""
    )
    numbers_table = f"<details><summary>Numbers</summary>{_drift_table(found, bounds(judgement))}</details>"
    body = f'<div class="pair">{"".join(charts)}</div>{more}{numbers_table}'
    return page.section("How fast the dream leaves reality", body)


def bounds(judgement: Judgement) -> np.ndarray:
    """Return the largest trusted error (K,) by horizon."""
    assert judgement.drift is not None
    return limits(judgement.drift, judgement.threshold, judgement.negligible)


def _curve(
    found: Drift,
    curve: Curve,
    name: str,
    limit: np.ndarray | None = None,
    upright: list[chart.Mark] | None = None,
) -> str:
    sides = list(zip(("dream", "nothing changes", "straight line"), curve, "abc", strict=True))
    sides += [] if limit is None else [("limit of trust", limit, "d")]
    shown = [side[np.isfinite(side)] for _, side, look in sides if look != "c"]
    tops = [float(side.max()) for side in shown if len(side)]
    return chart.lines(
        [chart.Series(word, found.horizons, values, look) for word, values, look in sides],
        "horizon (steps)",
        "error (standard deviations)",
        f"Open-loop drift: {name}",
        log=True,
        top=1.1 * max([*tops, 1e-9]),
        upright=upright or [],
    )


def _drift_table(found: Drift, limit: np.ndarray) -> str:
    _, curve, _ = overall(found)
    head = ["horizon", "windows", "dream", "limit of trust", "nothing changes", "straight line"]
    columns: list[Any] = [found.horizons, found.counts, curve.model, limit, curve.copy, curve.linear]
    if found.rewards is not None:
        head += ["reward of a step", "summed reward"]
        columns += [found.rewards.step, found.rewards.total]
    head, columns = [*head, "ends forecast right"], [*columns, [f"{share:.1%}" for share in found.ends.accuracy]]
    rows = [[v if isinstance(v, str) else number(float(v)) for v in row] for row in zip(*columns, strict=True)]
    return page.table(head, rows)


def seen(film: Film | None, films: Path) -> str:
    """Return the film, also written to ``films``; empty where there is none."""
    if film is None:
        return ""
    try:
        path = write(films / "dream.mp4", film.frames, film.rate)
        source = base64.b64encode(path.read_bytes()).decode()
        kind = ' class="single"' if len(film.columns) == 1 else ""
        shown = f'<video{kind} controls loop muted playsinline src="data:video/mp4;base64,{source}"></video>'
    except CannotFilm:
        chosen = np.linspace(0, len(film.frames) - 1, min(STRIP, len(film.frames))).astype(int)
        pictures = [base64.b64encode(png(film.frames[i])).decode() for i in chosen]
        shown = "".join(
            f'<img class="film" alt="frame {i}" src="data:image/png;base64,{p}">' for i, p in enumerate(pictures)
        )
    single = " single" if len(film.columns) == 1 else ""
    names = "".join(f"<span>{escape(name)}</span>" for name in film.columns)
    extra = " Bars: distance of dream and truth; a full quarter is one standard deviation." if not single else ""
    body = f'<div class="columns{single}">{names}</div>' + page.figure(shown, film.caption + extra)
    return page.section("What it looks like", body)


def episodes(judgement: Judgement) -> str:
    """Return every real episode, drawn and listed."""
    outcome, found = judgement.outcome, interval(judgement.outcome.returns)
    words = [
        f"seed {s}: {number(r)} in {n} steps"
        for s, r, n in zip(outcome.seeds, outcome.returns, outcome.lengths, strict=True)
    ]
    drawn = chart.points(
        outcome.returns.tolist(), words, (found.low, found.high), found.mean, "return", "Real return of every episode"
    )
    head, columns = ["episode", "seed", "return", "steps"], [outcome.seeds, outcome.returns, outcome.lengths]
    if outcome.successes is not None:
        head.append("success")
        columns.append(["unknown" if np.isnan(s) else "yes" if s else "no" for s in outcome.successes])
    for row in judgement.beside:
        if len(row.dream) == len(outcome.returns):
            head.append(f"dream - real, {row.horizon} steps")
            columns.append(row.dream - row.real)
    rows = [
        [str(i), str(row[0]), *(v if isinstance(v, str) else number(float(v)) for v in row[1:])]
        for i, row in enumerate(zip(*columns, strict=True), 1)
    ]
    listed = f"<details><summary>Every episode</summary>{page.table(head, rows)}</details>"
    caption = "Real return of every episode; the band is the 95% interval of the mean."
    return page.section("Returns", page.figure(drawn, caption) + listed)


def late(judgement: Judgement) -> str:
    """Return what the policy earns when its actions come late; empty where it was not measured."""
    if not judgement.delayed:
        return ""
    rows = [
        (steps(delay), str(len(returns)), spread(interval(returns)))
        for delay, returns in ({0: judgement.outcome.returns} | judgement.delayed).items()
    ]
    note = "The same episodes with every action applied that many steps late; on a robot some delay is certain."
    body = page.table(("delay", "n", "real return"), rows) + page.paragraph(note, "soft small")
    return page.section("If actions come late", body)


def learnt(judgement: Judgement) -> str:
    """Return the learning curve of the run; empty where there is none."""
    if len(judgement.learning) < 2:
        return ""
    lived, returns = zip(*judgement.learning, strict=True)
    drawn = chart.lines(
        [chart.Series("mean return while training", lived, returns, "a")],
        "environment steps",
        "return",
        "Learning curve",
    )
    return page.section("How it was learnt", drawn)


def origin(judgement: Judgement) -> str:
    """Return what is missing, and what run, seed and versions this is."""
    rows = [(name, _words(value)) for name, value in judgement.about.items() if value not in (None, "", {})]
    notes = page.bullets(judgement.notes) if judgement.notes else ""
    return page.section("About this report", notes + page.pairs(rows))


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(part) for part in value)
    return str(value)
