"""What a judgement means, in plain words: for the page and for the terminal."""

from __future__ import annotations

import numpy as np

from dreamsim.evaluation.calibration import meaning
from dreamsim.evaluation.intervals import Interval, interval
from dreamsim.evaluation.judge import Judgement
from dreamsim.evaluation.openloop import limits, overall
from dreamsim.evaluation.outcomes import lines as foretold
from dreamsim.evaluation.trust import Beside


def number(value: float) -> str:
    """Return a number as a person writes it: four digits that matter, no exponent where none is needed."""
    if not np.isfinite(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(found: Interval) -> str:
    """Return a mean with its interval."""
    if found.size < 2:
        return f"{number(found.mean)} (one value: no interval)"
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def steps(count: int) -> str:
    """Return a number of steps in words."""
    return f"{count} step" if count == 1 else f"{count} steps"


def verdict(judgement: Judgement) -> str:
    """Return in one sentence how far the dream can be trusted."""
    if judgement.drift is None:
        return "No dream was judged: these are real results only." if judgement.world is None else "Drift is unknown."
    furthest = judgement.drift.horizons[-1]
    if judgement.trusted == furthest:
        return f"The dream can be trusted over all {furthest} steps that were measured."
    if judgement.trusted:
        return f"The dream can be trusted for {steps(judgement.trusted)}, not for whole episodes."
    return "The dream cannot be trusted: it already fails at the first step."


def reading(judgement: Judgement) -> list[str]:
    """Return plain sentences: reality, trusted horizon, exploitation gap, rewards and ends."""
    said = [*_reality(judgement)]
    if judgement.drift is not None:
        said += [
            _horizon(judgement),
            rule(judgement),
            *(told_gap(row) for row in judgement.beside),
            *_rewards(judgement),
        ]
    if judgement.outcomes is not None:
        said += foretold(judgement.outcomes)
    if judgement.calibration is not None:
        said += meaning(judgement.calibration)
    return said + _late(judgement)


def text(judgement: Judgement) -> str:
    """Return the report for a terminal."""
    returns = interval(judgement.outcome.returns)
    lines = [f"{judgement.task or 'task'}: {judgement.policy or 'policy'}, {returns.size} real episodes"]
    lines += [f"  WARNING: {tag}" for tag in judgement.tags]
    lines += [f"  return   {spread(returns)}  middle half {number(returns.middle)}"]
    if judgement.outcome.successes is not None:
        lines += [f"  success  {success(judgement)}"]
    if judgement.beside:
        lines += ["", f"  {'horizon':>16} {'dream':>10} {'real':>10} {'gap (dream - real)':>30}"]
        for row in judgement.beside:
            name = f"{row.name} ({row.horizon})" if f"{row.horizon} steps" != row.name else row.name
            lines += [
                f"  {name:>16} {number(row.dream.mean()):>10} {number(row.real.mean()):>10} {spread(row.gap):>30}"
            ]
    if judgement.drift is not None:
        kind, curve, _ = overall(judgement.drift)
        lines += [
            "",
            f"  open-loop drift ({kind}, in standard deviations); trusted while dream <= limit",
        ]
        lines += [f"  {'h':>7} {'windows':>8} {'dream':>8} {'limit':>8} {'copy':>8} {'line':>8}"]
        found, bounds = judgement.drift, limits(judgement.drift, judgement.threshold, judgement.negligible)
        for h, windows, limit, dream, copy, line in zip(found.horizons, found.counts, bounds, *curve, strict=True):
            lines += [f"  {h:>7} {windows:>8} {dream:>8.3f} {limit:>8.3f} {copy:>8.3f} {line:>8.3f}"]
    lines += ["", *(f"  {sentence}" for sentence in [verdict(judgement), *reading(judgement)[1:]])]
    lines += [f"  note: {note}" for note in judgement.notes]
    return "\n".join(lines)


def success(judgement: Judgement) -> str:
    """Return the success rate with its interval and who says what success is."""
    told = judgement.outcome.successes
    assert told is not None
    known = told[~np.isnan(told)]
    share = interval(known)
    width = "" if share.size < 2 else f" [{share.low:.0%}, {share.high:.0%}]"
    silent = "" if len(known) == len(told) else f"; {len(told) - len(known)} episodes do not say"
    return f"{share.mean:.0%}{width} ({judgement.outcome.success_rule}{silent})"


def _reality(judgement: Judgement) -> list[str]:
    returns = interval(judgement.outcome.returns)
    if returns.size < 2:
        return [f"One real episode earned {number(returns.mean)}: too few to say how the policy usually does."]
    said = [
        f"Over {returns.size} real episodes the policy earned {number(returns.mean)} on average; "
        f"the {returns.level:.0%} interval of that mean is {number(returns.low)} to {number(returns.high)}."
    ]
    if returns.high - returns.low > 0.4 * abs(returns.mean):
        said.append("That interval is wide: more episodes are needed before comparing this policy with another.")
    return said


def rule(judgement: Judgement) -> str:
    """Return what it takes for a horizon to be trusted."""
    assert judgement.drift is not None
    floor = overall(judgement.drift)[2]
    least = f"{judgement.negligible:g}"
    least += f" above its error of showing the present, {number(floor)}," if floor >= 0.005 else ""
    return (
        "A horizon is trusted while at every one up to it the dream's error is within its limit: the better of copying "
        f"the last observation and a straight line, but at least {least} and at most {judgement.threshold:g}."
    )


def _horizon(judgement: Judgement) -> str:
    found, trusted = judgement.drift, judgement.trusted
    assert found is not None and trusted is not None
    kind, curve, _ = overall(found)
    what = "observations" if kind == "observation" else "states, compared in its own latent space,"
    if trusted == found.horizons[-1]:
        return f"Given the real actions, its {what} stay within the limit over all {trusted} measured steps."
    place = found.horizons.index(trusted) + 1 if trusted else 0
    error, limit = curve.model[place], limits(found, judgement.threshold, judgement.negligible)[place]
    if not np.isfinite(error):
        return "Its latent state never changes, so nothing it forecasts can be told from anything else."
    kept = f"Given the real actions, its {what} hold for {steps(trusted)}; " if trusted else f"Its {what} do not hold: "
    return (
        f"{kept}at {steps(found.horizons[place])} they are off by {number(error)} standard deviations of the data, "
        f"the limit there is {number(limit)}."
    )


def told_gap(row: Beside) -> str:
    """Say how much more or less a policy earns in the dream than in reality over the same steps."""
    over = f"Over the first {steps(row.horizon)}" if row.horizon > 1 else "Over the first step"
    earned = abs(float(row.real.mean()))
    share = abs(row.gap.mean) / earned if earned else (float("inf") if row.gap.mean else 0.0)
    much = f"{share:.0%} of" if share < 10 else "many times"
    part = f"{much} what it really earns" if earned else "it really earns nothing"
    amount = f"{number(abs(row.gap.mean))} ({part} in so many steps)"
    if row.gap.size < 2:
        return f"{over} dream and reality differ by {amount}; one episode cannot say whether by chance."
    if share < 0.01:
        return f"{over} the policy earns the same in the dream as in reality, within 1%."
    if row.gap.low <= 0 <= row.gap.high:
        return f"{over} the gap of {amount} cannot be told from chance with {row.gap.size} episodes."
    if row.gap.mean < 0:
        return f"{over} the dream is too pessimistic by {amount}."
    warning = ": do not choose policies by their return in this dream" if share > 0.1 else ""
    return f"{over} the policy earns {amount} more in the dream than in reality{warning}."


def _late(judgement: Judgement) -> list[str]:
    usual = float(judgement.outcome.returns.mean())
    means = [(delay, float(returns.mean())) for delay, returns in judgement.delayed.items()]
    parts = [f"{number(mean)} with actions {steps(delay)} late" for delay, mean in means]
    return [f"Instead of {number(usual)} it earns {' and '.join(parts)}."] if parts else []


def _rewards(judgement: Judgement) -> list[str]:
    found, said = judgement.drift, []
    assert found is not None
    if found.rewards is not None:
        total, constant = found.rewards.total[-1], found.rewards.constant[-1]
        word = "better" if total < constant else "no better"
        said.append(
            f"Its summed rewards over {found.horizons[-1]} steps are off by {number(total)} on average, "
            f"{word} than always forecasting the mean reward ({number(constant)})."
        )
    ends = found.ends
    if ends.terminations:
        said.append(
            f"{ends.terminations} terminations happened; it foresaw {ends.foreseen:.0%} of them on their very step, "
            f"and ended {ends.false_alarms:.1%} of the other steps wrongly."
        )
    else:
        said.append("No episode terminated, so nothing can be said about its forecasts of ends.")
    return said
