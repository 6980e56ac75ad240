"""Helpers of verbs that call a controller: its address and token, times for people, files that hold a secret."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

from fleet.client.client import Access, Client, ClientSettings, Json
from fleet.disk import read_bounded, write_durably
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.python310 import from_iso
from gateway.common.domain.release_paths import ReleasePath, parse_path, parse_written
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table

URL_VARIABLE = "EDGE_FLEET_URL"
CA_VARIABLE = "EDGE_FLEET_CA"
TOKEN_VARIABLE = "EDGE_FLEET_TOKEN"  # noqa: S105  # its name, not one
TOKEN_LIMIT_BYTES = 4_096
SAID_CHARACTERS = 160


def client(arguments: argparse.Namespace, settings: ClientSettings | None = None) -> Client:
    """Return a client of the controller that --url names. Raise ConfigurationError."""
    url = arguments.url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ConfigurationError(f"no controller is named; use --url https://HOST:PORT or {URL_VARIABLE}")
    if arguments.token_file:
        lines = read_bounded(Path(arguments.token_file), TOKEN_LIMIT_BYTES).decode(errors="replace").splitlines()
        text = lines[0].strip() if lines else ""
        if not text:
            raise ConfigurationError("holds no token; write it into the first line", file=arguments.token_file)
    else:
        text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not text:
        problem = "a token is needed: name its file with --token-file, or put it into"
        raise ConfigurationError(f"{problem} {TOKEN_VARIABLE}; an admin creates one: edge-fleet tokens create")
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError("holds no token", file=arguments.token_file or TOKEN_VARIABLE)
    return Client(Access(url, text, arguments.ca or os.environ.get(CA_VARIABLE, "")), settings)


def bounded(items: Iterable[Json], limit: int) -> list[Json]:
    """Return the first `limit` items; print on standard error if there are more."""
    found = list(islice(items, limit + 1))
    if len(found) > limit:
        print(f"{limit} shown, and there are more: --limit N", file=sys.stderr)
    return found[:limit]


def local(text: str | None) -> str:
    """Return a time of the API in local time; "-" for none."""
    return from_iso(text).astimezone().strftime("%Y-%m-%d %H:%M") if text else "-"


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return how long ago a time is, in the largest unit that fits; "never" for none."""
    if not text:
        return "never"
    seconds = ((now or datetime.now(timezone.utc)) - from_iso(text)).total_seconds()
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
    """Return the path of a release; the inverse of `short`. A whole path, and "", are returned unchanged.

    Raise ConfigurationError.
    """
    return release_of(text).path if text else ""


def release_of(text: str) -> ReleasePath:
    """Return the release that is named in short form or by its path. Raise ConfigurationError."""
    try:
        return parse_written(short(text))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def one_line(document: Json, limit: int = SAID_CHARACTERS) -> str:
    """Return a document in one line, name=value, without empty values."""
    filled = {name: value for name, value in document.items() if value not in (None, "", [], {})}
    text = " ".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in filled.items())
    return plain(text if len(text) <= limit else f"{text[: limit - 1].rpartition(' ')[0] or text[: limit - 1]}…")


def listed(
    arguments: argparse.Namespace,
    name: str,
    found: Sequence[Json],
    columns: Sequence[str],
    row: Callable[[Json], Sequence[str]],
    *,
    none: str,
) -> int:
    """Print a list: as JSON under `name`, as a table without empty columns, or `none` if it is empty. Return 0."""
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
    """Raise ConfigurationError if the file for a secret exists: it may hold another one. Call it before."""
    if out and Path(out).exists():
        raise ConfigurationError("exists already; name another file, or move it away", file=out)
    if out and not Path(out).parent.is_dir():
        raise ConfigurationError("is in a folder that does not exist", file=out)


def hand_out(secret: str, out: str | None, what: str) -> None:
    """Write the secret to a file that only its owner can read, or to standard output. Raise OSError."""
    if out:
        write_durably(Path(out), f"{secret}\n".encode(), mode=0o600)
        print(f"{what} is in {out}, which only you can read; it is shown nowhere again", file=sys.stderr)
    else:
        print(f"{what}; it is not shown again:", file=sys.stderr)
        print(secret)


def confirmed(arguments: argparse.Namespace, count: int, facts: Sequence[tuple[str, str]]) -> bool:
    """Ask whether to change `count` devices, unless --yes is given. Raise ConfigurationError without a terminal."""
    if arguments.yes:
        return True
    if arguments.json or not sys.stdin.isatty():
        problem = f"{counted(count, 'device')} would change and there is no terminal to confirm it"
        raise ConfigurationError(f"{problem}; add --yes, or --dry-run for a preview only")
    print_facts(facts)
    if input("change these? [y/N] ").strip().lower() in {"y", "yes"}:
        return True
    print("nothing was changed")
    return False
