"""`edge-fleet devices suspend`, `resume`, `revoke` and `readmit`: change the state of devices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from fleet.cli.remote import client, confirmed
from fleet.client.client import Client, Json, path_of
from gateway.domain.errors import ConfigurationError
from gateway.terminal.tables import counted, plain, print_json

BEFORE: Mapping[str, Sequence[str]] = {
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
NAMES_SHOWN = 20


def change_state(arguments: argparse.Namespace) -> int:
    """Count the devices, ask, change them one by one. Return 1 if the operator declines."""
    asked, verb = client(arguments), arguments.action
    found = _selected(asked, arguments)
    changing = [one["id"] for one in found if arguments.device or one["state"] in BEFORE[verb]]
    words = f"{len(changing)} of {counted(len(found), 'device')}: {_names(changing)}"
    if arguments.dry_run or not changing:
        if arguments.json:
            print_json({"devices": changing})
        else:
            print(plain(f"{verb}: {words}" if changing else f"{verb}: 0 of {counted(len(found), 'device')}"))
        return 0
    facts = [("query", arguments.query or ""), (verb, words), ("they are", ASKED.get(verb, ""))]
    if verb in ASKED and not confirmed(arguments, len(changing), [fact for fact in facts if fact[1]]):
        return 1
    body, changed = {"because": arguments.because or ""}, []
    for device in changing:
        changed.append(asked.ask("POST", path_of("devices", device, verb), body=body))
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
    name, serial = device["id"], device["serial"]
    print(plain(f"{name}: may enrol again. Its certificates stay revoked, so it needs a new one:"))
    if serial:
        print(plain(f"  on the device: sudo edge-agent enrol URL --ca ca.pem --serial {serial}"))
        print("or, with a token:")
    print(plain(f"  here:          edge-fleet devices token --device {name} --out {name}.token"))
    print(plain(f"  on the device: sudo edge-agent enrol URL --ca ca.pem --token-file {name}.token"))
    print("URL is this controller's address for devices, ca.pem its authority/ca.pem")
    return 0


def _selected(asked: Client, arguments: argparse.Namespace) -> list[Json]:
    if bool(arguments.device) == bool(arguments.query):
        raise ConfigurationError("name the devices either by their ids or by --query ('all': every device)")
    if arguments.query:
        return list(asked.pages(path_of("devices"), {"query": arguments.query}))
    return [asked.ask("GET", path_of("devices", name)) for name in dict.fromkeys(arguments.device)]


def _names(devices: Sequence[str]) -> str:
    more = len(devices) - NAMES_SHOWN
    return ", ".join(devices[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
