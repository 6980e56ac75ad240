"""What a command prints: tables for people, JSON for programs, a bar for what takes long."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

KEPT_WIDTH, WORD_WIDTH = 16, 24
"""As long as wider columns can give way, none up to the first is broken over lines, and no word up to the second."""
GAP_WIDTH = 3
"""Between two columns."""
PIPED_WIDTH = 200
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and what turns the direction of writing (Unicode's UAX 9)."""


def plain(text: str) -> str:
    """What others wrote, with `\\u001b` for what would steer the terminal of whoever reads it."""
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def counted(number: int, thing: str, things: str = "") -> str:
    """Such as "1 device", "0 devices", "2 entries"."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def print_json(value: Any) -> None:
    """Pretty JSON on standard output."""
    print(plain(json.dumps(value, indent=2, ensure_ascii=False)))  # within strings only: it stays the same JSON


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table for people: as wide as the terminal, whole lines when piped."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    table = Table(title=title or None, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    cells = [[plain(cell) for cell in row] for row in rows]
    held = [[column, *(row[place] for row in cells)] for place, column in enumerate(columns)]
    natural = [max(1, *(cell_len(line) for text in texts for line in text.split("\n"))) for texts in held]
    words = [max((cell_len(word) for text in texts for word in text.split()), default=0) for texts in held]
    room = console.width - GAP_WIDTH * (len(columns) - 1)
    for column, width in zip(columns, fitted(natural, words, room), strict=True):
        table.add_column(column, overflow="fold", width=width)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def fitted(natural: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """How wide columns are within `room`, of what they would need and of their longest words: the widest gives way."""
    widths = [min(width, max(1, room)) for width in natural]
    whole = [min(width, max(KEPT_WIDTH, min(word, WORD_WIDTH))) for width, word in zip(widths, words, strict=True)]
    for least in (whole, [1] * len(widths)):
        while sum(widths) > room and (able := [at for at, width in enumerate(widths) if width > least[at]]):
            widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def progress(*, in_bytes: bool = False) -> Progress:
    """A progress bar on standard error, so that standard output stays clean; silent when that is no terminal."""
    from rich import progress as columns
    from rich.console import Console

    counted = (columns.DownloadColumn(), columns.TransferSpeedColumn())
    shown = counted if in_bytes else (columns.MofNCompleteColumn(), columns.TimeElapsedColumn())
    begin = (columns.TextColumn("{task.description}"), columns.BarColumn())
    console = Console(stderr=True)
    return columns.Progress(*begin, *shown, console=console, transient=True, disable=not sys.stderr.isatty())


def mark(ok: bool | None) -> str:
    """✓, ✗ or · for yes, no and not known."""
    return {True: "✓", False: "✗", None: "·"}[ok]
