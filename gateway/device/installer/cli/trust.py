"""`edge-software trust ROOT`: pin the root of trust for new versions of these programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.text import read_text
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.settings import DEFAULTS
from gateway.device.installer.cli.common import check_root, errors_with_exit_codes, records
from gateway.device.installer.verification import pin


def command(arguments: argparse.Namespace) -> int:
    """Pin the root. Safe to repeat."""
    check_root()
    files, named, limit_bytes = records(arguments), arguments.root, DEFAULTS.metadata_limit_bytes
    content = sys.stdin.buffer.read(limit_bytes + 1) if named == "-" else read_text(Path(named)).encode()
    with errors_with_exit_codes():
        try:
            version = pin(files, content, replace=arguments.replace)
        except Distrust as error:
            raise ConfigurationError(f"is no root.json of a fleet: {error}", file=named) from error
    print(f"new versions of these programs are trusted from root {version} on, kept in {files.folder}")
    return 0
