"""`edge-fleet audit`: list the audit log, and verify that it is unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.cli.remote import bounded, client, listed, local, one_line
from fleet.client.client import Client, Json, path_of
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted, print_json

if TYPE_CHECKING:
    from fleet.controller.database.engine import Database

DIGEST_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Log:
    """Audit log to compare with a noted head.

    `verified`: as the API answers. `digest_of`: digest of an entry, "" if there is none.
    """

    verified: Json
    digest_of: Callable[[int], str]


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return {"list": _list, "verify": _verify}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    query = {name: getattr(arguments, name) for name in ("actor", "subject")}
    found = bounded(client(arguments).pages(path_of("audit"), query, cursor="before"), arguments.limit)
    return listed(arguments, "entries", found, ("no.", "at", "who", "what"), _row, none="no such entries")


def _row(one: Json) -> tuple[str, ...]:
    """Return a row of the table, which fits 80 columns: action and subject are long and share one."""
    what = f"{one['action']} {one['subject']}: {one_line(one['details'])}".rstrip(": ")
    return str(one["sequence"]), local(one["at"]), one["actor"], what


def _verify(arguments: argparse.Namespace) -> int:
    """Verify the log. Return 1 if it was changed, or does not contain the noted head."""
    noted = _noted(arguments.head) if arguments.head else None
    if arguments.dir:
        from fleet.cli.local_database import opened_database

        with opened_database(arguments.dir) as database:
            return _check(arguments, _beside(database), noted)
    return _check(arguments, _asked(client(arguments)), noted)


def _check(arguments: argparse.Namespace, log: Log, noted: tuple[int, str] | None) -> int:
    found = dict(log.verified)
    if found["ok"] and noted and log.digest_of(noted[0]) != noted[1]:
        found |= {"ok": False, **_other(noted[0], found["sequence"])}
    if arguments.json:
        print_json(found)
    elif found["ok"]:
        print(f"{counted(found['sequence'], 'entry', 'entries')}, each as it was written")
        print(f"note this elsewhere, and pass it next time: --head {found['sequence']}:{found['digest']}")
    else:
        print(f"the audit log is not as it was written: entry {found['broken_at']} {found['problem']}")
    return 0 if found["ok"] else 1


def _other(number: int, end: int) -> Json:
    """Return how a log that is intact differs from a noted head."""
    if number > end:
        return {"broken_at": end + 1, "problem": f"is missing: the log ends before it, and entry {number} was noted"}
    return {"broken_at": number, "problem": "differs from the one that was noted: the chain was computed again"}


def _asked(asked: Client) -> Log:
    def digest_of(number: int) -> str:
        page = asked.ask("GET", path_of("audit"), {"before": number + 1, "limit": 1})["items"]
        return str(page[0]["digest"]) if page and page[0]["sequence"] == number else ""

    return Log(asked.ask("GET", path_of("audit", "verify")), digest_of)


def _beside(database: Database) -> Log:
    from fleet.controller.audit import Break
    from fleet.controller.database import audit

    with database.read() as connection:
        found = audit.verify(connection, database.settings)
    if isinstance(found, Break):
        broken = {"broken_at": found.sequence, "problem": found.problem}
        return Log({"ok": False, "sequence": found.sequence - 1, "digest": "", **broken}, lambda _: "")

    def digest_of(number: int) -> str:
        with database.read() as connection:
            page = audit.page(connection, database.settings, before=number + 1, limit_rows=1)
        return page[0].digest if page and page[0].sequence == number else ""

    return Log(
        {"ok": True, "sequence": found.sequence, "digest": found.digest, "broken_at": None, "problem": ""}, digest_of
    )


def _noted(text: str) -> tuple[int, str]:
    number, colon, digest = text.partition(":")
    if not (colon and number.isascii() and number.isdecimal() and 0 < int(number) < 2**53):
        raise ConfigurationError(f"{text!r:.100} is no head; write NUMBER:DIGEST, as edge-fleet audit verify shows it")
    if len(digest) != DIGEST_CHARACTERS or set(digest) - set("0123456789abcdef"):
        raise ConfigurationError(f"{digest!r:.80} is not a digest of {DIGEST_CHARACTERS} hexadecimal digits")
    return int(number), digest
