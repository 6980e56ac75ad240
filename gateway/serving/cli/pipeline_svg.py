"""Drawing of a pipeline's graph as SVG, with what each step cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, GAP, RISE, MARGIN = 236, 106, 28, 54, 32
"""Sizes in pixels: of a box, between boxes of one rank, between ranks, and of the edge."""
BEND = 18
"""Width that a line takes where it passes a rank."""
LINE_CHARS, TITLE_CHARS = 38, 22
SWEEPS = 8
"""How often the ranks are ordered, and then moved."""
INK, PALE, EDGE, BAR, BAD = "#1d2733", "#5c6b7a", "#93a1b0", "#2a9d8f", "#c0392b"
COLOURS = {
    "model": "#4363d8",
    "rule": "#f58231",
    "select": "#008080",
    "merge": "#911eb4",
    "tile": "#9a6324",
    "match": "#808000",
    "track": "#c2185b",
    "count": "#2e7d32",
}
ENDS = "#8896a5"
"""Colour of inputs and outputs."""

ARROW = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'

Document = Mapping[str, Any]


@dataclass(slots=True)
class _Node:
    """Box, or a place where a line passes a rank (without a `line`). `x` is its centre."""

    name: str
    rank: int
    line: Document | None = None
    kind: str = ""
    x: float = 0.0
    above: list[_Node] = field(default_factory=list)
    below: list[_Node] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Return its width in pixels."""
        return BEND if self.line is None else WIDTH


def draw_pipeline(document: Document) -> str:
    """Return an SVG document of a pipeline, from the document of its steps with the figures of `with_figures`."""
    nodes, lines = _graph(document)
    ranks = [[node for node in nodes if node.rank == rank] for rank in range(max(node.rank for node in nodes) + 1)]
    _arrange(ranks)
    left = min(node.x - node.width / 2 for node in nodes)
    for node in nodes:
        node.x += MARGIN - left
    width = max(node.x + node.width / 2 for node in nodes) + MARGIN
    height = 2 * MARGIN + 20 + len(ranks) * HEIGHT + (len(ranks) - 1) * RISE
    title = f"{document['name']} version {document['version']}"
    size = f'width="{width:.0f}" height="{height:.0f}"'
    style = f'font-family="sans-serif" font-size="11" fill="{INK}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}" {style}>',
        f'<defs><marker id="end" {ARROW}><path d="M0,0 L8,4 L0,8 z" fill="{EDGE}"/></marker></defs>',
        f'<rect {size} fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 8}" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    parts += [_path(line, otherwise=otherwise) for line, otherwise in lines]
    for node in nodes:
        if node.line is not None:
            parts += _box(node, node.line)
    return "\n".join((*parts, "</svg>", ""))


def _graph(document: Document) -> tuple[list[_Node], list[tuple[list[_Node], bool]]]:
    """Return the nodes, each below those that it reads, and the lines between boxes (True: to the step of `else`)."""
    steps = [step for step in document["steps"] if step["kind"] != "image"]
    decoded = {step["name"]: step for step in document["steps"] if step["kind"] == "image"}
    boxes = {
        each["name"]: _Node(each["name"], 0, decoded.get(each["name"], {}) | each, "input")
        for each in document["inputs"]
    }
    found = list(boxes.values())
    wanted = list[tuple[_Node, _Node, bool]]()
    for line in steps:
        read = [boxes[name] for name in line["reads"]]
        node = _Node(line["name"], 1 + max((each.rank for each in read), default=0), line, line["kind"])
        wanted += [(each, node, each.name == line.get("else")) for each in read]
        boxes[node.name] = node
        found.append(node)
    last = max(node.rank for node in found) + 1
    for line in document["outputs"]:
        node = _Node(line["name"], last, line, "output")
        wanted += [(boxes[name], node, False) for name in line["reads"]]
        found.append(node)
    for node in found:
        if node.kind == "input":  # directly above what reads it first
            node.rank = min((to.rank for of, to, _ in wanted if of is node), default=1) - 1
    lines = list[tuple[list[_Node], bool]]()
    for of, to, otherwise in wanted:
        passed = [_Node("", rank) for rank in range(of.rank + 1, to.rank)]
        found += passed
        chain = [of, *passed, to]
        for upper, lower in pairwise(chain):
            upper.below.append(lower)
            lower.above.append(upper)
        lines.append((chain, otherwise))
    return found, lines


def _arrange(ranks: Sequence[list[_Node]]) -> None:
    """Order each rank so that few lines cross, and place its nodes near those that they are joined with."""
    for rank in ranks:
        _place(rank, [0.0] * len(rank))
    for sweep in range(2 * SWEEPS):
        downwards, orders = sweep % 2 == 0, sweep < SWEEPS  # then it moves boxes only
        for rank in ranks if downwards else reversed(ranks):
            wanted = dict[int, float]()
            for node in rank:
                near = ((node.above if downwards else node.below) if orders else ()) or [*node.above, *node.below]
                wanted[id(node)] = sum(each.x for each in near) / len(near) if near else node.x
            if orders:
                rank.sort(key=lambda node: wanted[id(node)])
            _place(rank, [wanted[id(node)] for node in rank])


def _place(rank: Sequence[_Node], wanted: Sequence[float]) -> None:
    """Place nodes side by side in their order, on average where they are wanted."""
    right = float("-inf")
    for node, x in zip(rank, wanted, strict=True):
        node.x = max(x, right + GAP + node.width / 2)
        right = node.x + node.width / 2
    shift = sum(x - node.x for node, x in zip(rank, wanted, strict=True)) / len(rank) if rank else 0.0
    for node in rank:
        node.x += shift


def _top(node: _Node) -> float:
    return MARGIN + 20 + node.rank * (HEIGHT + RISE)


def _path(chain: Sequence[_Node], *, otherwise: bool) -> str:
    """Return a line that leaves a box below, passes ranks upright, and enters a box above."""
    x, y = chain[0].x, _top(chain[0]) + HEIGHT
    words = [f"M{x:.1f},{y:.1f}"]
    for node in chain[1:]:
        top = _top(node)
        middle = (y + top) / 2
        words.append(f"C{x:.1f},{middle:.1f} {node.x:.1f},{middle:.1f} {node.x:.1f},{top:.1f}")
        x, y = node.x, top
        if node.line is None:
            y += HEIGHT
            words.append(f"L{x:.1f},{y:.1f}")
    dashes = ' stroke-dasharray="5 4"' if otherwise else ""
    return (
        f'<path d="{" ".join(words)}" fill="none" stroke="{EDGE}" stroke-width="1.4" marker-end="url(#end)"{dashes}/>'
    )


def _box(node: _Node, line: Document) -> Iterator[str]:
    left, top = node.x - WIDTH / 2, _top(node)
    colour = COLOURS.get(node.kind, ENDS)
    texts = _texts(node, line)
    yield f"<g><title>{escape(chr(10).join((node.name, *texts)))}</title>"
    place, round_px = f'x="{left:.1f}" y="{top:.1f}"', 4 if node.kind in COLOURS else 14
    yield f'<rect {place} width="{WIDTH}" height="{HEIGHT}" rx="{round_px}" fill="white" stroke="{colour}"/>'
    kind = {"input": line.get("form", "")}.get(node.kind, node.kind)
    yield _text(left + 10, top + 19, _short(node.name, TITLE_CHARS), 'font-weight="bold" font-size="12"')
    yield _text(left + WIDTH - 10, top + 19, _short(str(kind), 14), f'text-anchor="end" fill="{colour}"')
    for row, text in enumerate(texts[:4]):
        yield _text(left + 10, top + 37 + 15 * row, _short(text, LINE_CHARS), f'fill="{PALE}"')
    if line.get("failures") or line.get("fallbacks"):
        failed = f"{line.get('failures', 0):,} failed, {line.get('fallbacks', 0):,} fallbacks"
        yield _text(left + 10, top + 97, failed, f'fill="{BAD}"')
    if share := line.get("share"):
        bar = f'x="{left + 1:.1f}" y="{top + HEIGHT - 6:.1f}" width="{(WIDTH - 2) * share:.1f}" height="5"'
        yield f'<rect {bar} fill="{BAR}"/>'
    yield "</g>"


def _texts(node: _Node, line: Document) -> list[str]:
    """Return the lines of a box: what it does, when, and what it cost."""
    if node.kind == "input":
        return costs_of(line)
    does = f"{line['model']} of {line['does']}" if "model" in line else str(line["does"])
    condition = f"when {line['when']}" if "when" in line else ""
    return [text for text in (does, condition, *costs_of(line)) if text]


def costs_of(line: Document) -> list[str]:
    """Return what a step cost in up to two short lines, none if it is not known."""
    if not line.get("runs"):
        return [] if "runs" not in line else ["not run"]
    rows = line["rows"] + line["skipped_rows"]
    skipped = f"{line['skipped_rows'] / rows:.0%} skipped" if line["skipped_rows"] else ""
    cpu = f"CPU {line['cpu_us']:,.0f} µs" if line["cpu_us"] else ""
    times = f"{line['runs']:,} × {line['p50_us'] or line['mean_us']:,.0f} µs · {line['share']:.0%}"
    return [times, more] if (more := " · ".join(filter(None, (skipped, cpu)))) else [times]


def _text(x: float, y: float, text: str, how: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {how}>{escape(text)}</text>'


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
