"""Verbs that read and keep records: telemetry, audit, backup, migrate; options and examples."""

from __future__ import annotations

import argparse

from fleet.cli.options import (
    VerbAction,
    actions,
    beside_option,
    device_argument,
    folder_option,
    limit_option,
    query_option,
)
from gateway.common.terminal.program import Verb, json_option, named


def _stream(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", type=named, help="vitals, statistics, state, events, updates")


def _rows(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    _stream(parser)
    parser.add_argument("--after", type=named, metavar="BOOT.SEQ", help="start with the row that follows this one")
    parser.add_argument("--follow", action="store_true", help="the last rows, then new ones, until Ctrl-C")
    limit_option(parser)


def _newest(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    _stream(parser)
    limit_option(parser, 1)


def _devices(parser: argparse.ArgumentParser) -> None:
    _stream(parser)
    query_option(parser, "only devices that match it")
    limit_option(parser, 100)


def _events(parser: argparse.ArgumentParser) -> None:
    for name in ("device", "kind", "rollout"):
        parser.add_argument(f"--{name}", type=named, metavar=name.upper(), help=f"only those of this {name}")
    query_option(parser, "only those of devices that match it")
    parser.add_argument("--follow", action="store_true", help="the last events, then new ones, until Ctrl-C")
    limit_option(parser, 100)


def _alerts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=("pending", "open", "closed"), help="only those in this state")
    for name in ("rule", "device"):
        parser.add_argument(f"--{name}", type=named, metavar=name.upper(), help=f"only those of this {name}")
    query_option(parser, "only those of devices that match it")
    parser.add_argument(
        "--follow", action="store_true", help="the last alerts, then those that open and close, until Ctrl-C"
    )
    limit_option(parser, 100)


def _audit_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--actor", type=named, metavar="WHO", help="only actions of this actor")
    parser.add_argument("--subject", type=named, metavar="WHAT", help="only actions on this subject")
    limit_option(parser, 100)


def _audit_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--head", type=named, metavar="NUMBER:DIGEST", help="head noted earlier, which the log must contain"
    )
    beside_option(parser)


def _backup_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=named, help="the backup: one file, mode 0600")
    folder_option(parser)


def _migrate(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only check whether it is needed: 1 if it is")
    what.add_argument(
        "--to",
        type=named,
        metavar="URL",
        help="move the whole fleet into this empty database: postgresql://USER@HOST/NAME (password: PGPASSWORD or "
        "~/.pgpass) or sqlite:////FILE; no controller may run. If it is interrupted, repeat the same command",
    )
    what.add_argument(
        "--undo-move",
        action="store_true",
        help="use a database again that the fleet moved away from, if the other one is lost",
    )
    folder_option(parser)
    json_option(parser)


TELEMETRY = Verb(
    "telemetry",
    "telemetry",
    "telemetry of devices: streams, rows, events, alerts",
    "  edge-fleet telemetry streams camera-7\n"
    "  edge-fleet telemetry rows camera-7 vitals --follow\n"
    "  edge-fleet telemetry newest camera-7 state --limit 5\n"
    "  edge-fleet telemetry devices vitals --query 'site=berlin'\n"
    "  edge-fleet telemetry events --kind rollback",
    actions(
        VerbAction(
            "streams",
            "a device's streams, and rows missing in them",
            "  edge-fleet telemetry streams camera-7",
            device_argument,
        ),
        VerbAction(
            "rows",
            "rows of a stream, in order",
            "  edge-fleet telemetry rows camera-7 updates --json\n"
            "  edge-fleet telemetry rows camera-7 vitals --follow\n"
            "  edge-fleet telemetry rows camera-7 vitals --after 1795259000.41",
            _rows,
        ),
        VerbAction("newest", "the last rows of a stream", "  edge-fleet telemetry newest camera-7 vitals", _newest),
        VerbAction(
            "devices",
            "the last row of a stream of each device",
            "  edge-fleet telemetry devices vitals\n  edge-fleet telemetry devices vitals --query 'site=berlin' --json",
            _devices,
        ),
        VerbAction(
            "events",
            "events on devices, newest first",
            "  edge-fleet telemetry events --device camera-7\n  edge-fleet telemetry events --kind rollback --json\n"
            "  edge-fleet telemetry events --query 'tag=pilot and accelerator=coral-*'\n"
            "  edge-fleet telemetry events --follow --json",
            _events,
        ),
        VerbAction(
            "alerts",
            "open and past alerts, newest first",
            "  edge-fleet telemetry alerts --state open\n  edge-fleet telemetry alerts --query 'site=berlin'\n"
            "  edge-fleet telemetry alerts --follow",
            _alerts,
        ),
    ),
)

AUDIT = Verb(
    "audit",
    "audit",
    "list the audit log, and verify that it is unchanged",
    "  edge-fleet audit list --actor ann\n"
    "  edge-fleet audit verify\n"
    "  edge-fleet audit verify --dir /var/lib/edge-fleet",
    actions(
        VerbAction("list", "entries, newest first", "  edge-fleet audit list --subject camera-7", _audit_list),
        VerbAction(
            "verify",
            "check every entry against its digest; 1 if one was changed",
            "  edge-fleet audit verify\n"
            "  edge-fleet audit verify --dir . \\\n"
            "      --head 42:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
            _audit_verify,
        ),
    ),
)

BACKUP = Verb(
    "backup",
    "backup",
    "copy the controller's database to one file while it is in use, and restore it",
    "  edge-fleet backup save /backup/fleet.backup\n  edge-fleet backup restore /backup/fleet.backup --dir .",
    actions(
        VerbAction(
            "save",
            "copy the database, and check the copy",
            "  edge-fleet backup save /backup/fleet.backup --dir /var/lib/edge-fleet",
            _backup_file,
        ),
        VerbAction(
            "restore",
            "restore a copy where no database is; no controller may run meanwhile",
            "  edge-fleet backup restore /backup/fleet.backup --dir /var/lib/edge-fleet",
            _backup_file,
        ),
        ending=json_option,
    ),
)

MIGRATE = Verb(
    "migrate",
    "migrate",
    "migrate the database's tables, as serve does when it starts; or move the fleet to another database",
    "  edge-fleet migrate --check\n"
    "  edge-fleet migrate --dir /var/lib/edge-fleet\n"
    "  edge-fleet migrate --to postgresql://fleet@db.example/fleet\n"
    "  edge-fleet migrate --to sqlite:////srv/fleet.sqlite     # and back\n"
    "  edge-fleet migrate --undo-move",
    _migrate,
)

RECORD_VERBS = (TELEMETRY, AUDIT, BACKUP, MIGRATE)
