"""What verbs that ask a controller share: where it is and who asks, times for people, files that hold a secret."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from fleet.client.client import Access, Client, Json
from fleet.client.settings import ClientSettings
from fleet.disk import read_bounded, write_durably
from gateway.domain.errors import ConfigurationError
from gateway.domain.release_paths import ReleasePath, parse_path, parse_written
from gateway.terminal.tables import plain, print_json, print_table

URL_VARIABLE = "EDGE_FLEET_URL"
CA_VARIABLE = "EDGE_FLEET_CA"
TOKEN_VARIABLE = "EDGE_FLEET_TOKEN"  # noqa: S105  # its name, not one
TOKEN_LIMIT_BYTES = 4_096
SAID_CHARACTERS = 160
FACT_WIDTH = 20
"""Of a value, where the terminal is narrow."""


def client(arguments: argparse.Namespace, settings: ClientSettings | None = None) -> Client:
    """Of the controller that --url names. Raises ConfigurationError."""
    url = arguments.url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ConfigurationError(f"which controller? name it with --url https://HOST:PORT or {URL_VARIABLE}")
    return Client(Access(url, _token(arguments), arguments.ca or os.environ.get(CA_VARIABLE, "")), settings)


def _token(arguments: argparse.Namespace) -> str:
    if arguments.token_file:
        lines = read_bounded(Path(arguments.token_file), TOKEN_LIMIT_BYTES).decode(errors="replace").splitlines()
        text = lines[0].strip() if lines else ""
    else:
        text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not text:
        problem = "a token is needed: its file with --token-file, or itself in"
        raise ConfigurationError(f"{problem} {TOKEN_VARIABLE}; an admin makes one: edge-fleet tokens create")
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError("holds no token", file=arguments.token_file or TOKEN_VARIABLE)
    return text


def bounded(items: Iterable[Json], limit: int) -> list[Json]:
    """The first of them; says on standard error where there are more."""
    found = list(islice(items, limit + 1))
    if len(found) > limit:
        print(f"{limit} shown, and there are more: --limit N", file=sys.stderr)
    return found[:limit]


def local(text: str | None) -> str:
    """A time of the API by the wall clock here; "-" for none."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M") if text else "-"


def ago(text: str | None, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that fits; "never" for none."""
    if not text:
        return "never"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return "now" if seconds < 60 else "1 min ago"


def short(target: str) -> str:
    """Return a path as people write it, acme/meter-reader/2 or @software/edge-gateway/2; other text as it is."""
    try:
        return parse_path(target).written
    except ValueError:
        return target


def target_of(text: str) -> str:
    """The inverse of `short`; a whole path stays, and nothing. Raises ConfigurationError."""
    return release_of(text).path if text else ""


def release_of(text: str) -> ReleasePath:
    """Return the release that is written like that, or by its path. Raises ConfigurationError."""
    try:
        return parse_written(short(text))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def said(document: Json, limit: int = SAID_CHARACTERS) -> str:
    """A document in one line, name=value; what is empty is left out."""
    filled = {name: value for name, value in document.items() if value not in (None, "", [], {})}
    text = " ".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in filled.items())
    return plain(text if len(text) <= limit else f"{text[: limit - 1].rpartition(' ')[0] or text[: limit - 1]}…")


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Name and value, line by line; on a terminal what is longer goes on below itself."""
    width = max(len(name) for name, _ in pairs) + 2
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for name, value in pairs:
        lines = textwrap.wrap(plain(value), max(room - width, FACT_WIDTH), break_on_hyphens=False)
        print(f"{name:<{width}}" + f"\n{'':<{width}}".join(lines))


def listed(
    arguments: argparse.Namespace,
    name: str,
    found: Sequence[Json],
    columns: Sequence[str],
    row: Callable[[Json], Sequence[str]],
    *,
    none: str,
) -> int:
    """A list as JSON under `name`, as a table of the columns in which something stands, or in words where nothing is
    found; 0."""
    if arguments.json:
        print_json({name: found})
        return 0
    rows = [row(one) for one in found]
    kept = [place for place in range(len(columns)) if any(cells[place] for cells in rows)]
    if rows:
        print_table([columns[place] for place in kept], [[cells[place] for place in kept] for cells in rows])
    else:
        print(none)
    return 0


def check_out(out: str | None) -> None:
    """Before a secret is made for it: a file that is there may hold another one. Raises ConfigurationError."""
    if out and Path(out).exists():
        raise ConfigurationError("is there already; name another file, or move it away", file=out)
    if out and not Path(out).parent.is_dir():
        raise ConfigurationError("is in no folder that is there", file=out)


def hand_out(secret: str, out: str | None, what: str) -> None:
    """To a file that only its owner reads, or to standard output. Raises OSError."""
    if out:
        write_durably(Path(out), f"{secret}\n".encode(), mode=0o600)
        print(f"{what} is in {out}, which only you can read; it is shown nowhere again", file=sys.stderr)
    else:
        print(f"{what}; it is not shown again:", file=sys.stderr)
        print(secret)
