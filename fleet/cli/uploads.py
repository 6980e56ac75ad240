"""`edge-fleet uploads`: files of releases that a controller received and has not published."""

from __future__ import annotations

import argparse

from fleet.cli.remote import client, listed, local
from fleet.client.client import Json, path_of

COLUMNS = ("digest", "token", "received", "of bytes", "state", "expires")


def command(arguments: argparse.Namespace) -> int:
    """List uploads, or delete some and list these. Return 0."""
    asked, query = client(arguments), {"by": getattr(arguments, "by", None) or ""}
    if arguments.action == "list":
        found = [*asked.pages(path_of("blobs"))]
    else:
        found = [asked.ask("DELETE", path_of("blobs", digest), query) for digest in arguments.digest]
    return listed(arguments, "uploads", found, COLUMNS, _row, none="no upload is here")


def _row(one: Json) -> tuple[str, ...]:
    state = "complete" if one["complete"] else "incomplete"
    received, size = f"{one['received_bytes']:,}", f"{one['size_bytes']:,}"
    return one["digest"], one["by"], received, size, state, local(one["expires"])
