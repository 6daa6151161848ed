"""A plot of search times as SVG: two panels with logarithmic axes, seconds against ideals and against devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#000000", "#d55e00", "#56b4e9", "#666666")
"""Okabe and Ito's, which the colour-blind tell apart."""
PUBLIC = "public workloads"
"""The series that is dots alone: what it holds has nothing else in common."""
WIDTH, HEIGHT, LEFT, TOP = 440, 330, 62, 46
"""Of a panel's area, and the margins before it."""


@dataclass(frozen=True)
class Point:
    """One search."""

    series: str
    ideals: int
    devices: int
    seconds: float


def plots(points: Sequence[Point]) -> str:
    """Both panels. Series are joined by lines against ideals; against devices, the largest lattice of each size is."""
    series = list(dict.fromkeys(point.series for point in points))
    shown = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(series)}
    sizes = sorted({point.ideals for point in points if point.series != PUBLIC})
    by_size = {f"{size} ideals": [p for p in points if p.ideals == size and p.series != PUBLIC] for size in sizes}
    tinted = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(by_size)}
    by_series = {name: [p for p in points if p.series == name] for name in series}
    total = 2 * (WIDTH + LEFT) + 300
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{TOP + HEIGHT + 60}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{total}" height="{TOP + HEIGHT + 60}" fill="white"/>',
        _panel(0, "seconds to a proven optimum, by ideals of the lattice", "ideals", lambda p: p.ideals, by_series, shown),
        _panel(WIDTH + LEFT + 150, "and by devices", "devices", lambda p: p.devices, by_size, tinted),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(
    x: int,
    title: str,
    axis: str,
    along: Callable[[Point], int],
    groups: dict[str, list[Point]],
    colours: dict[str, str],
) -> str:
    """One panel with its axes, its lines and its legend, ``x`` pixels from the left."""
    points = [point for group in groups.values() for point in group]
    low_x, high_x = min(map(along, points)) / 1.3, max(map(along, points)) * 1.3
    low_y, high_y = (f(point.seconds for point in points) for f in (min, max))
    low_y, high_y = low_y / 1.5, high_y * 1.5

    def at(value: float, low: float, high: float) -> float:
        return math.log(value / low) / math.log(high / low)

    def place(point: Point) -> tuple[float, float]:
        return LEFT + WIDTH * at(along(point), low_x, high_x), TOP + HEIGHT * (1 - at(point.seconds, low_y, high_y))

    out = [f'<g transform="translate({x},0)">', f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}</text>']
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
    for value in _ticks(low_x, high_x, 2 if high_x / low_x < 100 else 10):
        px = LEFT + WIDTH * at(value, low_x, high_x)
        out.append(f'<line x1="{px:.1f}" y1="{TOP}" x2="{px:.1f}" y2="{TOP + HEIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{px:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(low_y, high_y, 10):
        py = TOP + HEIGHT * (1 - at(value, low_y, high_y))
        out.append(f'<line x1="{LEFT}" y1="{py:.1f}" x2="{LEFT + WIDTH}" y2="{py:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{value:g}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">{escape(axis)}</text>')
    out.append(f'<text x="14" y="{TOP + HEIGHT / 2}" transform="rotate(-90 14 {TOP + HEIGHT / 2})">seconds</text>')
    for number, (name, group) in enumerate(groups.items()):
        colour = colours[name]
        spots = [place(point) for point in sorted(group, key=lambda p: (along(p), p.seconds))]
        if name != PUBLIC:
            line = " ".join(f"{px:.1f},{py:.1f}" for px, py in spots)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>' for px, py in spots]
        y = TOP + 12 + 18 * number
        out.append(f'<circle cx="{LEFT + WIDTH + 14}" cy="{y - 4}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + WIDTH + 24}" y="{y}">{escape(name)}</text>')
    return "\n".join([*out, "</g>"])


def _ticks(low: float, high: float, base: int) -> list[float]:
    """Powers of ``base`` between the two."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** k for k in range(first, last + 1)]
