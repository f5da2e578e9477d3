"""Figures as bars, in an SVG that needs no library to write or to see."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

from benchmarks.report import number

_WIDTH, _LABEL, _BAR, _GAP, _TITLE = 760, 190, 16, 4, 30
_OURS, _THEIRS = "#2f6f9f", "#b0b0b0"


def bars(groups: Mapping[str, Mapping[str, float]], ours: frozenset[str]) -> str:
    """An SVG of horizontal bars.

    Args:
        groups: for each title, figures by column, all of one unit.
        ours: columns that are drawn in our colour.
    """
    most = max(value for figures in groups.values() for value in figures.values())
    scale = (_WIDTH - _LABEL - 60) / most
    parts: list[str] = []
    y = 0
    for title, figures in groups.items():
        y += _TITLE
        parts.append(f'<text x="0" y="{y - 8}" font-weight="bold">{escape(title)}</text>')
        for column, value in figures.items():
            colour, middle = _OURS if column in ours else _THEIRS, y + _BAR - 4
            parts.append(
                f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{escape(column)}</text>'
                f'<rect x="{_LABEL}" y="{y}" width="{value * scale:.1f}" height="{_BAR}" '
                f'fill="{colour}"/>'
                f'<text x="{_LABEL + value * scale + 6:.1f}" y="{middle}">{number(value)}</text>'
            )
            y += _BAR + _GAP
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + _GAP}" '
        'font-family="sans-serif" font-size="12" fill="#222">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
