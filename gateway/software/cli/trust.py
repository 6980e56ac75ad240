"""`edge-software trust ROOT`: pin the root of trust for new versions of these programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.software.cli.common import check_root, errors_with_exit_codes, records
from gateway.software.pin import pin
from gateway.store.roots import read_bounded
from gateway.trust.settings import DEFAULTS


def command(arguments: argparse.Namespace) -> int:
    """Pin the root. Safe to repeat."""
    check_root()
    files = records(arguments)
    with errors_with_exit_codes():
        version = pin(files, _content(arguments.root), replace=arguments.replace)
    print(f"new versions of these programs are trusted from root {version} on, kept in {files.folder}")
    return 0


def _content(named: str) -> bytes:
    limit_bytes = DEFAULTS.metadata_limit_bytes
    return sys.stdin.buffer.read(limit_bytes + 1) if named == "-" else read_bounded(Path(named), limit_bytes)
