"""A quest as a drawing: as SVG for a page, and as text for programs that draw.

The drawing is laid out in rows: a stage stands below all that lead to it. Ways that skip
rows, and ways back, go around at the right.
"""

import re
import unicodedata
from collections.abc import Iterator
from html import escape

from npc.quests.quest import Quest, Stage, Step
from scenes.conditions import in_words, one_of

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 210, 52, 40, 76, 24
_ARC = 200
_LETTERS, _JOURNAL, _REASON = 30, 34, 40
#: Of this picture alone: in a page it would hold for all others as well.
_STYLE = "".join(
    f".quest-graph {rule}"
    for rule in (
        "text{font:12px system-ui,sans-serif;fill:#24292f}",
        ".id{font-weight:600}",
        ".way,.quest-graph .why{font-size:11px;fill:#57606a}",
        ".why{paint-order:stroke;stroke:#fff;stroke-width:4px}",
        "rect{fill:#f6f8fa;stroke:#57606a;rx:8px}",
        "rect.end{fill:#dafbe1;stroke:#1a7f37}",
        "rect.now{stroke:#0969da;stroke-width:3px}",
        "path{fill:none;stroke:#57606a}",
        "path.time{stroke-dasharray:4 3}",
    )
)
#: What no XML may hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ARROW = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#57606a;stroke:none"/></marker>'
)


def graph_svg(quest: Quest, now: str = "") -> str:
    """The quest as one `<svg>` element, which needs nothing from outside.

    Args:
        now: id of the stage to mark; "" for none.
    """
    rows = _rows(quest)
    widest = max(map(len, rows))
    width = 2 * _MARGIN + widest * _WIDTH + (widest - 1) * _ACROSS + _ARC
    height = 2 * _MARGIN + len(rows) * _HEIGHT + (len(rows) - 1) * _DOWN
    places = {
        stage: (_left(at, len(row), widest), _MARGIN + depth * (_HEIGHT + _DOWN))
        for depth, row in enumerate(rows)
        for at, stage in enumerate(row)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" class="quest-graph">',
        f"<title>{_escaped(quest.title)}</title><style>{_STYLE}</style><defs>{_ARROW}</defs>",
    ]
    for stage in quest.stages.values():
        ways = list(_ways(stage))
        for number, (target, label, timed) in enumerate(ways):
            start, end = places[stage.id], places[target]
            if end[1] - start[1] == _HEIGHT + _DOWN:
                path, words = _down(start, end, label, number, len(ways))
            else:
                path, words = _around(start, end, label, number, width - _ARC - _MARGIN)
            kind = "time" if timed else ""
            parts.append(f'<path class="{kind}" d="{path}" marker-end="url(#tip)"/>{words}')
    parts += [_box(stage, *places[stage.id], now) for stage in quest.stages.values()]
    return "".join([*parts, "</svg>"])


def mermaid(quest: Quest) -> str:
    """The quest as a Mermaid state diagram."""
    number = {stage: f"s{at}" for at, stage in enumerate(quest.stages)}
    lines = ["stateDiagram-v2", f"  [*] --> {number[quest.start]}"]
    lines += [f'  state "{_plain(stage)}" as {number[stage]}' for stage in quest.stages]
    for stage in quest.stages.values():
        for target, label, _ in _ways(stage):
            lines.append(f"  {number[stage.id]} --> {number[target]} : {_plain(label)}")
        if stage.ending:
            lines.append(f"  {number[stage.id]} --> [*] : {_plain(stage.ending)}")
    return "\n".join(lines) + "\n"


def dot(quest: Quest) -> str:
    """The quest in Graphviz' language."""
    lines = [f'digraph "{_plain(quest.id)}" {{', "  node [shape=box, style=rounded];"]
    for stage in quest.stages.values():
        shape = ", peripheries=2" if stage.ending else ""
        lines.append(f'  "{_plain(stage.id)}" [label="{_plain(_name(stage))}"{shape}];')
        for target, label, timed in _ways(stage):
            style = ", style=dashed" if timed else ""
            lines.append(
                f'  "{_plain(stage.id)}" -> "{_plain(target)}" [label="{_plain(label)}"{style}];'
            )
    return "\n".join([*lines, "}"]) + "\n"


def _rows(quest: Quest) -> list[list[str]]:
    """Ids of the stages by the longest way from the first one, ways back left out."""
    done: list[str] = []  # each before all from which it is reached
    onward: dict[str, list[str]] = {}

    def visit(stage: str, path: frozenset[str]) -> None:
        path |= {stage}
        onward[stage] = [to for to in quest.stages[stage].leads_to() if to not in path]
        for to in onward[stage]:
            if to not in onward:
                visit(to, path)
        done.append(stage)

    visit(quest.start, frozenset())
    depth = dict.fromkeys(onward, 0)
    for stage in reversed(done):
        for to in onward[stage]:
            depth[to] = max(depth[to], depth[stage] + 1)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for stage in quest.stages:
        rows[depth[stage]].append(stage)
    return rows


def _left(at: int, count: int, widest: int) -> int:
    room = (widest - count) * (_WIDTH + _ACROSS) // 2
    return _MARGIN + room + at * (_WIDTH + _ACROSS)


def _ways(stage: Stage) -> Iterator[tuple[str, str, bool]]:
    """Where a stage leads, why, and whether by time."""
    for step in stage.steps:
        yield step.to, _reason(step), False
    if stage.after_s:
        yield stage.late, f"after {stage.after_s} s", True


def _reason(step: Step) -> str:
    words = []
    if step.on is not None:
        by = f" by {step.on.npc}" if step.on.npc else ""
        words.append(f"{step.on.name}{by}{'' if step.on.ok else ' refused'}")
        words += [f"{key} {one_of(values)}" for key, values in step.on.fields]
    return ", ".join([*words, *map(in_words, step.when)])


def _name(stage: Stage) -> str:
    return f"{stage.id} ({stage.ending})" if stage.ending else stage.id


def _box(stage: Stage, x: int, y: int, now: str) -> str:
    kind = " ".join(
        word for word, holds in (("end", stage.ending), ("now", stage.id == now)) if holds
    )
    middle = x + _WIDTH // 2
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
        + _text("id", middle, y + 22, _name(stage), _LETTERS)
        + _text("way", middle, y + 40, stage.journal, _JOURNAL)
    )


def _down(
    start: tuple[int, int], end: tuple[int, int], label: str, number: int, of: int
) -> tuple[str, str]:
    """The path and the label of a way to the next row."""
    # Ways leave a box side by side, so that two to one stage can be told apart.
    x1, y1 = start[0] + _WIDTH * (number + 1) // (of + 1), start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH // 2, end[1]
    bend = _DOWN // 2
    path = f"M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"
    # Higher for one, lower for the next: labels of neighbours would cover each other.
    return path, _text("why", (x1 + x2) // 2, y1 + 22 + 16 * (number % 3), label, _REASON)


def _around(
    start: tuple[int, int], end: tuple[int, int], label: str, number: int, right: int
) -> tuple[str, str]:
    """The path and the label of any other way, which goes around all boxes at their right."""
    x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT // 3
    x2, y2 = end[0] + _WIDTH, end[1] + _HEIGHT * 2 // 3
    out = right + 24 + 28 * (number % 4)
    path = f"M{x1} {y1}C{out} {y1} {out} {y1} {out} {(y1 + y2) // 2}S{out} {y2} {x2} {y2}"
    return path, _text("why", out, (y1 + y2) // 2 + 16 * (number % 4), label, _REASON)


def _text(kind: str, x: int, y: int, text: str, most: int) -> str:
    if not text:
        return ""
    shown = _cut(text, most)
    hint = "" if shown == text else f"<title>{_escaped(text)}</title>"
    place = f'class="{kind}" x="{x}" y="{y}" text-anchor="middle"'
    return f"<text {place}>{hint}{_escaped(shown)}</text>"


def _cut(text: str, most: int) -> str:
    """A text that takes the room of `most` letters; wide ones take that of two."""
    room = 0
    for at, letter in enumerate(text):
        room += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room > most:
            return text[: at - 1] + "…"
    return text


def _escaped(text: str) -> str:
    """A text that is nothing but text in XML."""
    return escape(_NO_XML.sub("\ufffd", text))


def _plain(text: str) -> str:
    """Text that means nothing to the languages above."""
    return "".join(c if c.isalnum() or c in " ._-=≥≤,()" else " " for c in text).strip() or "_"
