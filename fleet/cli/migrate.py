"""`edge-fleet migrate`: bring tables up to date, move the fleet to another database, undo such a move."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from fleet.cli.common import now
from fleet.cli.local_database import opened_database, place_of
from fleet.controller.audit import Break
from fleet.controller.config import load_config
from fleet.controller.database import migrate, move
from fleet.controller.database.engine import open_alone
from fleet.controller.database.errors import AwayError
from fleet.controller.database.place import DatabaseLocation, read_place
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.terminal.tables import counted, print_json, progress


def command(arguments: argparse.Namespace) -> int:
    """Execute what the options say. Return the exit code."""
    if arguments.to:
        return _move(arguments)
    if arguments.undo_move:
        return _undo(arguments)
    with opened_database(arguments.dir, make=not arguments.check) as database:
        before, newest = migrate.known(database), migrate.newest()
        after = before if arguments.check else migrate.upgrade(database)
    if arguments.json:
        print_json({"before": before, "revision": after, "newest": newest})
    elif after == newest:
        print(f"the tables are of {after}" + (f", before of {before or 'none'}" if before != after else ""))
    else:
        print(f"the tables are of {before or 'none'}; this program works with {newest}: edge-fleet migrate")
    return 0 if after == newest else 1


def _move(arguments: argparse.Namespace) -> int:
    """Move the fleet. Return 0, or 1 if the audit log that was moved was changed before."""
    old = _existing(arguments.dir)
    try:
        new = read_place(arguments.to, Path(arguments.dir))
    except ConfigurationError as error:
        raise ConfigurationError(f"--to: {error.problem}") from None
    if new.url.password:
        problem = "--to: leave the password out, others see it in the list of processes; PGPASSWORD or ~/.pgpass has it"
        raise ConfigurationError(problem)
    settings = load_config(Path(arguments.dir)).database
    try:
        with (
            closing(open_alone(old, settings)) as source,
            closing(open_alone(new, settings)) as target,
            progress() as bar,
        ):
            task = bar.add_task("rows", total=None)
            moved = move.move(source, target, now(), lambda done, of: bar.update(task, completed=done, total=of))
    except AwayError as error:
        raise UnreachableError(str(error)) from None
    broken = isinstance(moved.log, Break)
    if arguments.json:
        done = {
            "from": str(old),
            "to": str(new),
            "url": new.setting,
            "rows": dict(moved.rows),
            "total": moved.total,
        }
        print_json(done | {"revision": moved.revision, "audit": {"broken": broken, **asdict(moved.log)}})
    else:
        print(f"moved {counted(moved.total, 'row')} in {len(moved.rows)} tables from {old} to {new}, all verified")
        print(f'next: set url = "{new.setting}" in [database] of fleet.toml, then start edge-fleet serve')
    if broken and not arguments.json:
        print("finding: the audit log is not as it was written, here as there: edge-fleet audit verify --dir")
    return 1 if broken else 0


def _undo(arguments: argparse.Namespace) -> int:
    place = _existing(arguments.dir)
    try:
        with closing(open_alone(place, load_config(Path(arguments.dir)).database)) as database:
            base = move.undo(database)
    except AwayError as error:
        raise UnreachableError(str(error)) from None
    if arguments.json:
        print_json({"database": str(place), "assignment_base": base})
    else:
        print(f"{place} is in use again; versions of assignments go on above {base}")
        print("what happened since the move is not in it; never start a controller on the other database again")
    return 0


def _existing(folder: str) -> DatabaseLocation:
    place = place_of(folder)
    if place.file is not None and not place.file.exists():
        raise ConfigurationError("is not a database; does [database] url name another one?", file=str(place))
    return place
