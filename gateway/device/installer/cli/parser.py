"""Verbs of `edge-software`: options and examples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway import __version__
from gateway.common.terminal.program import Program, Verb, json_option, named
from gateway.device.installer.places import FOLDER


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb. Return its exit code."""
    return PROGRAM.main(arguments)


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        metavar="DIR",
        type=named,
        default=str(FOLDER),
        help=f"folder of the installer's files (default: {FOLDER})",
    )


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=named,
        metavar="FILE",
        help="TOML configuration (default: /etc/edge-gateway/edge-software.toml if it exists)",
    )


def _serve(parser: argparse.ArgumentParser) -> None:
    _config(parser)
    _state(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    json_option(parser)


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", type=named, help="folder with the wheels of one version, including that of pip"
    )
    _config(parser)
    json_option(parser)


def _trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", type=named, help='root.json of the fleet; "-": standard input')
    parser.add_argument("--replace", action="store_true", help="replace a root that is trusted already")
    _state(parser)


VERBS = (
    Verb(
        "serve",
        "serve",
        "install versions on request of the agent, from the socket that systemd passes",
        "  systemctl start edge-software.socket",
        _serve,
    ),
    Verb(
        "status",
        "status",
        "show the installed versions and the result of the last update",
        "  edge-software status\n  edge-software status --json | jq .update.phase",
        _status,
    ),
    Verb(
        "check",
        "check",
        "build and try a folder of wheels as a device would, before it is published",
        "  edge-software check wheels\n  edge-software check wheels --json | jq .findings",
        _check,
    ),
    Verb(
        "trust",
        "trust",
        "pin the root of trust for new versions of these programs (as root; bootstrap and enrol do it)",
        "  sudo edge-software trust /var/lib/edge-agent/root.json",
        _trust,
    ),
    Verb(
        "switch-back",
        "switch_back",
        "run the previous version again (as root), until the fleet assigns another one",
        "  sudo edge-software switch-back",
        _serve,
    ),
)
PROGRAM = Program(
    "edge-software",
    __version__,
    "Installs new versions of edge-gateway and edge-agent that the fleet's software keys signed.",
    "gateway.device.installer.cli",
    VERBS,
    extra="agent",
)
