"""`edge-fleet uploads`: files of releases that a controller received and has not published."""

from __future__ import annotations

import argparse

from fleet.cli.remote import client, listed, local
from fleet.client.client import Json, path_of
from gateway.terminal.tables import plain, print_json


def command(arguments: argparse.Namespace) -> int:
    """List uploads, or delete some. Return 0."""
    asked = client(arguments)
    if arguments.action == "list":
        columns = ("digest", "token", "received", "of bytes", "state", "expires")
        return listed(arguments, "uploads", [*asked.pages(path_of("blobs"))], columns, _row, none="no upload is here")
    query = {"by": arguments.by or ""}
    gone = [asked.ask("DELETE", path_of("blobs", digest), query) for digest in arguments.digest]
    if arguments.json:
        print_json({"uploads": gone})
    else:
        for one in gone:
            print(plain(f"deleted: {one['digest']} of {one['by']}, {one['received_bytes']:,} bytes received"))
    return 0


def _row(one: Json) -> tuple[str, ...]:
    state = "complete" if one["complete"] else "incomplete"
    received, size = f"{one['received_bytes']:,}", f"{one['size_bytes']:,}"
    return one["digest"], one["by"], received, size, state, local(one["expires"])
