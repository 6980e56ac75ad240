"""`edge-fleet rollouts`: create, approve, control and show rollouts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime, timezone

from fleet.cli.remote import ago, bounded, client, listed, local, short
from fleet.cli.rollouts_spec import specification, words
from fleet.cli.rollouts_view import headline, notes, running_words, wave_rows
from fleet.cli.watch import watch
from fleet.client.client import Json, path_of
from fleet.controller.rollouts import replay as replaying
from fleet.controller.rollouts.decisions import Decision
from fleet.controller.rollouts.facts_form import decision_document, read_fact
from fleet.controller.rollouts.spec_form import read_spec
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.terminal.tables import counted, plain, print_facts, print_json, print_table


def replay(arguments: argparse.Namespace) -> int:
    """Decide again from the facts. Return 0 if each recorded decision follows, 1 if one does not."""
    asked, path = client(arguments), path_of("rollouts", arguments.rollout)
    spec = read_spec(asked.ask("GET", path)["spec"])
    found = replaying.replay(spec, (read_fact(document) for document in asked.pages(f"{path}/facts")))
    difference = found.difference
    result: Json = {
        "ok": difference is None,
        "facts": found.facts,
        "decisions": found.decisions,
        "state": found.state.status.value,
        "difference": None
        if difference is None
        else {
            "seq": difference.seq,
            "recorded": _document(difference.recorded),
            "decided": _document(difference.decided),
        },
    }
    if arguments.json:
        print_json(result)
    elif difference is None:
        counts = f"{counted(found.facts, 'fact')}, {counted(found.decisions, 'decision')}"
        print(f"{counts}: each decision follows from the facts before it")
        print(f"they end {found.state.status.value}")
    else:
        print(f"fact {difference.seq} does not follow from the facts before it:")
        print(f"  recorded {json.dumps(_document(difference.recorded))}")
        print(f"  decided  {json.dumps(_document(difference.decided))}")
    return 0 if difference is None else 1


def _document(decision: Decision | None) -> Json | None:
    return decision_document(decision) if decision is not None else None


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return ACTIONS[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = bounded(
        client(arguments).pages(path_of("rollouts"), {"state": arguments.state, "archived": arguments.archived}),
        arguments.limit,
    )
    none = "no rollout is in this state" if arguments.state else "no rollouts; edge-fleet rollouts create drafts one"
    return listed(arguments, "rollouts", found, ("rollout", "name", "release", "state", "by"), _row, none=none)


def _row(one: Json) -> tuple[str, ...]:
    """Return a row of the table, which fits 80 columns.

    The id contains the time of creation. The slot is shown only if it differs from the model's name.
    """
    release = short(one["target"])
    slot = "" if release.split("/")[1:2] == [one["slot"]] else f" as {one['slot']}"
    live = one["standing"] and one["state"] in {"running", "paused"}
    state = f"{one['state']}{', standing' if live else ''}{', archived' if one['archived'] else ''}"
    return one["id"], one["name"], f"{release}{slot}", state, one["created_by"]


def _show(arguments: argparse.Namespace) -> int:
    view = client(arguments).ask("GET", path_of("rollouts", arguments.rollout))
    return _print(arguments, view)


def _print(arguments: argparse.Namespace, view: Json) -> int:
    if arguments.json:
        print_json(view)
        return 0
    revised = f", revised by {view['revised_by']}" if view["revised_by"] else ""
    made = f"{local(view['created'])} by {view['created_by']}{revised}"
    begin = [("rollout", f"{view['id']} {view['name']}"), ("state", headline(view)), ("created", made)]
    print_facts([*begin, *words(view["spec"]), ("spec digest", view["spec_digest"])])
    rows = [
        (row.label, "yes" if row.opened else "-", *map(str, (row.expected, row.committed, may)), row.states)
        for row, may in zip(wave_rows(view), (one["may_install"] for one in view["waves"]), strict=True)
    ]
    print()
    print_table(("wave", "opened", "devices", "committed", "may install", "states"), rows)
    for note in notes(view, datetime.now(timezone.utc)):
        print(note)
    return 0


def _create(arguments: argparse.Namespace) -> int:
    asked, document = client(arguments), specification(arguments)
    if not arguments.json:
        print_facts([("changes", running_words(asked.ask("POST", path_of("rollouts", "preview"), body=document)))])
    view = asked.ask("POST", path_of("rollouts"), body=document)
    if arguments.start:
        path = path_of("rollouts", view["id"])
        asked.ask("POST", f"{path}/approve", body={"spec": view["spec_digest"]})
        view = asked.ask("POST", f"{path}/start")
    return _print(arguments, view)


def _revise(arguments: argparse.Namespace) -> int:
    """Replace the draft, if it is still the one that was read."""
    asked, path, document = client(arguments), path_of("rollouts", arguments.rollout), specification(arguments)
    before, state = asked.read(path)
    if arguments.replaces not in {None, before["spec_digest"]}:
        problem = f"the spec digest of {arguments.rollout} is {before['spec_digest']}: it was revised since"
        raise RequestError(Fault.INVALID, f"{problem}; see edge-fleet rollouts show {arguments.rollout}")
    return _print(arguments, asked.ask("PUT", path, body=document, if_match=state))


def _preview(arguments: argparse.Namespace) -> int:
    found = client(arguments).ask("POST", path_of("rollouts", "preview"), body=specification(arguments))
    if arguments.json:
        print_json(found)
        return 0
    kinds = ", ".join(f"{count} {kind}" for kind, count in found["accelerators"].items())
    matches = f"{counted(found['devices'], 'device')}{f': {kinds}' if kinds else ''}"
    print_facts([*words(found["spec"]), ("matches", matches), ("changes", running_words(found))])
    print()
    print_table(("wave", "takes"), [(_wave(one["wave"]), str(one["devices"])) for one in found["waves"]])
    if found["held"]:
        print(f"devices in another rollout of this slot, which join when that is over: {found['held']}")
    if found["unknown_zones"]:
        sites = plain(", ".join(found["unknown_zones"]))
        print(f"sites with an unknown time zone, whose windows never open: {sites}")
    return 0


def _wave(wave: int) -> str:
    return str(wave) if wave else "canary"


def _approve(arguments: argparse.Namespace) -> int:
    """Approve the specification that is shown, or the one that --spec names."""
    asked, path = client(arguments), path_of("rollouts", arguments.rollout)
    view = asked.ask("GET", path)
    digest = arguments.spec or view["spec_digest"]
    if not (arguments.spec or arguments.yes):
        if arguments.json or not sys.stdin.isatty():
            problem = f"there is no terminal to ask on; --spec {digest} approves what you saw, --yes whatever it is"
            raise ConfigurationError(problem)
        print_facts([("rollout", f"{view['id']} {view['name']}"), *words(view["spec"])])
        if input("approve this? [y/N] ").strip().lower() not in {"y", "yes"}:
            print("nothing was approved")
            return 1
    return _print_rollout(arguments, asked.ask("POST", f"{path}/approve", body={"spec": digest}))


def _word(verb: str) -> Callable[[argparse.Namespace], int]:
    """Return the action for a verb such as pause or abort, which takes only a reason."""

    def say(arguments: argparse.Namespace) -> int:
        body = {"reason": arguments.because} if getattr(arguments, "because", None) else None
        path = path_of("rollouts", arguments.rollout, verb)
        return _print_rollout(arguments, client(arguments).ask("POST", path, body=body))

    return say


def _archive(arguments: argparse.Namespace) -> int:
    if arguments.rollout:
        return _word("archive")(arguments)
    asked, found, more = client(arguments), list[str](), True
    while more:
        part = asked.ask("POST", path_of("rollouts", "archive"), body={"before": arguments.before})
        found, more = [*found, *part["rollouts"]], part["more"]
    if arguments.json:
        print_json({"rollouts": found})
    else:
        print(f"archived: {counted(len(found), 'rollout')}")
    return 0


def _approve_wave(arguments: argparse.Namespace) -> int:
    path = path_of("rollouts", arguments.rollout, "waves", arguments.wave, "approve")
    return _print_rollout(arguments, client(arguments).ask("POST", path))


def _print_rollout(arguments: argparse.Namespace, view: Json) -> int:
    if arguments.json:
        print_json(view)
        return 0
    print(f"{view['id']}: {headline(view)}")
    for note in notes(view, datetime.now(timezone.utc)):
        print(note)
    return 0


def _devices(arguments: argparse.Namespace) -> int:
    path = path_of("rollouts", arguments.rollout, "devices")
    query = {"state": arguments.state, "wave": arguments.wave}
    found = bounded(client(arguments).pages(path, query), arguments.limit)
    columns = ("device", "state", "wave", "try", "kind", "heard ago", "why")
    return listed(arguments, "devices", found, columns, _device_row, none="no such devices in this rollout")


def _device_row(one: Json) -> tuple[str, ...]:
    state, wave = one["state"].replace("_", " "), "-" if one["wave"] is None else _wave(one["wave"])
    contact = ago(one["heard"]).removesuffix(" ago")
    return one["device"], state, wave, str(one["attempt"]), one["accelerators"], contact, one["reason"]


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "create": _create,
    "revise": _revise,
    "list": _list,
    "show": _show,
    "preview": _preview,
    "approve": _approve,
    "start": _word("start"),
    "pause": _word("pause"),
    "resume": _word("resume"),
    "abort": _word("abort"),
    "rollback": _word("rollback"),
    "approve-wave": _approve_wave,
    "archive": _archive,
    "restore": _word("restore"),
    "devices": _devices,
    "watch": watch,
    "replay": replay,
}
