"""Figures as lines over a common axis, in an SVG that needs no library to write or to see."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from benchmarks.report import number

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 130, 34, 40
_COLOURS = ("#c0392b", "#2f6f9f", "#7f8c8d", "#27ae60", "#8e44ad", "#d68910")

Line = Sequence[float | None]


def panel(title: str, xs: Sequence[str], lines: Mapping[str, Line], marks: Sequence[float]) -> str:
    """A panel of lines on a logarithmic scale.

    Args:
        xs: labels of the points, at equal distances.
        lines: values by name, one for each point; where there is none, the line has a gap.
        marks: values that get a horizontal line; the outermost two are the ends of the scale.
    """
    low, high = math.log(min(marks)), math.log(max(marks))
    wide, high_px = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(n: int) -> float:
        return _LEFT + wide * n / (len(xs) - 1)

    def y(value: float) -> float:
        share = (min(max(math.log(value), low), high) - low) / (high - low)
        return _TOP + high_px * (1 - share)

    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for mark in marks:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" '
            f'stroke="#ddd"/><text x="{_LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">'
            f"{number(mark)}</text>"
        )
    for n, label in enumerate(xs):
        parts.append(
            f'<text x="{x(n):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    ends: list[tuple[float, str, str]] = []
    for at, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[at % len(_COLOURS)]
        points = [(x(n), y(value)) for n, value in enumerate(line) if value is not None]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        dash = ' stroke-dasharray="5 4"' if at % 2 else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points
        ]
        if points:
            ends.append((points[-1][1], name, colour))
    below = -math.inf  # names do not cover each other
    for py, name, colour in sorted(ends):
        below = max(py + 4, below + 14)
        parts.append(
            f'<text x="{_LEFT + wide + 10}" y="{below:.1f}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join(parts)


def page(panels: Sequence[str]) -> str:
    """An SVG with panels below each other."""
    body = "\n".join(
        f'<g transform="translate(0 {n * _HEIGHT})">\n{each}\n</g>' for n, each in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {len(panels) * _HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
