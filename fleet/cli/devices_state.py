"""`edge-fleet devices suspend`, `resume`, `revoke` and `readmit`: change the state of devices."""

from __future__ import annotations

import argparse

from fleet.cli.devices_tag import devices_words
from fleet.cli.remote import client, confirmed
from fleet.client.client import path_of
from gateway.domain.errors import ConfigurationError
from gateway.terminal.tables import plain, print_json

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
