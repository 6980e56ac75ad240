"""Verbs of operators that call a controller: options and examples."""

from __future__ import annotations

import argparse

from fleet.cli.drafts_parser import DRAFT_VERBS
from fleet.cli.options import (
    VerbAction,
    actions,
    beside_option,
    device_argument,
    limit_option,
    query_option,
    tags_option,
)
from fleet.cli.records_parser import RECORD_VERBS
from fleet.cli.rollouts_parser import ROLLOUT_VERBS
from gateway.common.terminal.numbers import number, positive, span
from gateway.common.terminal.program import Verb, named

ROLES = ("viewer", "operator", "publisher", "admin")
STATES = ("pre-registered", "enrolled", "suspended", "revoked")
PARTS = ("doctor", "log", "status", "vitals")


def _devices_list(parser: argparse.ArgumentParser) -> None:
    words = f"only devices in this state: {', '.join(STATES)}"
    parser.add_argument("--state", choices=STATES, metavar="STATE", help=words)
    for name, what in (("profile", "device profile"), ("site", "site"), ("serial", "serial number")):
        parser.add_argument(f"--{name}", type=named, metavar=name.upper(), help=f"only devices with this {what}")
    tags_option(parser, "only devices with this tag")
    parser.add_argument("--target", type=named, metavar="OWNER/MODEL/VERSION", help="only devices that run it")
    query_option(parser, "only devices that match it")
    limit_option(parser)


def _devices_show(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    parser.add_argument("--inventory", action="store_true", help="also its inventory")


def _devices_label(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    tags_option(parser, "replace all its tags by this one")
    parser.add_argument("--no-tags", action="store_true", help="remove all its tags")
    _tag_changes(parser, "its site; '' for none")


def _devices_tag(parser: argparse.ArgumentParser) -> None:
    _many(parser)
    _tag_changes(parser, "the site of all of them; '' for none")
    _preview(parser)


def _preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print how many would change")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _tag_changes(parser: argparse.ArgumentParser, site: str) -> None:
    for name, what in (("add", "add this tag"), ("remove", "remove this tag")):
        parser.add_argument(
            f"--{name}", type=named, metavar="TAG", action="append", default=[], help=f"{what}; repeatable"
        )
    parser.add_argument("--site", metavar="SITE", help=site)


def _devices_register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("serial", metavar="SERIAL", type=named, help="as the device reports it when it enrols")
    parser.add_argument("--id", type=named, metavar="ID", help="its id (default: the serial)")
    tags_option(parser, "a tag that the device gets")
    parser.add_argument("--site", type=named, metavar="SITE", help="its site")


def _devices_withdraw(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    parser.add_argument("slot", metavar="SLOT", type=named, help="the slot to empty")
    _because(parser)


def _devices_remove(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    _because(parser)


def _devices_state(parser: argparse.ArgumentParser) -> None:
    _many(parser)
    _preview(parser)
    _because(parser)


def _many(parser: argparse.ArgumentParser) -> None:
    words = "ids of devices, in place of --query"
    parser.add_argument("device", metavar="DEVICE", nargs="*", type=named, help=words)
    query_option(parser, "devices that match it ('all': every device)")


def _because(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--because", type=named, metavar="WHY", help="reason, for the audit log")


def _devices_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=named, metavar="ID", help="for this device only (default: any new one)")
    tags_option(parser, "a tag that the device gets")
    parser.add_argument("--site", type=named, metavar="SITE", help="the site that the device gets")
    parser.add_argument("--hours", type=span, metavar="H", help="how long it may be used (default: as configured)")
    _out(parser)


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=named, metavar="FILE", help="write it there, mode 0600 (default: print it)")


def _number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=positive, help="its id, as the list shows it")


def _diagnose(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    parser.add_argument("--want", choices=PARTS, action="append", help="part to request; repeatable (default: all)")
    parser.add_argument(
        "--wait",
        type=number,
        metavar="S",
        nargs="?",
        const=300.0,
        help="wait for the answer, so many seconds at most (default 300)",
    )


def _answers(parser: argparse.ArgumentParser) -> None:
    device_argument(parser)
    parser.add_argument("--request", type=positive, metavar="N", help="show this answer (default: list all)")


def _tokens_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=named, help="name of its holder, as the audit log shows it")
    parser.add_argument("--role", choices=ROLES, required=True, help="role, which says what it may do")
    tags_option(parser, "for devices with this tag only")
    parser.add_argument("--days", type=span, metavar="D", help="how long it is valid (default 90)")
    _out(parser)
    beside_option(parser)


def _tokens_revoke(parser: argparse.ArgumentParser) -> None:
    _number(parser)
    parser.add_argument("--last", action="store_true", help="also the last admin token for all devices")


DEVICES = Verb(
    "devices",
    "devices",
    "list, label, tag, register, suspend, revoke and remove devices; create enrolment tokens; request diagnostics",
    "  edge-fleet devices list --tag pilot --site berlin\n"
    "  edge-fleet devices show camera-7\n"
    "  edge-fleet devices token --tag pilot --out camera-7.token\n"
    "  edge-fleet devices diagnose camera-7 --wait",
    actions(
        VerbAction(
            "list",
            "devices by id, with what they run",
            "  edge-fleet devices list --state enrolled --tag pilot\n"
            "  edge-fleet devices list --target acme/meter-reader/2 --json\n"
            "  edge-fleet devices list --query 'site = berlin and version.meter-reader < 2'",
            _devices_list,
        ),
        VerbAction(
            "show",
            "one device: what it runs and is to run, its health, its certificate",
            "  edge-fleet devices show camera-7\n  edge-fleet devices show camera-7 --inventory --json",
            _devices_show,
        ),
        VerbAction(
            "label",
            "change a device's tags and site",
            "  edge-fleet devices label camera-7 --tag pilot --tag lobby --site berlin\n"
            "  edge-fleet devices label camera-7 --add canary --remove pilot",
            _devices_label,
        ),
        VerbAction(
            "tag",
            "change tags and site of many devices: all of them, or none",
            "  edge-fleet devices tag --query 'profile=generic-x86' --add pilot --dry-run\n"
            "  edge-fleet devices tag --query 'tag=old' --remove old --site bonn\n"
            "  edge-fleet devices tag camera-7 camera-8 --add lobby --yes",
            _devices_tag,
        ),
        VerbAction(
            "register",
            "register a device by its serial: it enrols without a token",
            "  edge-fleet devices register 10000000a1b2c3d4 --id camera-8 --tag pilot",
            _devices_register,
        ),
        VerbAction(
            "withdraw",
            "remove a model from a device: the slot is no longer assigned",
            "  edge-fleet devices withdraw camera-7 meter-reader --because 'no meter there'",
            _devices_withdraw,
        ),
        VerbAction(
            "suspend",
            "refuse devices until they are resumed; they continue with what they run",
            "  edge-fleet devices suspend --query 'site = berlin' --because 'odd reports'",
            _devices_state,
        ),
        VerbAction(
            "resume",
            "accept suspended devices again, without a visit",
            "  edge-fleet devices resume camera-7",
            _devices_state,
        ),
        VerbAction(
            "revoke",
            "refuse devices and their certificates for good",
            "  edge-fleet devices revoke camera-7 --because stolen",
            _devices_state,
        ),
        VerbAction(
            "readmit",
            "allow a revoked device to enrol again",
            "  edge-fleet devices readmit camera-7",
            device_argument,
        ),
        VerbAction(
            "remove",
            "remove a device that is revoked, or never enrolled",
            "  edge-fleet devices remove camera-7 --because scrapped",
            _devices_remove,
        ),
        VerbAction(
            "token",
            "create an enrolment token: it enrols one device, once",
            "  edge-fleet devices token --tag pilot --site berlin\n"
            "  edge-fleet devices token --device camera-7 --hours 2 --out camera-7.token",
            _devices_token,
        ),
        VerbAction("tokens", "enrolment tokens, used and unused", "  edge-fleet devices tokens", limit_option),
        VerbAction(
            "revoke-token",
            "revoke an unused enrolment token",
            "  edge-fleet devices revoke-token 7",
            _number,
        ),
        VerbAction(
            "diagnose",
            "request diagnostics from a device; it answers after its next poll",
            "  edge-fleet devices diagnose camera-7 --want log --want doctor --wait 120",
            _diagnose,
        ),
        VerbAction(
            "answers",
            "requests for diagnostics to a device, and its answers",
            "  edge-fleet devices answers camera-7\n  edge-fleet devices answers camera-7 --request 3",
            _answers,
        ),
    ),
)

TOKENS = Verb(
    "tokens",
    "tokens",
    "create, list and revoke API tokens of operators and programs",
    "  edge-fleet tokens create ann --role admin --dir . --out ann.token  # the first\n"
    "  edge-fleet tokens create ben --role operator --tag pilot --days 30\n"
    "  edge-fleet tokens list\n"
    "  edge-fleet tokens revoke 3",
    actions(
        VerbAction(
            "create",
            "create a token; its secret is shown once",
            "  edge-fleet tokens create ann --role admin --dir . --out ann.token\n"
            "  edge-fleet tokens create grafana --role viewer --days 365",
            _tokens_create,
        ),
        VerbAction("list", "all tokens, without their secrets", "  edge-fleet tokens list", limit_option),
        VerbAction("revoke", "revoke a token", "  edge-fleet tokens revoke 3", _tokens_revoke),
    ),
)

OPERATOR_VERBS = (*DRAFT_VERBS, DEVICES, *ROLLOUT_VERBS, TOKENS, *RECORD_VERBS)
