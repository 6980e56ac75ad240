"""`edge-fleet rollouts replay`: checks whether the recorded decisions follow from the recorded facts."""

from __future__ import annotations

import argparse
import json

from fleet.cli.remote import client
from fleet.client.client import Json, path_of
from fleet.controller.rollouts import replay as replaying
from fleet.controller.rollouts.decisions import Decision
from fleet.controller.rollouts.facts_form import decision_document, read_fact
from fleet.controller.rollouts.spec_form import read_spec
from gateway.terminal.tables import counted, print_json


def replay(arguments: argparse.Namespace) -> int:
    """Decide again from the facts. Return 0 if each recorded decision follows, 1 if one does not."""
    asked, path = client(arguments), path_of("rollouts", arguments.rollout)
    spec = read_spec(asked.ask("GET", path)["spec"])
    found = replaying.replay(spec, (read_fact(document) for document in asked.pages(f"{path}/facts")))
    difference = found.difference
    said: Json = {
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
        print_json(said)
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
