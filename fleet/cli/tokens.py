"""`edge-fleet tokens`: API tokens of operators and programs."""

from __future__ import annotations

import argparse
import getpass
from datetime import datetime, timedelta, timezone

from fleet.cli.remote import bounded, check_out, client, hand_out, listed, local
from fleet.client.client import Json, path_of
from fleet.controller.access import Role
from fleet.times import moment
from gateway.common.domain.python310 import from_iso
from gateway.common.terminal.tables import print_json

NOTICE_D = 14
"""Days before the end of the last admin token from which a notice is printed."""


def command(arguments: argparse.Namespace) -> int:
    """Execute one action. Return its exit code."""
    return {"create": _create, "list": _list, "revoke": _revoke}[arguments.action](arguments)


def _create(arguments: argparse.Namespace) -> int:
    check_out(arguments.out)
    made = _made_beside(arguments) if arguments.dir else _made(arguments)
    if arguments.json and not arguments.out:
        print_json(made)
        return 0
    scope = f" for {', '.join(made['tags'])}" if made["tags"] else ""
    words = f"token {made['id']} of {made['name']}, {made['role']}{scope}, until {local(made['expires'])}"
    hand_out(made["token"], arguments.out, words)
    if arguments.json:
        print_json({name: value for name, value in made.items() if name != "token"})
    return 0


def _made(arguments: argparse.Namespace) -> Json:
    body = {"name": arguments.name, "role": arguments.role, "tags": arguments.tag}
    if arguments.days is not None:
        body["validity_d"] = arguments.days
    return client(arguments).ask("POST", path_of("tokens"), body=body)


def _made_beside(arguments: argparse.Namespace) -> Json:
    """Create the token directly in the database, as a user who may write there: the way to the first token."""
    from fleet.cli.local_database import opened_database
    from fleet.controller.control.tokens import WantedToken, make_token
    from fleet.controller.database import migrate

    validity = {} if arguments.days is None else {"validity_d": arguments.days}
    wanted = WantedToken(arguments.name, Role(arguments.role), frozenset(arguments.tag), **validity)
    with opened_database(arguments.dir, make=True) as database:
        migrate.upgrade(database)
        credential, made = make_token(database, wanted, f"local:{getpass.getuser()}", datetime.now(timezone.utc))
    plain = {"id": made.id, "prefix": made.prefix, "name": made.name, "role": made.role, "tags": sorted(made.tags)}
    times = {"created": moment(made.created), "expires": moment(made.expires)}
    return plain | times | {"created_by": made.created_by, "revoked": None, "token": credential.text}


def _list(arguments: argparse.Namespace) -> int:
    found = bounded(client(arguments).pages(path_of("tokens")), arguments.limit)
    now = datetime.now(timezone.utc)
    columns = ("id", "name", "role", "for", "begins", "state")
    code = listed(arguments, "tokens", found, columns, lambda one: _row(one, now), none="no tokens")
    if not arguments.json:
        # Admins are warned before they are locked out.
        ends = [
            from_iso(one["expires"])
            for one in found
            if one["role"] == Role.ADMIN and not one["tags"] and _holds(one, now)
        ]
        if ends and max(ends) < now + timedelta(days=NOTICE_D):
            when = max(ends).astimezone().strftime("%Y-%m-%d %H:%M")
            print(f"the last admin token for all devices ends {when}: create another before: edge-fleet tokens create")
    return code


def _row(one: Json, now: datetime) -> tuple[str, ...]:
    recipient = ", ".join(one["tags"]) or "all devices"
    return str(one["id"]), one["name"], one["role"], recipient, f"{one['prefix']}…", _standing(one, now)


def _standing(one: Json, now: datetime) -> str:
    if one["revoked"]:
        return f"revoked {local(one['revoked'])}"
    return f"{'valid until' if _holds(one, now) else 'expired'} {local(one['expires'])}"


def _holds(one: Json, now: datetime) -> bool:
    return not one["revoked"] and from_iso(one["expires"]) > now


def _revoke(arguments: argparse.Namespace) -> int:
    query = {"last": arguments.last}
    token = client(arguments).ask("DELETE", path_of("tokens", arguments.id), query)
    if arguments.json:
        print_json(token)
    else:
        print(f"token {token['id']} of {token['name']} is revoked")
    return 0
