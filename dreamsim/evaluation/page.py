"""The look of a report: one self-contained page that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1b2330; --soft: #5d6778; --rule: #e1e5eb;
  --a: #1f62d0; --b: #b4470c; --c: #667085; --good: #16794a; --warn: #9a5b00; --bad: #b3261e; --band: #1f62d01f; }
@media (prefers-color-scheme: dark) { :root { --ground: #10141b; --card: #181e28; --text: #e6eaf1; --soft: #9aa5b6;
  --rule: #2b3442; --a: #79aaff; --b: #ff9d5c; --c: #9aa5b6; --good: #5fd39a; --warn: #f2bd5b; --bad: #ff8a80;
  --band: #79aaff26; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 1.12rem; margin: 0 0 10px; }
p { margin: 0 0 8px; } .soft { color: var(--soft); } small, .small { font-size: .86rem; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 20px 22px; margin: 18px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 22px 0 4px; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 16px 18px; }
.tile b { display: block; font-size: 1.75rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .86rem; display: block; }
.verdict { border-left: 5px solid var(--warn); font-size: 1.1rem; font-weight: 600; }
.verdict ul { font-size: 1rem; font-weight: 400; margin: 10px 0 0; padding-left: 20px; }
.verdict.good { border-left-color: var(--good); } .verdict.bad { border-left-color: var(--bad); }
.verdict.plain { border-left-color: var(--a); }
.tag { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 12px; border-bottom: 1px solid var(--rule);
  white-space: pre; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { font-weight: 600; color: var(--soft); }
tr:last-child td { border-bottom: 0; } td.words { white-space: normal; text-align: left; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 18px; }
@media (max-width: 460px) { .pair { grid-template-columns: 1fr; } }
figure { margin: 0; } figcaption { color: var(--soft); font-size: .86rem; margin-top: 6px; }
.chart { width: 100%; max-width: 720px; height: auto; display: block; }
.chart text { fill: var(--soft); font-size: 12px; }
.chart .end { text-anchor: end; } .chart .middle { text-anchor: middle; } .chart .label { font-size: 12.5px; }
.chart .word { fill: var(--text); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); }
.mark { stroke: var(--text); stroke-dasharray: 2 4; } .band { fill: var(--band); }
.line { fill: none; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: round; }
.line.a { stroke: var(--a); } .line.b { stroke: var(--b); stroke-dasharray: 8 5; }
.line.c { stroke: var(--c); stroke-dasharray: 2 5; } .line.d { stroke: var(--text); stroke-width: 1.2; }
.knot.a { fill: var(--a); } .knot.b { fill: var(--b); }
.knot.c { fill: var(--c); } .knot.d { fill: none; } .dot { fill: var(--a); stroke: var(--card); stroke-width: 1.5; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 6px 0 0;
  font-size: .86rem; }
.legend li { display: flex; gap: 7px; align-items: center; }
.columns { display: grid; grid-auto-flow: column; grid-auto-columns: 1fr; text-align: center; color: var(--soft);
  font-size: .86rem; max-width: 900px; }
video, .film { width: 100%; max-width: 900px; border-radius: 6px; background: #000; display: block; }
video.single, .columns.single { max-width: 420px; }
details summary { cursor: pointer; color: var(--soft); } details[open] summary { margin-bottom: 8px; }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""


def page(title: str, body: str) -> str:
    """Return a whole HTML document."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def section(heading: str, body: str, kind: str = "") -> str:
    """Return a card with a heading; ``body`` is HTML."""
    top = f"<h2>{escape(heading)}</h2>" if heading else ""
    return f'<section class="{kind}">{top}{body}</section>' if kind else f"<section>{top}{body}</section>"


def tile(value: str, name: str, below: str = "") -> str:
    """Return one headline figure."""
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(below)}</span></div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain words; its first column is set left."""
    top = "".join(f'<th scope="col">{escape(word)}</th>' for word in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Return names beside values."""
    body = "".join(f'<tr><td>{escape(name)}</td><td class="words">{escape(value)}</td></tr>' for name, value in rows)
    return f'<div class="wide"><table><tbody>{body}</tbody></table></div>'


def figure(content: str, caption: str) -> str:
    """Return content (HTML) with a caption."""
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def bullets(sentences: Sequence[str]) -> str:
    """Return sentences as a list."""
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def paragraph(sentence: str, kind: str = "") -> str:
    """Return one sentence."""
    return f'<p class="{kind}">{escape(sentence)}</p>' if kind else f"<p>{escape(sentence)}</p>"
