"""Output of the demo: a line for each event, with the seconds since the beginning."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

SHOWN_ARGUMENTS = 6
WHO_CHARS = 16


class Story:
    """Colours on a terminal, plain lines elsewhere. May be told by several threads."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._began_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    def chapter(self, title: str) -> None:
        """Print the title of what follows."""
        with self._lock:
            self._console.print(f"\n[bold]{escape(title)}[/bold]")

    def command(self, *words: str | Path) -> None:
        """Print what an operator would type, shortened."""
        shown = [word.name if isinstance(word, Path) else word for word in words]
        dots = " …" if len(shown) > SHOWN_ARGUMENTS else ""
        self._line("$", f"[dim]{escape(' '.join(shown[:SHOWN_ARGUMENTS]))}{dots}[/dim]")

    def tell(self, who: str, what: str, *, style: str = "") -> None:
        """Print that `who` did something."""
        text = escape(what)
        self._line(who, f"[{style}]{text}[/{style}]" if style else text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table of figures."""
        table = Table(title=title, title_justify="left", show_edge=False)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*map(escape, row))
        with self._lock:
            self._console.print("", table)

    def _line(self, who: str, text: str) -> None:
        with self._lock:
            self._console.print(f"[cyan]{self.seconds:6.1f} s[/cyan]  {escape(who):<{WHO_CHARS}} {text}")
