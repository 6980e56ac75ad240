"""Options that verbs share: the controller's folder and address, actions with help of their own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.common.terminal.numbers import positive
from gateway.common.terminal.program import EXIT_CODES, json_option, named

FOLDER_VARIABLE = "EDGE_FLEET_DIR"
ROWS = 1_000
"""Default number of rows that a list shows."""
Options = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class VerbAction:
    """Action of a verb: `edge-fleet VERB NAME`."""

    name: str
    help: str
    examples: str
    options: Options = lambda _parser: None


def folder_option(parser: argparse.ArgumentParser, what: str = "the controller's folder") -> None:
    """Add --dir."""
    default = os.environ.get(FOLDER_VARIABLE) or "."
    words = f"{what} (default: ${FOLDER_VARIABLE}, else .)"
    parser.add_argument("--dir", type=named, metavar="DIR", default=default, help=words)


def publisher_options(parser: argparse.ArgumentParser) -> None:
    """Add --dir of the publisher, and --json."""
    folder_option(parser, "the publisher's folder: public, drafts, staged, keys, fleet.toml")
    json_option(parser)


def beside_option(parser: argparse.ArgumentParser) -> None:
    """Add --dir, which selects a database instead of a controller."""
    words = "use the database of this folder instead of a controller"
    parser.add_argument("--dir", type=named, metavar="DIR", help=words)


def remote_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on the controller's address, its CA, the API token, and --json."""
    group = parser.add_argument_group("the controller")
    group.add_argument("--url", type=named, metavar="URL", help="its address (default: $EDGE_FLEET_URL)")
    group.add_argument(
        "--ca",
        type=named,
        metavar="FILE",
        help="CA of its certificate: its authority/ca.pem (default: $EDGE_FLEET_CA, else the system's CAs)",
    )
    group.add_argument(
        "--token-file", type=named, metavar="FILE", help="its first line is the API token (default: $EDGE_FLEET_TOKEN)"
    )
    json_option(parser)


def actions(*offered: VerbAction, ending: Options = remote_options) -> Options:
    """Return the options of a verb whose first argument is an action. `ending`: the last options of all actions."""

    def options(parser: argparse.ArgumentParser) -> None:
        choices: Any = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
        for action in offered:
            sub = choices.add_parser(
                action.name,
                help=action.help,
                description=f"{action.help[0].upper()}{action.help[1:]}.",
                epilog=f"examples:\n{action.examples}\n\n{EXIT_CODES}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            action.options(sub)
            ending(sub)

    return options


def drafting_options(parser: argparse.ArgumentParser) -> None:
    """Add --dir, --remote and the options that name the controller."""
    folder_option(parser, "the publisher's folder: public, drafts, staged, keys, fleet.toml")
    parser.add_argument(
        "--remote",
        action="store_true",
        help="work at the controller of --url or $EDGE_FLEET_URL instead (--url alone implies it)",
    )
    remote_options(parser)


def secrets_option(parser: argparse.ArgumentParser) -> None:
    """Add --passphrase-file."""
    words = "its first line is the passphrase or PIN (default: $EDGE_FLEET_PASSPHRASE, else asked for)"
    parser.add_argument("--passphrase-file", type=named, metavar="FILE", help=words)


def device_argument(parser: argparse.ArgumentParser) -> None:
    """Add DEVICE."""
    parser.add_argument("device", metavar="DEVICE", type=named, help="the device's id")


def limit_option(parser: argparse.ArgumentParser, rows: int = ROWS) -> None:
    """Add --limit."""
    parser.add_argument("--limit", type=positive, metavar="N", default=rows, help=f"rows at most (default {rows})")


def tags_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --tag, repeatable."""
    parser.add_argument("--tag", type=named, metavar="TAG", action="append", default=[], help=f"{what}; repeatable")


def query_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --query."""
    words = f"{what}, such as 'tag=pilot and version.meter-reader < 2'"
    parser.add_argument("--query", type=named, metavar="QUERY", help=words)
