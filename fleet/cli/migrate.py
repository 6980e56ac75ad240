"""`edge-fleet migrate`: bring the database's tables up to date without starting a controller, or only look."""

from __future__ import annotations

import argparse

from fleet.cli.beside import beside
from fleet.database import migrate
from gateway.terminal.tables import print_json


def command(arguments: argparse.Namespace) -> int:
    """0; with --check 1 where the tables are older than this program's."""
    with beside(arguments.dir, make=not arguments.check) as database:
        before, newest = migrate.known(database), migrate.newest()
        after = before if arguments.check else migrate.upgrade(database)
    if arguments.json:
        print_json({"before": before, "revision": after, "newest": newest})
    elif after == newest:
        print(f"the tables are of {after}" + (f", before of {before or 'none'}" if before != after else ""))
    else:
        print(f"the tables are of {before or 'none'}; this program works with {newest}: edge-fleet migrate")
    return 0 if after == newest else 1
