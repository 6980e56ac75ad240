"""`edge-fleet devices tag`, `suspend`, `resume`, `revoke` and `readmit`: change many devices, after a question."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fleet.cli.remote import client, confirmed
from fleet.client.client import Client, Json, path_of
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted, plain, print_json

NAMES_SHOWN = 20


def tag(arguments: argparse.Namespace) -> int:
    """Preview, ask, change exactly as many devices as the preview said. Return 1 if the operator declines."""
    asked, body = client(arguments), _body(arguments)
    found = _ask(asked, {**body, "dry_run": True})
    if arguments.dry_run or not found["changed"]:
        return _print(arguments, found, "would change" if found["changed"] else "nothing to change")
    words = devices_words(found["changed"], found["selected"], found["devices"])
    rows = [("query", body["query"]), ("add", ", ".join(body["add"])), ("remove", ", ".join(body["remove"]))]
    site = [("site", body["site"] or "none")] if body["site"] is not None else []
    facts = [*((name, value) for name, value in rows if value), *site, ("changes", words)]
    if not confirmed(arguments, found["changed"], facts):
        return 1
    return _print(arguments, _ask(asked, {**body, "expected": found["changed"]}), "changed")


def _ask(asked: Client, body: dict[str, Any]) -> Json:
    return asked.ask("POST", path_of("devices", "tags"), body=body)


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = {"query": arguments.query or "", "devices": arguments.device, "site": arguments.site}
    return {**body, "add": arguments.add, "remove": arguments.remove}


def devices_words(changed: int, selected: int, names: Sequence[str]) -> str:
    """Return how many of the selected devices change, and the names of the first."""
    more = changed - len(names[:NAMES_SHOWN])
    listed = ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more else "")
    return f"{changed} of {counted(selected, 'device')}{f': {listed}' if changed else ''}"


def _print(arguments: argparse.Namespace, found: Json, words: str) -> int:
    if arguments.json:
        print_json(found)
        return 0
    print(plain(f"{words}: {devices_words(found['changed'], found['selected'], found['devices'])}"))
    if found["enrolments_void"]:
        print(f"enrolment tokens that are void, as their device lost a tag: {found['enrolments_void']}")
    return 0


BEFORE = {
    "suspend": ("enrolled",),
    "resume": ("suspended",),
    "revoke": ("pre-registered", "enrolled", "suspended"),
}
"""States of devices of a query that an action changes. Named devices are left to the controller."""
ASKED = {
    "suspend": "refused until they are resumed; their certificates stay valid, and they continue with what they run",
    "revoke": "refused for good: to return, each has to be enrolled again, on the device (devices suspend does not)",
}
"""Consequence of the actions that ask before they begin."""
DONE = {
    "suspend": "suspended; edge-fleet devices resume accepts it again",
    "resume": "resumed; it is accepted from its next poll on",
    "revoke": "revoked, and its certificates with it",
}
READMITTED = """{0}: may enrol again. Its certificates stay revoked, so it needs a new one:
  here:          edge-fleet devices token --device {0} --out {0}.token
  on the device: sudo edge-agent enrol URL --ca ca.pem --token-file {0}.token
URL: of this controller, as devices reach it; ca.pem: its authority/ca.pem"""


def change_state(arguments: argparse.Namespace) -> int:
    """Count the devices, ask, change them one by one. Return 1 if the operator declines."""
    asked, verb, query = client(arguments), arguments.action, arguments.query or ""
    if bool(arguments.device) == bool(query):
        raise ConfigurationError("name the devices either by their ids or by --query ('all': every device)")
    named = (asked.ask("GET", path_of("devices", name)) for name in dict.fromkeys(arguments.device))
    found = list(asked.pages(path_of("devices"), {"query": query}) if query else named)
    changing = [one["id"] for one in found if not query or one["state"] in BEFORE[verb]]
    words = devices_words(len(changing), len(found), changing)
    if arguments.dry_run or not changing:
        print_json({"devices": changing}) if arguments.json else print(plain(f"{verb}: {words}"))
        return 0
    facts = [("query", query), (verb, words), ("they are", ASKED.get(verb, ""))]
    if verb in ASKED and not confirmed(arguments, len(changing), facts[not query :]):
        return 1
    changed = []
    for device in changing:
        changed.append(asked.ask("POST", path_of("devices", device, verb), body={"because": arguments.because or ""}))
        if not arguments.json:
            print(plain(f"{device}: {DONE[verb]}"), flush=True)
    if arguments.json:
        print_json(changed[0] if len(arguments.device) == 1 else {"devices": changed})
    return 0


def readmit(arguments: argparse.Namespace) -> int:
    """Allow a device to enrol again, and print what else is needed for that."""
    device = client(arguments).ask("POST", path_of("devices", arguments.device, "readmit"))
    if arguments.json:
        print_json(device)
        return 0
    print(READMITTED.format(device["id"]))
    if device["serial"]:
        print(plain(f"in place of the token: --serial {device['serial']}"))
    return 0
