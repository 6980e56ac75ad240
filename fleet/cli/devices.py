"""`edge-fleet devices`: list, label, enrol and remove devices; change many of them, after a question."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from fleet.cli.remote import ago, bounded, check_out, client, confirmed, hand_out, listed, local, short, target_of
from fleet.client.client import Client, Json, path_of
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.python310 import from_iso
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table

LOOK_S = 2.0
"""Seconds between two checks for an answer."""


def diagnose(arguments: argparse.Namespace) -> int:
    """Request diagnostics, and wait for the answer if --wait is given. Return 0.

    Raise UnreachableError if none came in time.
    """
    asked, path = client(arguments), path_of("devices", arguments.device, "diagnostics")
    request = asked.ask("POST", path, body={"wanted": arguments.want} if arguments.want else {})
    if arguments.wait is None:
        if arguments.json:
            print_json(request)
            return 0
        print(f"request {request['id']}: {request['device']} answers after its next poll; to see it:")
        print(f"edge-fleet devices answers {request['device']} --request {request['id']}")
        return 0
    if not arguments.json:
        print(f"{arguments.device} answers after its next poll …", file=sys.stderr)
    return _answer(arguments, _awaited(asked, f"{path}/{request['id']}", arguments.wait))


def answers(arguments: argparse.Namespace) -> int:
    """Print the requests, or one answer. Return 0."""
    asked, path = client(arguments), path_of("devices", arguments.device, "diagnostics")
    if arguments.request is not None:
        return _answer(arguments, asked.ask("GET", f"{path}/{arguments.request}"))
    found = list(asked.pages(path))
    columns = ("request", "wanted", "asked", "by", "answered")
    return listed(arguments, "diagnostics", found, columns, _request_row, none=f"no requests to {arguments.device}")


def _request_row(one: Json) -> tuple[str, ...]:
    return str(one["id"]), ", ".join(one["wanted"]), local(one["asked"]), one["asked_by"], _outcome(one)


def _awaited(asked: Client, path: str, wait_s: float) -> Json:
    end_s = time.monotonic() + wait_s
    while True:
        found = asked.ask("GET", path)
        if found["answered"]:
            return found
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            problem = f"no answer within {wait_s:g} s; it may still come until {local(found['expires'])}"
            raise UnreachableError(f"{problem}: edge-fleet devices answers {found['device']} --request {found['id']}")
        time.sleep(min(LOOK_S, left_s))


def _answer(arguments: argparse.Namespace, found: Json) -> int:
    if arguments.json:
        print_json(found)
        return 0
    print(f"request {found['id']} to {found['device']}, answered {_outcome(found)}")
    for part, text in (found["answer"] or {}).items():
        print(f"\n== {plain(part)} ==")
        if isinstance(text, list) and all(isinstance(line, str) for line in text):
            print("\n".join(map(plain, text)))
        elif isinstance(text, str):
            print(plain(text))
        else:
            print_json(text)
    return 0


def _outcome(one: Json) -> str:
    return f"{local(one['answered'])} ({ago(one['answered'])})" if one["answered"] else "not yet"


_USED_TWICE = (
    "{}; compare hardware with edge-agent status --json on each machine, and enrol the copy under another name"
)
COLUMNS = ("device", "state", "profile", "site", "tags", "runs", "seen ago")


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return ACTIONS[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    names = ("state", "profile", "site", "serial", "tag", "query")
    query = {name: getattr(arguments, name) for name in names} | {"target": target_of(arguments.target or "")}
    found = bounded(client(arguments).pages(path_of("devices"), query), arguments.limit)
    asked = any(query.values())
    none = "no device matches" if asked else "no devices yet; edge-fleet devices token enrols the first one"
    code = listed(arguments, "devices", found, COLUMNS, _row, none=none)
    if found and not arguments.json:
        print(counted(len(found), "device"))
    return code


def _row(device: Json) -> tuple[str, ...]:
    """Return a row of the table, which fits 80 columns: what is as it should be takes little space."""
    state = device["health"] if device["state"] == "enrolled" and device["health"] else device["state"]
    runs = ", ".join(_runs(one) for one in device["running"])
    tags, seen = ", ".join(device["tags"]), ago(device["seen"]).removesuffix(" ago")
    return device["id"], state, device["profile"], device["site"], tags, runs, seen


def _runs(one: Json) -> str:
    """Return what a slot runs, such as "meter-reader 2", "meter-reader: rolled back"."""
    version = short(one["target"]).rpartition("/")[2]
    words = f"{one['slot']} {version}" if version else f"{one['slot']}:"
    return words if one["state"] == "committed" else f"{words} {one['state'].replace('_', ' ')}"


def _show(arguments: argparse.Namespace) -> int:
    asked = client(arguments)
    device = asked.ask("GET", path_of("devices", arguments.device))
    if arguments.inventory:
        device["inventory"] = asked.ask("GET", path_of("devices", arguments.device, "inventory"))
    if arguments.json:
        print_json(device)
        return 0
    print_facts(_facts(device))
    wanted = {one["slot"]: one for one in device["desired"]}
    runs = {one["slot"]: one for one in device["running"]}
    rows = [
        (
            slot,
            short(wanted[slot]["target"]) if slot in wanted else "-",
            *(short(runs.get(slot, {}).get(name, "")) or "-" for name in ("target", "state", "variant", "accelerator")),
        )
        for slot in sorted(wanted | runs)
    ]
    if rows:
        print()
        print_table(("slot", "is to run", "runs", "state", "variant", "accelerator"), rows)
    if arguments.inventory:
        print_json(device["inventory"])
    return 0


def _facts(device: Json) -> list[tuple[str, str]]:
    state = device["state"]
    if device["revoked"] or device["suspended"]:
        state += f" {local(device[state])}: {device[f'{state}_because'] or 'no reason given'}"
    current = next((one for one in device["certificates"] if not one["revoked"]), None)
    certificate = f"{current['serial']}, until {local(current['expires'])}" if current else "none that is valid"
    hardware = device.get("machine", {}).get("hardware", {})
    return [
        ("device", device["id"]),
        ("state", state),
        ("serial", device["serial"] or "-"),
        ("profile", device["profile"] or "-"),
        ("accelerators", ", ".join(device["accelerators"]) or "-"),
        ("tags", ", ".join(device["tags"]) or "-"),
        ("site", device["site"] or "-"),
        ("health", device["health"] or "-"),
        ("enrolled", local(device["enrolled"])),
        ("seen", ago(device["seen"])),
        ("certificate", certificate),
        ("hardware", "; ".join(f"{fact} {', '.join(digests)}" for fact, digests in hardware.items()) or "-"),
        *([("used twice", _USED_TWICE.format(ago(device["used_twice"])))] if device.get("used_twice") else []),
    ]


def _label(arguments: argparse.Namespace) -> int:
    asked, path = client(arguments), path_of("devices", arguments.device)
    if not (arguments.tag or arguments.add or arguments.remove or arguments.no_tags) and arguments.site is None:
        raise ConfigurationError("say what to change: --tag, --add, --remove, --no-tags or --site")
    before, state = asked.read(f"{path}/labels")
    whole = bool(arguments.tag or arguments.no_tags)
    tags = (set(arguments.tag if whole else before["tags"]) | set(arguments.add)) - set(arguments.remove)
    site = before["site"] if arguments.site is None else arguments.site
    device = asked.ask("PUT", f"{path}/labels", body={"tags": sorted(tags), "site": site}, if_match=state)
    words = f"{device['id']}: tags {', '.join(device['tags']) or '-'}; site {device['site'] or '-'}"
    return _over(arguments, device, words)


def _register(arguments: argparse.Namespace) -> int:
    body = {"serial": arguments.serial, "id": arguments.id or "", "tags": arguments.tag, "site": arguments.site or ""}
    device = client(arguments).ask("POST", path_of("devices"), body=body)
    return _over(arguments, device, f"{device['id']}: may enrol by its serial {device['serial']}")


def _withdraw(arguments: argparse.Namespace) -> int:
    device, slot = arguments.device, arguments.slot
    client(arguments).ask("DELETE", path_of("devices", device, "slots", slot), {"because": arguments.because})
    message = f"{device}: ordered to empty {slot}, when its policy allows it"
    return _over(arguments, {"device": device, "withdrawn": slot}, message)


def _remove(arguments: argparse.Namespace) -> int:
    device = arguments.device
    client(arguments).ask("DELETE", path_of("devices", device), {"because": arguments.because})
    return _over(arguments, {"removed": device}, f"{device}: removed; the name may be enrolled again")


def _over(arguments: argparse.Namespace, document: Json, words: str) -> int:
    if arguments.json:
        print_json(document)
    else:
        print(plain(words))
    return 0


def _token(arguments: argparse.Namespace) -> int:
    check_out(arguments.out)
    body = {"device": arguments.device or "", "tags": arguments.tag, "site": arguments.site or ""}
    if arguments.hours is not None:
        body["validity_h"] = arguments.hours
    made = client(arguments).ask("POST", path_of("enrolments"), body=body)
    if arguments.json and not arguments.out:
        print_json(made)
        return 0
    recipient = made["device"] or "one device"
    hand_out(
        made["token"], arguments.out, f"enrolment token {made['id']} for {recipient}, until {local(made['expires'])}"
    )
    if arguments.json:
        print_json({name: value for name, value in made.items() if name != "token"})
    return 0


def _tokens(arguments: argparse.Namespace) -> int:
    found = bounded(client(arguments).pages(path_of("enrolments")), arguments.limit)
    columns = ("id", "begins", "for", "tags", "site", "state", "made by")
    return listed(arguments, "enrolments", found, columns, _token_row, none="no enrolment tokens")


def _token_row(one: Json) -> tuple[str, ...]:
    tags, recipient = ", ".join(one["tags"]), one["device"] or "any"
    return str(one["id"]), f"{one['prefix']}…", recipient, tags, one["site"], _standing(one), one["created_by"]


def _standing(one: Json) -> str:
    if one["used"]:
        return f"used {local(one['used'])} by {one['used_by']}"
    over = from_iso(one["expires"]) <= datetime.now(timezone.utc)
    return f"{'expired' if over else 'waits until'} {local(one['expires'])}"


def _revoke_token(arguments: argparse.Namespace) -> int:
    client(arguments).ask("DELETE", path_of("enrolments", arguments.id))
    return _over(arguments, {"revoked": arguments.id}, f"enrolment token {arguments.id} is revoked")


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


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "label": _label,
    "tag": tag,
    "register": _register,
    "withdraw": _withdraw,
    "suspend": change_state,
    "resume": change_state,
    "revoke": change_state,
    "readmit": readmit,
    "remove": _remove,
    "token": _token,
    "tokens": _tokens,
    "revoke-token": _revoke_token,
    "diagnose": diagnose,
    "answers": answers,
}
