"""`edge-fleet devices`: list, label, enrol and remove devices."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime, timezone

from fleet.cli.devices_state import change_state, readmit, tag
from fleet.cli.diagnose import answers, diagnose
from fleet.cli.remote import ago, bounded, check_out, client, hand_out, listed, local, short, target_of
from fleet.client.client import Json, path_of
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.python310 import from_iso
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table

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
