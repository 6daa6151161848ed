"""Draws a timeline: a line of characters per device for a terminal, or an SVG.

Transfers that a device overlaps with compute are drawn below its compute in the SVG. In the text they show only while the
device does not compute.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from dnnc.build.trace import TraceEvent
from ir.core.diagnostics import visible
from ir.text.units import bytes_text, seconds_text

SIGNS = {"send": "-", "recv": "-", "collective": "="}
"""Signs of events that move data. A forward or backward pass has its letter, an update of weights U."""
WAITING = "."
LEGEND = {
    "F": "F forward",
    "B": "B backward",
    "I": "I gradients of values",
    "W": "W gradients of weights",
    "U": "U update",
    "send": "- transfers",
    "collective": "= collectives",
}
COLOURS = {
    "F": "#4c78a8",
    "B": "#59a14f",
    "I": "#59a14f",
    "W": "#b6992d",
    "U": "#e15759",
    "send": "#bab0ac",
    "recv": "#d4ccc8",
    "collective": "#9c755f",
}
NAMES = {
    "F": "forward",
    "B": "backward (I, then W)",
    "I": "gradients of values",
    "W": "gradients of weights",
    "U": "update",
    "send": "send",
    "recv": "receive",
    "collective": "collective",
}

PIPED, WIDEST = 100, 240
"""Characters of a line without a terminal, and most characters of any line."""

Memory = Mapping[str, Sequence[tuple[float, int]]]
"""Memory over time by device: pairs of a time in seconds and the bytes that are held from then on."""


def gantt_text(events: Iterable[TraceEvent], width: int) -> str:
    """One line per device, at most ``width`` characters wide, and an axis of seconds. A pass is drawn as its letter and, if
    there is room, the number of its microbatch."""
    rows = _rows(events)
    end = max((event.end for row in rows.values() for event in row), default=0.0)
    names = [visible(name) for name in rows]
    label = max(map(len, names), default=0) + 2
    cells = max(16, width - label - 2)
    lines = [f"{name:{label}}|{_line(row, end, cells)}|" for name, row in zip(names, rows.values(), strict=True)]
    scale = f"0{seconds_text(end):>{cells}}" if end else "0"
    kinds = {event.kind for row in rows.values() for event in row}
    legend = ", ".join([told for kind, told in LEGEND.items() if kind in kinds] + [f"{WAITING} waiting"])
    return "\n".join([*lines, " " * label + scale, " " * label + " " + legend]) + "\n"


def print_gantt(events: Iterable[TraceEvent]) -> None:
    """Writes ``gantt_text`` to standard output; on a terminal in colours and in its width."""
    text = gantt_text(events, min(shutil.get_terminal_size((PIPED, 24)).columns, WIDEST))
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.text import Text

    drawn, kind = Text(), ""
    for line in text.splitlines(keepends=True):
        name, bar, signs = line.partition("|")
        drawn.append(name + bar)
        for sign in signs:
            kind = sign.upper() if sign.isalpha() else kind if sign.isdigit() else ""
            drawn.append(sign, style=f"on {COLOURS[kind]}" if kind in COLOURS else None)
    Console(highlight=False).print(drawn, end="", soft_wrap=True)


def _line(row: Sequence[TraceEvent], end: float, cells: int) -> str:
    """The line of a device. A cell shows the event that takes most of it; compute hides events that move data."""
    most = [0.0] * cells
    owner: list[TraceEvent | None] = [None] * cells
    for event in sorted(row, key=lambda one: one.kind in SIGNS):
        first, last = event.start / end * cells, event.end / end * cells
        for cell in range(int(first), min(cells, int(last) + 1)):
            covered = min(last, cell + 1) - max(first, cell)
            other = owner[cell]
            beaten = other is None or (other.kind in SIGNS) == (event.kind in SIGNS) or most[cell] < 0.5
            if covered > most[cell] and beaten and covered > 0.25:
                most[cell], owner[cell] = covered, event
    text: list[str] = []
    while len(text) < cells:
        one = owner[len(text)]
        length = next((n for n, other in enumerate(owner[len(text) :]) if other is not one), cells - len(text))
        text += _block(one, length)
    return "".join(text)


def _block(event: TraceEvent | None, length: int) -> str:
    if event is None:
        return WAITING * length
    if event.kind in SIGNS:
        return SIGNS[event.kind] * length
    number = "" if event.kind == "U" else str(dict(event.args).get("microbatch", ""))
    told = event.kind + number
    return f"{told if len(told) < length else event.kind:{event.kind.lower()}<{length}}"


WIDTH = 1280
"""Of a timeline as SVG, in pixels."""


def gantt_svg(events: Iterable[TraceEvent], title: str, memory: Memory | None = None) -> str:
    """An SVG with a bar per device over an axis of seconds. ``memory``: bytes that a device holds, drawn below its bar. Each
    block has a tooltip."""
    rows = _rows(events)
    end = max((event.end for row in rows.values() for event in row), default=0.0) or 1.0
    left = 16 + 7 * max((len(visible(name)) for name in rows), default=0)
    scale = (WIDTH - left - 16) / end
    top, parts = 34, list[str]()
    for name, row in rows.items():
        held = memory.get(name, ()) if memory else ()
        parts.append(f'<text x="8" y="{top + 17}">{_text(name)}</text>')
        parts += [_bar(event, left, top, scale) for event in row]
        top += 34
        if held:
            parts.append(_curve(held, left, top, scale, end))
            top += 44
        top += 8
    parts += _axis(left, top, scale, end)
    kinds = dict.fromkeys(event.kind for row in rows.values() for event in row)
    x = left
    for kind in (kind for kind in NAMES if kind in kinds):
        parts.append(f'<rect x="{x}" y="{top + 30}" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 16}" y="{top + 40}">{NAMES[kind]}</text>')
        x += 32 + 7 * len(NAMES[kind])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 52}" width="{WIDTH}" height="{top + 52}" '
        'font-family="sans-serif" font-size="12">'
    )
    frame = f'<rect width="{WIDTH}" height="{top + 52}" fill="white"/><text x="8" y="20" font-size="14">{_text(title)}</text>'
    return "\n".join([head, frame, *parts, "</svg>"]) + "\n"


def _bar(event: TraceEvent, left: float, top: float, scale: float) -> str:
    x, length = left + event.start * scale, max((event.end - event.start) * scale, 0.2)
    beside = bool(event.lane)  # transfers that the device overlaps with compute
    y, height = (top + 25, 6) if beside else (top, 24)
    told = f"{event.name}: {seconds_text(event.start)} to {seconds_text(event.end)}"
    block = (
        f'<rect x="{x:.2f}" y="{y}" width="{length:.2f}" height="{height}" fill="{COLOURS.get(event.kind, "#888888")}" '
        f'stroke="white" stroke-width="{0.5 if length > 3 else 0}"><title>{_text(told)}</title></rect>'
    )
    number = str(dict(event.args).get("microbatch", ""))
    if event.kind in SIGNS or event.kind == "U" or beside or length < 4 + 7 * len(number):
        return block
    return f'{block}<text x="{x + length / 2:.2f}" y="{y + 16}" fill="white" text-anchor="middle">{number}</text>'


def _curve(held: Sequence[tuple[float, int]], left: float, top: float, scale: float, end: float) -> str:
    """Bytes over time as a step curve, scaled to its peak."""
    peak = max(bytes_ for _, bytes_ in held) or 1
    points, level = list[str](), held[0][1]
    for at, bytes_ in (*held, (end, held[-1][1])):
        x = left + at * scale
        points += [f"{x:.2f},{top + 36 - 34 * level / peak:.2f}", f"{x:.2f},{top + 36 - 34 * bytes_ / peak:.2f}"]
        level = bytes_
    area = f"{left},{top + 36} {' '.join(points)} {left + end * scale:.2f},{top + 36}"
    return (
        f'<polygon points="{area}" fill="#e8edf3" stroke="#7f8fa3" stroke-width="0.5"/>'
        f'<text x="{left + 4}" y="{top + 31}" font-size="10">at most {bytes_text(peak)}</text>'
    )


def _axis(left: float, top: float, scale: float, end: float) -> list[str]:
    shapes = [f'<line x1="{left}" y1="{top}" x2="{left + end * scale:.2f}" y2="{top}" stroke="black"/>']
    for part in range(9):
        x = left + end * scale * part / 8
        shapes.append(f'<line x1="{x:.2f}" y1="{top}" x2="{x:.2f}" y2="{top + 4}" stroke="black"/>')
        anchor = "end" if part == 8 else "middle" if part else "start"
        shapes.append(f'<text x="{x:.2f}" y="{top + 17}" text-anchor="{anchor}">{_text(seconds_text(end * part / 8))}</text>')
    return shapes


def _text(text: str) -> str:
    return escape(visible(text), {'"': "&quot;"})


def _rows(events: Iterable[TraceEvent]) -> dict[str, list[TraceEvent]]:
    """Events by device, in the order of first events."""
    rows: dict[str, list[TraceEvent]] = {}
    for event in events:
        rows.setdefault(event.track, []).append(event)
    return rows
