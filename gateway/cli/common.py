"""What verbs share: the configuration as the command line changes it, tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import Config, load_config, read_addresses
from gateway.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.progress import Progress


WORD_WIDTH = 16
"""Columns no wider than this are never broken over lines."""


def configured(arguments: argparse.Namespace) -> Config:
    """The configuration with what the command line says laid over it. Raises ConfigurationError."""
    path = Path(arguments.config) if arguments.config else None
    return overrides(arguments)(load_config(path))


def overrides(arguments: argparse.Namespace) -> Callable[[Config], Config]:
    """What the command line changes in any configuration; SIGHUP applies it again."""
    changes: dict[str, Any] = {}
    for name in ("grpc", "http"):
        texts = getattr(arguments, name, None)
        if texts:
            changes[f"{name}_listen"] = read_addresses(texts, f"--{name}", "")
    models, mqtt, server = (getattr(arguments, name, None) for name in ("models", "mqtt", "grpc_server"))

    def apply(config: Config) -> Config:
        laid = dict(changes)
        if models:
            laid["models"] = dataclasses.replace(config.models, dir=models)
        if mqtt:
            laid["mqtt"] = dataclasses.replace(config.mqtt, url="" if mqtt == "off" else mqtt)
        if server:
            laid["grpc"] = dataclasses.replace(config.grpc, server=server)
        return dataclasses.replace(config, **laid)

    return apply


def root_folder(arguments: argparse.Namespace) -> Path:
    """The folder of --root. Raises ConfigurationError where it is none."""
    root = Path(arguments.root)
    if not root.is_dir():
        raise ConfigurationError("is no folder; --root takes the root of a device's files", file=arguments.root)
    return root


def print_json(value: Any) -> None:
    """Pretty JSON on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table for people: as wide as the terminal, whole lines when piped."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(title=title or None, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    cells = list(rows)
    for position, column in enumerate(columns):
        widest = max((cell_len(row[position]) for row in cells), default=0)
        table.add_column(column, overflow="fold", no_wrap=widest <= WORD_WIDTH)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def progress() -> Progress:
    """A progress bar on standard error, so that standard output stays clean; silent when that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def mark(ok: bool | None) -> str:
    """✓, ✗ or · for yes, no and not known."""
    return {True: "✓", False: "✗", None: "·"}[ok]
