"""Output of `infer` for videos and cameras: a line on the terminal, JSON lines, the table at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.common.terminal.tables import plain, print_table
from gateway.serving.cli.result_view import documents_of, in_short
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.workshop.camera.measures import count_rows, latency_rows

Show = Callable[[str], None]


@contextmanager
def live_line(settings: FeedSettings, *, as_json: bool) -> Iterator[Show]:
    """Yield what shows a line in place of the last one, on standard error.

    It is silent without a terminal, and with JSON lines on the same one.
    """
    if not sys.stderr.isatty() or (as_json and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=settings.refresh_per_s, transient=True) as live:
        yield lambda text: live.update(Text(plain(text), no_wrap=True, overflow="ellipsis"))


def result_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an answer that a JSON line has: the task's result, else the outputs."""
    documents = documents_of(answer)
    return {"result": documents[0]} if documents else {"outputs": answer["outputs"]}


def short_result(answer: Mapping[str, Any]) -> str:
    """Return an answer in a few words."""
    documents = documents_of(answer)
    if documents:
        return in_short(documents[0])
    return ", ".join(f"{output['name']} {output['shape']}" for output in answer["outputs"])


def print_line(document: Mapping[str, Any]) -> None:
    """Print one JSON line at once: ctrl-c between a text and its end would make one line of two."""
    print(f"{plain(json.dumps(document, ensure_ascii=False))}\n", end="", flush=True)


def print_summary(title: str, form: str, document: dict[str, Any]) -> None:
    """Print the tables of a feed."""
    print(f"{plain(title)}\n{plain(form)}, {document['seconds']:.1f} s\n")
    print_table(("frames", "number", "per s"), count_rows(document))
    if document["latency_ms"]:
        print()
        print_table(("latency in ms", "p50", "p90", "p99", "max"), latency_rows(document))
