"""A number over the last hour, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from mzplan.features.ui.samples import Point
from mzplan.render.html import Markup, element

HOUR = 3600.0  # seconds
_WIDTH, _HEIGHT, _LEFT, _FOOT = 640, 150, 64, 22
_GAP = 150.0  # seconds without a sample (runners record each minute), after which the line is interrupted


def plot(points: Sequence[Point], label: str, now: float) -> Markup:
    """The points of the hour before `now`; a line wherever samples follow each other."""
    shown = [(at, value) for at, value in points if now - HOUR <= at <= now]
    most = max((value for _, value in shown if value is not None), default=0.0) or 1.0
    right, bottom = _WIDTH - 8, _HEIGHT - _FOOT

    def place(at: float, value: float) -> str:
        x = _LEFT + (at - now + HOUR) / HOUR * (right - _LEFT)
        return f"{x:.1f},{bottom - value / most * (bottom - 14):.1f}"

    lines: list[list[str]] = [[]]
    before = 0.0
    for at, value in shown:
        if value is None or at - before > _GAP:
            lines.append([])
        if value is not None:
            lines[-1].append(place(at, value))
            before = at
    last = next((value for _, value in reversed(shown) if value is not None), None)
    marks = [
        element(
            "text", f"{most:,.4g}" if most < 100 else f"{most:,.0f}", x=_LEFT - 8, y=18, class_="axis end"
        ),
        element("text", "0", x=_LEFT - 8, y=bottom, class_="axis end"),
        element("path", d=f"M{_LEFT} {bottom}H{right}M{_LEFT} 14H{right}", class_="grid"),
    ]
    for minutes in (60, 40, 20, 0):
        x = right - minutes * 60 / HOUR * (right - _LEFT)
        text = f"-{minutes} min" if minutes else "now"
        marks.append(
            element("text", text, x=round(x), y=_HEIGHT - 6, class_="axis" if minutes == 60 else "axis end")
        )
    drawn = [
        element("polyline", points=" ".join(line if len(line) > 1 else line * 2), class_="line")
        for line in lines
        if line
    ]
    said = f"{label}, now {last:,.4g}" if last is not None else f"{label}: nothing is known"
    svg = element(
        "svg", marks, drawn, class_="plot", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=said
    )
    return element("figure", element("figcaption", said), svg)
