"""Output of commands: tables for people, JSON for programs, a progress bar for long work."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

KEPT_WIDTH, WORD_WIDTH = 16, 24
"""Widths in characters that limit how columns are narrowed.

While other columns can be narrowed, a column up to the first width is not broken over lines. After that, no word up to
the second width is broken. Last, no part of a word such as `meter-reader/2` is.
"""
FACT_WIDTH = 20
"""Least width of a value on a narrow terminal."""
GAP_WIDTH = 3
"""Width of the gap between two columns."""
PIPED_WIDTH = 200
_PARTS = re.compile("(?<=[-/+=])")
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that change the writing direction (Unicode's UAX 9)."""


def plain(text: str) -> str:
    """Return text of others with `\\u001b` for characters that would control the reader's terminal."""
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun, such as "1 device", "0 devices", "2,000 entries"."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def print_json(value: Any) -> None:
    """Print indented JSON on standard output."""
    print(plain(json.dumps(value, indent=2, ensure_ascii=False)))  # escapes occur in strings only: it stays valid JSON


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people: as wide as the terminal, with whole lines if it is piped.

    Where the terminal is so narrow that words would be broken, print each row as lines of name and value.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    cells = [[plain(cell) for cell in row] for row in rows]
    held = [[column, *(row[place] for row in cells)] for place, column in enumerate(columns)]
    needs = [_measured(texts) for texts in held]
    widths = fitted(needs, console.width - GAP_WIDTH * (len(columns) - 1))
    if any(width < need.part for width, need in zip(widths, needs, strict=True)) and sys.stdout.isatty():
        for number, row in enumerate(cells):
            print(end="\n" if number else "")
            print_facts([(column, cell) for column, cell in zip(columns, row, strict=True) if cell])
        return
    for column, width in zip(columns, widths, strict=True):
        table.add_column(broken(column, width), overflow="fold", width=width)
    for row in cells:
        table.add_row(*(Text(broken(cell, width)) for cell, width in zip(row, widths, strict=True)))
    console.print(table)


def print_facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, line by line; on a terminal long values are wrapped."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for name, value in pairs:
        wide = max(room - width, FACT_WIDTH)
        lines = textwrap.wrap(plain(value), wide, break_long_words=False, break_on_hyphens=False)
        print(f"{name:<{width}}" + f"\n{'':<{width}}".join(lines))


def print_remarks(remarks: Iterable[tuple[str, str, str]]) -> None:
    """Print text that is too long for the columns of a table: name, version ("-" or "": none) and text.

    Empty text is left out. Text is wrapped on a terminal, but no word is broken, so that paths can be copied.
    """
    texts = [(f"{name} {version}".removesuffix(" -").rstrip(), text) for name, version, text in remarks if text]
    lines = [f"{subject}: {text}" for subject, text in texts]
    if lines:
        print()
    print_lines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text, wrapped on a terminal; no word is broken."""
    width = shutil.get_terminal_size().columns
    whole = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    for line in map(plain, lines):
        print(whole.fill(line) if sys.stdout.isatty() else line)


@dataclass(frozen=True, slots=True)
class ColumnWidth:
    """Width that a column of a table needs: for its longest line, its longest word, and its longest part of a word."""

    line: int
    word: int
    part: int


def fitted(needs: Sequence[ColumnWidth], room: int) -> list[int]:
    """Return the widths of columns within `room`: the widest is narrowed first."""
    widths = [min(need.line, max(1, room)) for need in needs]
    words = [min(width, need.word, WORD_WIDTH) for width, need in zip(widths, needs, strict=True)]
    parts = [min(width, need.part, WORD_WIDTH) for width, need in zip(widths, needs, strict=True)]
    kept = [max(word, min(width, KEPT_WIDTH)) for width, word in zip(widths, words, strict=True)]
    for least in (kept, words, parts, [1] * len(widths)):
        while sum(widths) > room and (able := [at for at, width in enumerate(widths) if width > least[at]]):
            widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def broken(text: str, width: int) -> str:
    """Break text into lines of `width` if its words permit: between words, else after a part of a word."""
    return "\n".join(line for paragraph in text.split("\n") for line in _lines(paragraph, width))


def _measured(texts: Sequence[str]) -> ColumnWidth:
    from rich.cells import cell_len

    lines = [line for text in texts for line in text.split("\n")]
    words = [word for line in lines for word in line.split()]
    parts = [part for word in words for part in _PARTS.split(word)]
    return ColumnWidth(*(max((1, *map(cell_len, found))) for found in (lines, words, parts)))


def _lines(text: str, width: int) -> list[str]:
    from rich.cells import cell_len

    lines = [""]
    for word in text.split(" "):
        apart = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(apart) <= width:
            lines[-1] = apart
            continue
        lines += [""] if lines[-1] else []
        for part in [word] if cell_len(word) <= width else _PARTS.split(word):
            if lines[-1] and cell_len(lines[-1] + part) > width:
                lines.append("")
            lines[-1] += part
    return lines


def progress(*, in_bytes: bool = False) -> Progress:
    """Return a progress bar on standard error, so that standard output stays clean; silent without a terminal."""
    from rich import progress as columns
    from rich.console import Console

    counted = (columns.DownloadColumn(), columns.TransferSpeedColumn())
    amounts = counted if in_bytes else (columns.MofNCompleteColumn(), columns.TimeElapsedColumn())
    begin = (columns.TextColumn("{task.description}"), columns.BarColumn())
    console = Console(stderr=True)
    return columns.Progress(*begin, *amounts, console=console, transient=True, disable=not sys.stderr.isatty())


def mark(ok: bool | None) -> str:
    """Return ✓, ✗ or · for yes, no and unknown."""
    return {True: "✓", False: "✗", None: "·"}[ok]
