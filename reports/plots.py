"""Plots as inline SVG, drawn by hand: deterministic, themed by the page's CSS variables, readable without scripts.

Every text goes through `Markup.format`, which escapes it. None and non-finite values leave a gap, never a zero.
Not covered: interaction; a plot carries `<title>` elements, which browsers show as tooltips and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reports.text import NONE, estimate, number, one_line
from schemas.metrics import Estimate

EMPTY = Markup("")


@dataclass(frozen=True)
class Row:
    """One line of a forest plot: `css` is the class that colours it; `group` is printed above when it changes."""

    label: str
    estimate: Estimate | None
    css: str = "c0"
    group: str = ""


def _svg(width: float, height: float, label: str, *body: Markup) -> Markup:
    head = Markup(
        '<svg class="plot" viewBox="0 0 {:.0f} {:.0f}" style="max-width:{:.0f}px" role="img" aria-label="{}">'
    )
    return head.format(width, height, width, one_line(label)) + EMPTY.join(body) + Markup("</svg>")


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, css, anchor, one_line(text, 60)
    )


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, css)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers inside [low, high], about that many; both ends may lie between ticks."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    raw = span / max(about, 1)
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next((m * scale for m in (1, 2, 5, 10) if m * scale >= raw * 0.999), 10 * scale)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick_text(value: float) -> str:
    return f"{value:g}"


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def curve(values: Sequence[float | None], name: str, threshold: float | None = None) -> Markup:
    """One value a step as a line with points; steps count from 1. Empty when no value is known."""
    known = _known(values)
    if not known:
        return EMPTY
    marks = [*known, threshold] if threshold is not None else known
    low, high = min(marks), max(marks)
    pad = (high - low) * 0.08 or abs(high) * 0.1 or 0.5
    low, high = (0.0 if 0 <= low < 0.35 * high else low - pad), high + pad
    left, right, top, bottom, width, height = 44.0, 8.0, 8.0, 20.0, 300.0, 132.0
    last = max(len(values) - 1, 1)

    def x(step: int) -> float:
        return left + (width - left - right) * step / last

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    parts = [_axis_y(t, left, width - right, y(t)) for t in ticks(low, high, 3)]
    wanted = {0, last, last // 2} if len(values) > 2 else {0, len(values) - 1}
    parts += [_text(x(step), height - 5, str(step + 1), "tick", "middle") for step in sorted(wanted)]
    if threshold is not None:
        parts.append(_line(left, y(threshold), width - right, y(threshold), "threshold"))
    for run in _runs(values):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in run)
        parts.append(Markup('<polyline class="curve" points="{}"/>').format(points))
        dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2"><title>step {}: {}</title></circle>')
        parts += [dot.format(x(step), y(value), step + 1, number(value, 4)) for step, value in run]
    return _svg(width, height, f"{name} by step", *parts)


def _axis_y(value: float, left: float, right: float, y: float) -> Markup:
    return _line(left, y, right, y, "gridline") + _text(left - 6, y + 3.5, _tick_text(value), "tick", "end")


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Unbroken stretches of known values."""
    runs: list[list[tuple[int, float]]] = []
    for step, value in enumerate(values):
        if value is None or not math.isfinite(value):
            continue
        if runs and runs[-1][-1][0] == step - 1:
            runs[-1].append((step, value))
        else:
            runs.append([(step, value)])
    return runs


def forest(rows: Sequence[Row], name: str, unit: bool = True, zero: bool = False, digits: int = 2) -> Markup:
    """Estimates with their intervals, one line each. `unit`: the axis is [0, 1]; `zero`: a reference line at 0."""
    if not rows:
        return EMPTY
    low, high = _range(rows, unit, zero)
    label, value, width, step = 170.0, 150.0, 640.0, 22.0
    left, right = label + 8, width - value

    def x(number_: float) -> float:
        return left + (right - left) * (min(max(number_, low), high) - low) / (high - low)

    parts: list[Markup] = []
    y, group = 4.0, ""
    for row in rows:
        if row.group and row.group != group:
            group, y = row.group, y + 26
            parts.append(_text(0, y - 6, row.group, "group"))
        y += step
        parts += _forest_row(row, x, y - 7, label, right + 10, width, digits)
    top = [_line(x(t), 4, x(t), y + 4, "zero" if zero and t == 0 else "gridline") for t in ticks(low, high, 5)]
    foot = [_text(x(t), y + 18, _tick_text(t), "tick", "middle") for t in ticks(low, high, 5)]
    return _svg(width, y + 24, name, *top, *parts, *foot)


def _range(rows: Sequence[Row], unit: bool, zero: bool) -> tuple[float, float]:
    if unit:
        return 0.0, 1.0
    marks = [
        v for row in rows if row.estimate for v in _known([row.estimate.value, row.estimate.low, row.estimate.high])
    ]
    marks += [0.0] if zero or not marks else []
    low, high = min(marks), max(marks)
    pad = (high - low) * 0.06 or 0.1
    return low - pad, high + pad


def _forest_row(row: Row, x: object, y: float, label: float, text_x: float, width: float, digits: int) -> list[Markup]:
    place = x if callable(x) else float
    shown = row.estimate
    parts = [_text(label, y + 4, one_line(row.label, 26), "label", "end")]
    if shown is None or shown.value is None or not math.isfinite(shown.value):
        return [*parts, _text(text_x, y + 4, NONE, "value muted")]
    title = Markup("<title>{}: {}</title>").format(one_line(row.label), estimate(shown))
    if shown.low is not None and shown.high is not None:
        bar = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="ci {}">{}</line>')
        parts.append(bar.format(place(shown.low), y, place(shown.high), y, row.css, title))
    dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" class="point {}">{}</circle>')
    parts.append(dot.format(place(shown.value), y, row.css, title))
    interval = (
        ""
        if shown.low is None or shown.high is None
        else f" [{number(shown.low, digits)}, {number(shown.high, digits)}]"
    )
    parts.append(_text(text_x, y + 4, f"{number(shown.value, digits)}{interval}", "value"))
    return parts


def share_bar(of: Estimate | None, css: str = "c0") -> Markup:
    """A share in [0, 1] as a short bar with its interval; empty without data."""
    if of is None or of.value is None:
        return EMPTY
    width, height = 96.0, 12.0
    parts = [
        Markup('<rect x="0" y="3" width="{:.1f}" height="6" rx="3" class="track"/>').format(width),
        Markup('<rect x="0" y="3" width="{:.1f}" height="6" rx="3" class="fill {}"/>').format(
            width * _unit(of.value), css
        ),
    ]
    if of.low is not None and of.high is not None:
        parts.append(_line(width * _unit(of.low), 6, width * _unit(of.high), 6, "whisker"))
    return _svg(width, height, estimate(of), *parts)


def trend(points: Sequence[tuple[int, Estimate | None]], css: str = "c0") -> Markup:
    """A share in [0, 1] round by round, with its intervals; a round without it is a gap. Empty with fewer than two rounds."""
    if len(points) < 2:
        return EMPTY
    width, height, pad = 96.0, 30.0, 5.0

    def x(index: int) -> float:
        return pad + (width - 2 * pad) * index / (len(points) - 1)

    def y(value: float) -> float:
        return height - pad - (height - 2 * pad) * _unit(value)

    parts: list[Markup] = [_line(0, height - pad, width, height - pad, "gridline")]
    for run in _runs([one.value if one else None for _, one in points]):
        line = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in run)
        parts.append(Markup('<polyline class="spark {}" points="{}"/>').format(css, line))
    for i, (number_, one) in enumerate(points):
        if one is None or one.value is None:
            continue
        if one.low is not None and one.high is not None:
            parts.append(_line(x(i), y(one.low), x(i), y(one.high), "whisker faint"))
        dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6" class="point {}"><title>round {}: {}</title></circle>')
        parts.append(dot.format(x(i), y(one.value), css, number_, estimate(one)))
    return _svg(width, height, "measured share by round", *parts)


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


@dataclass(frozen=True)
class Link:
    """`size` failures that go from a bucket to a route."""

    source: str
    target: str
    size: int
    css: str


def flow(links: Sequence[Link], name: str) -> Markup:
    """Buckets on the left, routes on the right, bands as wide as the failures between them."""
    links = [link for link in links if link.size > 0]
    if not links:
        return EMPTY
    total, gap, width, left, right = sum(link.size for link in links), 12.0, 720.0, 250.0, 560.0
    unit = max(150.0, 26.0 * len(links)) / total
    routes = list(dict.fromkeys(link.target for link in links))
    heights = [max(link.size * unit, 3.0) for link in links]
    sums = {route: sum(h for h, link in zip(heights, links, strict=True) if link.target == route) for route in routes}
    tall = sum(heights) + gap * (len(links) - 1)
    starts = _stack([sums[route] for route in routes], gap, (tall - sum(sums.values()) - gap * (len(routes) - 1)) / 2)
    cursor = dict(zip(routes, starts, strict=True))
    parts: list[Markup] = []
    for link, high, top in zip(links, heights, _stack(heights, gap, 0.0), strict=True):
        parts.append(_band(left, top, right, cursor[link.target], high, link))
        parts.append(_text(left - 14, top + high / 2 + 4, f"{link.source} ({link.size})", "label", "end"))
        cursor[link.target] += high
    for route, start in zip(routes, starts, strict=True):
        size = sum(link.size for link in links if link.target == route)
        css = next(link.css for link in links if link.target == route)
        parts.append(_node(right, start, sums[route], css))
        parts.append(_text(right + 16, start + sums[route] / 2 + 4, f"{route} ({size})", "label strong"))
    return _svg(width, tall + 4, name, *parts)


def _stack(heights: Sequence[float], gap: float, start: float) -> list[float]:
    tops, at = [], start
    for height in heights:
        tops.append(at)
        at += height + gap
    return tops


def _node(x: float, y: float, height: float, css: str) -> Markup:
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="8" height="{:.1f}" rx="2" class="fill {}"/>').format(
        x, y, height, css
    )


def _band(x1: float, y1: float, x2: float, y2: float, height: float, link: Link) -> Markup:
    middle, low1, low2 = (x1 + x2) / 2, y1 + height, y2 + height
    path = (
        f"M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f} "
        f"V{low2:.1f} C{middle:.1f} {low2:.1f} {middle:.1f} {low1:.1f} {x1:.1f} {low1:.1f} Z"
    )
    title = Markup("<title>{} to {}: {}</title>").format(one_line(link.source), one_line(link.target), link.size)
    shape = Markup('<path d="{}" class="band {}">{}</path>').format(path, link.css, title)
    return shape + _node(x1 - 8, y1, height, link.css)
