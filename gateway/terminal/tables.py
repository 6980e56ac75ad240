"""What a command prints: tables for people, JSON for programs, a bar for what takes long."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

WORD_WIDTH = 16
"""Columns no wider than this are never broken over lines."""
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and what turns the direction of writing (Unicode's UAX 9)."""


def plain(text: str) -> str:
    """What others wrote, with `\\u001b` for what would steer the terminal of whoever reads it."""
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Pretty JSON on standard output."""
    print(plain(json.dumps(value, indent=2, ensure_ascii=False)))  # within strings only: it stays the same JSON


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table for people: as wide as the terminal, whole lines when piped."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(title=title or None, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    cells = [[plain(cell) for cell in row] for row in rows]
    for position, column in enumerate(columns):
        widest = max((cell_len(row[position]) for row in cells), default=0)
        table.add_column(column, overflow="fold", no_wrap=widest <= WORD_WIDTH)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


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
