"""`edge-fleet devices tag`: tags and site of many devices, after a preview and a question."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fleet.cli.remote import client, confirmed
from fleet.client.client import Client, Json, path_of
from gateway.terminal.tables import counted, plain, print_json

NAMES_SHOWN = 20


def tag(arguments: argparse.Namespace) -> int:
    """Preview, ask, change exactly as many devices as the preview said. Return 1 if the operator declines."""
    asked, body = client(arguments), _body(arguments)
    found = _ask(asked, {**body, "dry_run": True})
    if arguments.dry_run or not found["changed"]:
        return _print(arguments, found, "would change" if found["changed"] else "nothing to change")
    words = devices_words(found["changed"], found["selected"], found["devices"])
    if not confirmed(arguments, found["changed"], [*_words(body), ("changes", words)]):
        return 1
    return _print(arguments, _ask(asked, {**body, "expected": found["changed"]}), "changed")


def _ask(asked: Client, body: dict[str, Any]) -> Json:
    return asked.ask("POST", path_of("devices", "tags"), body=body)


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = {"query": arguments.query or "", "devices": arguments.device, "site": arguments.site}
    return {**body, "add": arguments.add, "remove": arguments.remove}


def _words(body: dict[str, Any]) -> list[tuple[str, str]]:
    said = [("query", body["query"]), ("add", ", ".join(body["add"])), ("remove", ", ".join(body["remove"]))]
    site = [("site", body["site"] or "none")] if body["site"] is not None else []
    return [*((name, value) for name, value in said if value), *site]


def devices_words(changed: int, selected: int, names: Sequence[str]) -> str:
    """Return how many of the selected devices change, and the names of the first."""
    more = changed - len(names[:NAMES_SHOWN])
    shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more else "")
    return f"{changed} of {counted(selected, 'device')}{f': {shown}' if changed else ''}"


def _print(arguments: argparse.Namespace, found: Json, words: str) -> int:
    if arguments.json:
        print_json(found)
        return 0
    print(plain(f"{words}: {devices_words(found['changed'], found['selected'], found['devices'])}"))
    if found["enrolments_void"]:
        print(f"enrolment tokens that are void, as their device lost a tag: {found['enrolments_void']}")
    return 0
