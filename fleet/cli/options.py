"""Options that verbs share: the controller's folder, the controller's address, actions with help of their own."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.terminal.program import EXIT_CODES, json_option, named

FOLDER_VARIABLE = "EDGE_FLEET_DIR"
ROWS = 1_000
"""Of a list that are shown, where nobody says how many."""
DIGITS = 15
"""Of a whole number: JSON keeps them exact."""
Options = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Action:
    """What a verb does: `edge-fleet VERB NAME`."""

    name: str
    help: str
    examples: str
    options: Options


def actions(*offered: Action) -> Options:
    """The options of a verb whose first argument says what to do."""

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

    return options


def folder_option(parser: argparse.ArgumentParser, what: str = "the controller's folder") -> None:
    """--dir."""
    default = os.environ.get(FOLDER_VARIABLE) or "."
    words = f"{what} (default: ${FOLDER_VARIABLE}, else .)"
    parser.add_argument("--dir", type=named, metavar="DIR", default=default, help=words)


def publisher_options(parser: argparse.ArgumentParser) -> None:
    """--dir of the publisher, and --json."""
    folder_option(parser, "the publisher's folder: public, drafts, staged, keys, fleet.toml")
    json_option(parser)


def beside_option(parser: argparse.ArgumentParser) -> None:
    """--dir, where it says that no controller is to be asked."""
    words = "work on the database of this folder instead of asking a controller"
    parser.add_argument("--dir", type=named, metavar="DIR", help=words)


def remote_options(parser: argparse.ArgumentParser) -> None:
    """Where the controller is, who signs its certificate, who asks; and --json."""
    group = parser.add_argument_group("the controller")
    group.add_argument("--url", type=named, metavar="URL", help="its address (default: $EDGE_FLEET_URL)")
    group.add_argument(
        "--ca",
        type=named,
        metavar="FILE",
        help="who signs its certificate: its authority/ca.pem (default: $EDGE_FLEET_CA, else whom the system trusts)",
    )
    group.add_argument(
        "--token-file", type=named, metavar="FILE", help="its first line is the API token (default: $EDGE_FLEET_TOKEN)"
    )
    json_option(parser)


def drafting_options(parser: argparse.ArgumentParser) -> None:
    """--dir, or --remote with where the controller is."""
    folder_option(parser, "the publisher's folder: public, drafts, staged, keys, fleet.toml")
    parser.add_argument(
        "--remote",
        action="store_true",
        help="work at the controller of --url or $EDGE_FLEET_URL instead (--url alone means that too)",
    )
    remote_options(parser)


def device_argument(parser: argparse.ArgumentParser) -> None:
    """DEVICE."""
    parser.add_argument("device", metavar="DEVICE", type=named, help="the device's id")


def limit_option(parser: argparse.ArgumentParser, rows: int = ROWS) -> None:
    """--limit."""
    parser.add_argument("--limit", type=positive, metavar="N", default=rows, help=f"rows at most (default {rows})")


def positive(text: str) -> int:
    """A whole number above 0."""
    return _whole(text, 1, "above 0")


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    return _whole(text, 0, "from 0 on")


def _whole(text: str, low: int, words: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS and int(text) >= low):
        raise argparse.ArgumentTypeError(f"must be a whole number {words}, not {text!r:.40}")
    return int(text)


def span(text: str) -> float:
    """Hours or days above 0."""
    return _number(text, math.ulp(0.0), "above 0")


def number(text: str) -> float:
    """Seconds or percent, 0 or more."""
    return _number(text, 0.0, "from 0 on")


def _number(text: str, low: float, words: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not low <= found < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number {words}, not {text!r:.40}")
    return found


def tags_option(parser: argparse.ArgumentParser, what: str) -> None:
    """--tag, repeatable."""
    parser.add_argument("--tag", type=named, metavar="TAG", action="append", default=[], help=f"{what}; repeatable")


def query_option(parser: argparse.ArgumentParser, what: str) -> None:
    """--query."""
    words = f"{what}, such as 'tag=pilot and version.meter-reader < 2'"
    parser.add_argument("--query", type=named, metavar="QUERY", help=words)
