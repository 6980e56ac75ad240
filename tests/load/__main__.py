"""Command line of the simulated fleet: `python -m tests.load`."""

from __future__ import annotations

import argparse
import sys

from gateway import __version__
from gateway.common.terminal.numbers import number, positive
from gateway.common.terminal.program import Program, Verb, json_option, named

SHARES = {
    "lying": "report that they committed, and run another release",
    "replaying": "send old telemetry again, and poll with an old nonce",
    "flooding": "send thousands of rows with every poll",
    "failing": "roll back, with evidence",
    "silent": "fall silent once a release is offered to them",
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    parser.add_argument("--devices", type=positive, metavar="N", required=True, help="how many")
    parser.add_argument(
        "--url", type=named, metavar="URL", nargs="+", required=True, help="the controller, or each of its replicas"
    )
    parser.add_argument("--ca", type=named, metavar="FILE", help="CA of its certificate (PEM): authority/ca.pem")
    letting_in = parser.add_mutually_exclusive_group()
    letting_in.add_argument(
        "--tokens", type=named, metavar="FILE", help="enrolment tokens, one per line (default: serials are registered)"
    )
    letting_in.add_argument(
        "--operator", type=named, metavar="FILE", help="an operator's API token, to create enrolment tokens with"
    )
    parser.add_argument("--keep", type=named, metavar="FILE", help="store the devices there, for a later run")
    parser.add_argument(
        "--reported", type=named, metavar="FILE", help="write there how many rows each sent and had acknowledged"
    )
    parser.add_argument("--seconds", type=number, metavar="S", help="end after that (default: with Ctrl-C)")
    parser.add_argument("--until-committed", action="store_true", help="end when all devices committed that can")
    _course(parser)
    misbehaving = parser.add_argument_group("devices that misbehave, in percent")
    for name, what in SHARES.items():
        misbehaving.add_argument(f"--{name}", type=number, metavar="P", default=0.0, help=what)
    watched = parser.add_argument_group("what is measured on this machine")
    watched.add_argument(
        "--pid", type=positive, metavar="PID", nargs="+", default=[], help="processes of the controller"
    )
    watched.add_argument("--database", type=named, metavar="FILE", help="its SQLite file")
    json_option(parser)


def _course(parser: argparse.ArgumentParser) -> None:
    course = parser.add_argument_group("how devices behave")
    course.add_argument(
        "--seed", type=int, metavar="N", default=0, help="seed for misbehaviour and hardware of devices (default 0)"
    )
    course.add_argument(
        "--prefix", type=named, metavar="NAME", default="sim", help="names are NAME-000001 and so on (default sim)"
    )
    course.add_argument(
        "--poll", type=number, metavar="S", help="seconds between polls (default: as the controller says)"
    )
    course.add_argument(
        "--download", type=number, metavar="S", default=0.0, help="seconds that a download takes (default 0)"
    )
    course.add_argument("--probation", type=number, metavar="S", default=0.0, help="seconds of probation (default 0)")
    course.add_argument(
        "--at-once", type=positive, metavar="N", default=64, help="devices that communicate at one time (default 64)"
    )
    course.add_argument("--keep-alive", action="store_true", help="keep connections open between polls")
    course.add_argument("--resume", action="store_true", help="resume TLS sessions")
    course.add_argument(
        "--refresh", action="store_true", help="refresh root and timestamp with each poll, as agents do"
    )
    course.add_argument("--quiet", action="store_true", help="send only what changed: no vitals, no statistics")


RUN = Verb(
    "run",
    "run",
    "simulate thousands of devices against a controller: real HTTP, TLS and signatures, no models",
    "  python -m tests.load run --devices 200 --url https://localhost:8443 \\\n"
    "      --ca authority/ca.pem --operator ann.token\n"
    "  python -m tests.load run --devices 10000 --url https://a:8443 https://b:8443 \\\n"
    "      --tokens tokens.txt --keep fleet.jsonl --until-committed\n"
    "  python -m tests.load run --devices 1000 --url https://localhost:8443 \\\n"
    "      --lying 1 --failing 5 --seconds 600 --json",
    options,
)

PROGRAM = Program(
    "python -m tests.load",
    __version__,
    "Simulates thousands of devices in one process against a controller, and measures the load.",
    "tests.load",
    (RUN,),
    extra="fleet",
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
