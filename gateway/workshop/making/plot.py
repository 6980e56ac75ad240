"""Diagram of a model's variants as SVG: accuracy over the time of a run; the area of a circle is the size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, MARGIN, TOP, LEGEND = 980, 470, 70, 120, 330
"""Sizes in pixels; circles and their numbers reach into the space above the plot, the legend is on the right side."""
LARGEST_RADIUS, LEAST_RADIUS = 26.0, 4.0
COLOURS = {"onnx": "#1f77b4", "openvino": "#2ca02c", "litert": "#d97706", "reference": "#6b7280"}


@dataclass(frozen=True, slots=True)
class Point:
    """Variant in the diagram."""

    name: str
    runtime: str
    p50_us: float
    accuracy: float
    size_bytes: int
    is_kept: bool


def draw_svg(points: Sequence[Point], title: str, accuracy: str) -> str:
    """Return the diagram; `accuracy` says what that is. The time is on a logarithmic axis.

    Circles of variants that are not kept are empty.
    """
    times = [math.log10(max(each.p50_us, 1e-3)) for each in points]
    low, high = min(times), max(times)
    bottom = min(each.accuracy for each in points)
    top = max(each.accuracy for each in points)
    frame = _PlotFrame(low - 0.1, high + 0.1, bottom - max(0.002, (top - bottom) * 0.2), min(1.0, top))
    largest = max(each.size_bytes for each in points)
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
        f'<text x="{MARGIN}" y="28" font-size="15">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="48">accuracy: {escape(accuracy)}</text>',
        *_axes(frame),
        *(_circle(frame, each, math.sqrt(each.size_bytes / max(1, largest))) for each in points),
        *(_number(frame, each, index) for index, each in enumerate(points)),
        *(_legend(each, index) for index, each in enumerate(points)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _PlotFrame:
    """Range of both axes: the decimal logarithm of µs, and accuracy."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, time_us: float) -> float:
        share = (math.log10(max(time_us, 1e-3)) - self.left) / (self.right - self.left)
        return MARGIN + share * (WIDTH - LEGEND - 2 * MARGIN)

    def y(self, accuracy: float) -> float:
        share = (accuracy - self.bottom) / (self.top - self.bottom)
        return HEIGHT - MARGIN - share * (HEIGHT - TOP - MARGIN)


def _axes(frame: _PlotFrame) -> Iterator[str]:
    yield f'<path d="M{MARGIN} {TOP}V{HEIGHT - MARGIN}H{WIDTH - LEGEND - MARGIN}" fill="none" stroke="#374151"/>'
    place = f'x="{(WIDTH - LEGEND) / 2}" y="{HEIGHT - 20}"'
    yield f'<text {place} text-anchor="middle">time of a run (logarithmic); area: size</text>'
    yield f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">accuracy</text>'
    for index in range(5):
        accuracy = frame.bottom + (frame.top - frame.bottom) * index / 4
        time_us = 10 ** (frame.left + (frame.right - frame.left) * index / 4)
        yield f'<text x="{MARGIN - 6}" y="{frame.y(accuracy) + 4:.1f}" text-anchor="end">{accuracy:.4f}</text>'
        place = f'x="{frame.x(time_us):.1f}" y="{HEIGHT - MARGIN + 18}"'
        yield f'<text {place} text-anchor="middle">{time_words(time_us)}</text>'


def _circle(frame: _PlotFrame, point: Point, share: float) -> str:
    colour = COLOURS.get(point.runtime, "#6b7280")
    x, y, radius = frame.x(point.p50_us), frame.y(point.accuracy), max(LEAST_RADIUS, LARGEST_RADIUS * share)
    fill = f'fill="{colour}" fill-opacity="0.5"' if point.is_kept else 'fill="none" stroke-dasharray="4 3"'
    name = escape(point.name)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" {fill} stroke="{colour}"><title>{name}</title></circle>'


def _number(frame: _PlotFrame, point: Point, index: int) -> str:
    """Return the number of a variant above or below its circle, so that those of neighbours do not cover each other."""
    x, y = frame.x(point.p50_us), frame.y(point.accuracy)
    beyond = LARGEST_RADIUS + 6 + 12 * (index // 2 % 2)
    place = y - beyond if index % 2 == 0 else y + beyond + 8
    stroke = f'stroke="{COLOURS.get(point.runtime, "#6b7280")}" stroke-width="0.5"'
    return (
        f'<path d="M{x:.1f} {y:.1f}V{place - 4:.1f}" {stroke}/>'
        f'<text x="{x:.1f}" y="{place:.1f}" text-anchor="middle">{index + 1}</text>'
    )


def _legend(point: Point, index: int) -> str:
    size = f"{point.size_bytes / 1024:,.0f} KiB"
    words = f"{index + 1}  {point.name}: {point.accuracy:.4f}, {time_words(point.p50_us)}, {size}"
    kept = "" if point.is_kept else " (not written)"
    return f'<text x="{WIDTH - LEGEND - 30}" y="{TOP + 8 + 22 * index}">{escape(words + kept)}</text>'


def time_words(time_us: float) -> str:
    """Return a time for people: in µs below 1 ms, else in ms."""
    return f"{time_us:.0f} µs" if time_us < 1000 else f"{time_us / 1000:.1f} ms"
