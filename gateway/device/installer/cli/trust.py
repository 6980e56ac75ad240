"""`edge-software trust ROOT`: pin the root of trust for new versions of these programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.common.store.roots import read_bounded
from gateway.common.trust.settings import DEFAULTS
from gateway.device.installer.cli.common import check_root, errors_with_exit_codes, records
from gateway.device.installer.verification import pin


def command(arguments: argparse.Namespace) -> int:
    """Pin the root. Safe to repeat."""
    check_root()
    files, named, limit_bytes = records(arguments), arguments.root, DEFAULTS.metadata_limit_bytes
    with errors_with_exit_codes():
        content = sys.stdin.buffer.read(limit_bytes + 1) if named == "-" else read_bounded(Path(named), limit_bytes)
        version = pin(files, content, replace=arguments.replace)
    print(f"new versions of these programs are trusted from root {version} on, kept in {files.folder}")
    return 0
