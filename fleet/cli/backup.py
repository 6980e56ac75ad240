"""`edge-fleet backup`: save and restore the controller's database, on the controller's machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.cli.local_database import opened_database, place_of
from fleet.controller.config import load_config
from fleet.controller.database import backup
from fleet.controller.database.backup import Saved
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted, print_json


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return {"save": _save, "restore": _restore}[arguments.action](arguments)


def _save(arguments: argparse.Namespace) -> int:
    file = Path(arguments.file)
    if file.is_dir():
        raise ConfigurationError("is a folder; name the file of the backup", file=arguments.file)
    there = place_of(arguments.dir).file
    if there and there.exists() and file.exists() and file.samefile(there):
        raise ConfigurationError("is the database itself; name another file", file=arguments.file)
    if file.exists() and not backup.is_backup(file):
        raise ConfigurationError("exists already and is not a backup; name another file", file=arguments.file)
    with opened_database(arguments.dir) as database:
        return _say(arguments, backup.save(database, file), "saved, and read again")


def _restore(arguments: argparse.Namespace) -> int:
    """Restore a backup. Versions of assignments go on far above those that were issued, so devices accept them."""
    settings = load_config(Path(arguments.dir)).database
    file = Path(arguments.file)
    if not file.is_file():
        raise ConfigurationError("is not a file", file=arguments.file)
    try:
        saved = backup.restore(file, place_of(arguments.dir), settings)
    except OSError as error:
        if error.filename is None:
            raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=arguments.file) from error
        raise
    return _say(arguments, saved, "restored; start edge-fleet serve, which brings it up to date")


def _say(arguments: argparse.Namespace, saved: Saved, words: str) -> int:
    if arguments.json:
        print_json({"file": str(saved.file), "bytes": saved.size_bytes, "revision": saved.revision})
    else:
        print(f"{saved.file}: {words} ({counted(saved.size_bytes, 'byte')}, tables of {saved.revision})")
    return 0
