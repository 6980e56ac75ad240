"""`edge-fleet devices diagnose` and `answers`: requests for diagnostics, and devices' answers."""

from __future__ import annotations

import argparse
import sys
import time

from fleet.cli.remote import ago, client, listed, local
from fleet.client.client import Client, Json, path_of
from gateway.common.domain.errors import UnreachableError
from gateway.common.terminal.tables import plain, print_json

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
    return listed(arguments, "diagnostics", found, columns, _row, none=f"no requests to {arguments.device}")


def _row(one: Json) -> tuple[str, ...]:
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
