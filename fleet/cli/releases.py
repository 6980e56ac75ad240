"""`edge-fleet releases`: published releases, as the controller verified them."""

from __future__ import annotations

import argparse

from fleet.cli.remote import bounded, client, listed, local, release_of, short
from fleet.client.client import Json, path_of
from gateway.common.terminal.tables import plain, print_facts, print_json


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return {"list": _list, "show": _show}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = bounded(client(arguments).pages(path_of("releases"), {"model": arguments.model}), arguments.limit)
    columns = ("owner", "model", "version", "floor", "released", "state")
    none = "no releases; edge-fleet publish publishes them, and the controller reads them within seconds"
    return listed(
        arguments, "releases", found, columns, _row, none="no release of this model" if arguments.model else none
    )


def _row(one: Json) -> tuple[str, ...]:
    return (
        *(one[name] for name in ("owner", "model", "version", "floor")),
        local(one["released"]),
        (f"withdrawn {local(one['withdrawn'])}" if one["withdrawn"] else "published"),
    )


def _show(arguments: argparse.Namespace) -> int:
    named = release_of(arguments.release)
    found = client(arguments).ask("GET", path_of("releases", named.owner, named.model, named.version))
    if arguments.json:
        print_json(found)
        return 0
    release = found["release"]
    variants = found["document"].get("variants", [])
    print_facts(
        [
            ("release", short(release["target"])),
            ("path", release["target"]),
            ("digest", release["digest"]),
            ("floor", release["floor"] or "-"),
            ("released", local(release["released"])),
            ("known here since", local(release["first_read"])),
            ("variants", ", ".join(str(one.get("name", "?")) for one in variants if isinstance(one, dict)) or "-"),
            ("may be rolled out", f"no: {found['refused']}" if found["refused"] else "yes"),
        ]
    )
    for line in str(found["document"].get("toml", "")).splitlines():
        print(f"  | {plain(line)}")
    return 0
