"""Histograms of times as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gateway.workshop.bench.figures import BenchFigures, common_edges, counts

WIDTH, ROW_HEIGHT, LABEL_WIDTH, MARGIN = 900, 70, 130, 40
"""Sizes in pixels: the picture, one histogram, the column of labels, the edge."""
INK, BAR, LINE = "#222222", "#2a9d8f", "#bbbbbb"


def plot(title: str, measured: Sequence[BenchFigures], buckets: int) -> str:
    """Return an SVG document with a histogram for each measurement, on one logarithmic scale."""
    edges = common_edges(measured, buckets)
    height = 2 * MARGIN + ROW_HEIGHT * len(measured)
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect {size} fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN // 2 + 4}" font-size="14">{escape(title)}</text>',
    ]
    for row, each in enumerate(measured):
        parts += _row(each, counts(each, edges), MARGIN + ROW_HEIGHT * (row + 1))
    parts += _axis([float(edge) for edge in edges], height - MARGIN)
    return "\n".join((*parts, "</svg>", ""))


def _row(each: BenchFigures, found: Sequence[int], base: int) -> Iterator[str]:
    step, most = (WIDTH - LABEL_WIDTH - 2 * MARGIN) / len(found), max(found)
    yield f'<text x="{MARGIN}" y="{base - 22}">{escape(each.label)}</text>'
    yield f'<text x="{MARGIN}" y="{base - 6}" fill="#666666">{each.per_s:,.0f}/s</text>'
    for index, count in enumerate(found):
        height = (ROW_HEIGHT - 14) * count / most
        x = MARGIN + LABEL_WIDTH + index * step
        yield f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{step - 1:.1f}" height="{height:.1f}" fill="{BAR}"/>'
    yield f'<line x1="{MARGIN + LABEL_WIDTH}" y1="{base}" x2="{WIDTH - MARGIN}" y2="{base}" stroke="{LINE}"/>'


def _axis(edges: Sequence[float], base: int) -> Iterator[str]:
    """Yield the labels of every eighth edge; the first and the last bucket are open."""
    step = (WIDTH - LABEL_WIDTH - 2 * MARGIN) / (len(edges) - 1)
    for index in range(1, len(edges) - 1, max(1, (len(edges) - 1) // 6)):
        x = MARGIN + LABEL_WIDTH + index * step
        yield f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{time_text(edges[index])}</text>'


def time_text(micros: float) -> str:
    """Return a time for people, from µs."""
    if micros < 1_000:
        return f"{micros:.3g} µs"
    return f"{micros / 1_000:.3g} ms" if micros < 1_000_000 else f"{micros / 1_000_000:.3g} s"
