"""Figures over a size as lines, in an SVG that needs no library to write or to see."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from benchmarks.report import number

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 760, 300, 64, 34, 40, 150
_COLOURS = ("#2f6f9f", "#b5532a", "#5b8c3e", "#7a5195", "#8a8a8a")


def curves(
    title: str, across: str, xs: Sequence[float], lines: Mapping[str, Sequence[float]]
) -> str:
    """An SVG of one line for each of `lines`, over the same `xs`.

    Args:
        across: what `xs` are.
        lines: one value of the same unit for each x, by name.
    """
    top = _round_up(max((value for ys in lines.values() for value in ys), default=1.0))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    most = max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * x / most, _TOP + high * (1 - y / top)

    parts = [f'<text x="0" y="16" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        value = top * step / 4
        _, y = place(0, value)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    for x in xs:
        at, _ = place(x, 0)
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{number(x)}</text>'
        )
    middle = _LEFT + wide / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(across)}</text>'
    )
    for row, ((name, ys), colour) in enumerate(zip(lines.items(), _COLOURS, strict=False)):
        points = [place(x, y) for x, y in zip(xs, ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = _TOP + 12 + row * 18
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{y}" fill="{colour}">{escape(name)}</text>'
        )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _round_up(value: float) -> float:
    """The next round figure for the end of an axis."""
    if value <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 5, 8, 10) if unit * step >= value)
