"""Verbs of `edge-agent`: options and examples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway import __version__
from gateway.common.terminal.program import Program, Verb, json_option, named


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb. Return its exit code."""
    return PROGRAM.main(arguments)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=named,
        metavar="FILE",
        help="TOML configuration (default: /etc/edge-gateway/edge-agent.toml if it exists)",
    )
    parser.add_argument(
        "--state",
        type=named,
        metavar="DIR",
        help="the device's store (default: $STATE_DIRECTORY, else $XDG_STATE_HOME/edge-agent)",
    )


def _bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", type=named, help="folder that `edge-fleet bootstrap` wrote for this device"
    )
    _common(parser)


def _enrol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", type=named, help="the fleet's controller: https://host[:port]")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token", type=named, metavar="T", help="the one-time token (others may see it in the process list)"
    )
    token.add_argument("--token-file", type=named, metavar="FILE", help='a file that holds it; "-": standard input')
    parser.add_argument("--serial", type=named, metavar="S", help="the serial number under which the fleet expects it")
    parser.add_argument("--ca", type=named, metavar="FILE", help="CA that signs the controller's certificate (PEM)")
    _common(parser)


def _sync(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", metavar="DIR", type=named, help="a repository on a USB stick or disk")
    parser.add_argument("--retry", action="store_true", help="try releases again that failed here before")
    _common(parser)
    json_option(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    json_option(parser)


def _rollback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slot", metavar="MODEL", type=named, help="the model's name on this device")
    _common(parser)
    json_option(parser)


VERBS = (
    Verb(
        "bootstrap",
        "bootstrap",
        "make this device a member of a fleet: write its identity and its root of trust",
        "  edge-agent bootstrap /media/usb/door-1\n  edge-agent bootstrap DIR --state /var/lib/edge-agent",
        _bootstrap,
    ),
    Verb(
        "enrol",
        "enrol",
        "join a fleet over the network: a key is made here, the fleet's controller signs it",
        "  edge-agent enrol https://fleet.example --token-file token\n"
        "  edge-agent enrol https://10.0.0.5:8443 --ca ca.pem --serial 4711 --token-file -",
        _enrol,
    ),
    Verb(
        "sync",
        "sync",
        "poll once and carry out what is assigned, to its end",
        "  edge-agent sync\n  edge-agent sync --from /media/usb/repository\n  edge-agent sync --retry --json",
        _sync,
    ),
    Verb(
        "run",
        "run",
        "keep the device in step until SIGTERM; SIGHUP polls at once",
        "  edge-agent run\n  edge-agent run --config /etc/edge-gateway/edge-agent.toml",
        _common,
    ),
    Verb(
        "status",
        "status",
        "show the state of the device and its reason",
        "  edge-agent status\n  edge-agent status --json | jq .state",
        _status,
    ),
    Verb(
        "verify",
        "verify",
        "check every signature and every byte that this device has committed, without network",
        "  edge-agent verify\n  edge-agent verify --json",
        _status,
    ),
    Verb(
        "rollback",
        "rollback",
        "serve a model's previous release again, without network, until something else is assigned",
        "  edge-agent rollback meter-reader",
        _rollback,
    ),
    Verb(
        "recover",
        "recover",
        "begin a new journal if it is lost or damaged; the floors are lost with it",
        "  edge-agent recover\n  edge-agent recover --state /var/lib/edge-agent",
        _common,
    ),
)
PROGRAM = Program(
    "edge-agent",
    __version__,
    "Keeps this device's models in step with its fleet: nothing runs here that its owner\ndid not sign.",
    "gateway.device.agent.cli",
    VERBS,
    extra="agent",
)
