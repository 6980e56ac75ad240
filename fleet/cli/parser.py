"""Verbs of `edge-fleet`: options and examples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fleet.cli.operator_parser import OPERATOR_VERBS
from fleet.cli.options import drafting_options, publisher_options, secrets_option
from fleet.cli.releases_parser import RELEASE_VERBS
from gateway import __version__
from gateway.common.terminal.numbers import positive
from gateway.common.terminal.program import Program, Verb, json_option, named


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one verb. Return its exit code."""
    return PROGRAM.main(arguments)


def _own_keys(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--key", type=named, metavar="KEY", action="append", help=f"{what}; repeatable (default: those in DIR/keys)"
    )
    secrets_option(parser)


def _quorum(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", type=named, metavar="PUB", nargs="+", required=True, help="public keys: .pub files")
    parser.add_argument(
        "--threshold", type=positive, metavar="N", help="how many must sign (default: as before, else 2)"
    )


def _keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("new", "show"), help="new: make a key NAME; show: what .pub files hold")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="the new key's name, or .pub files (default: all here)"
    )
    parser.add_argument("--out", type=named, metavar="DIR", default=".", help="folder of keys (default: here)")
    parser.add_argument("--hsm", type=named, metavar="URI", help="a key that a PKCS#11 token holds: hsm:2?label=TOKEN")
    parser.add_argument(
        "--no-passphrase", action="store_true", help="do not encrypt (mode 0600 is all that protects it)"
    )
    secrets_option(parser)
    json_option(parser)


def _repo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("init",), help="init: draft the first root and targets")
    parser.add_argument("--root", type=named, metavar="PUB", nargs="+", required=True, help="keys of root, offline")
    parser.add_argument(
        "--root-threshold", type=positive, metavar="N", default=2, help="how many of them sign (default 2)"
    )
    parser.add_argument(
        "--targets",
        type=named,
        metavar="PUB",
        nargs="+",
        required=True,
        help="keys of targets, profiles, policy; offline",
    )
    parser.add_argument(
        "--targets-threshold", type=positive, metavar="N", help="how many of them sign (default 2, of one key 1)"
    )
    parser.add_argument("--online", type=named, metavar="PUB", nargs="+", required=True, help="snapshot and timestamp")
    parser.add_argument(
        "--director",
        type=named,
        metavar="PUB",
        nargs="+",
        help="keys that sign assignments (default: those of --online)",
    )
    publisher_options(parser)


def _delegate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("owner", metavar="OWNER", nargs="?", help="the owner's name; the role is models-OWNER")
    parser.add_argument("--software", action="store_true", help="the role that signs new versions of devices' programs")
    parser.add_argument("--settings", action="store_true", help="the role that signs settings for devices")
    _quorum(parser)
    drafting_options(parser)


def _rotate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", metavar="ROLE", help="root, targets, snapshot, timestamp, director, models-OWNER, …")
    _quorum(parser)
    drafting_options(parser)


def _renew(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "role", metavar="ROLE", nargs="+", help="root, targets, models-OWNER, software, settings, profiles, …"
    )
    drafting_options(parser)


def _sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("draft", type=named, nargs="+", metavar="DRAFT", help="files from the publisher's drafts")
    parser.add_argument(
        "--key", type=named, metavar="KEY", action="append", required=True, help="NAME.pem, or a token's NAME.pub"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    secrets_option(parser)
    json_option(parser)


def _publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("draft", type=named, nargs="*", metavar="DRAFT", help="drafts that were signed elsewhere")
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="also upload blobs that were published before to the bucket of [blobs.s3]",
    )
    _own_keys(parser, "key of snapshot and timestamp")
    drafting_options(parser)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a repository as published (default: public)")
    publisher_options(parser)


def _assign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="the device's id")
    parser.add_argument(
        "slots", nargs="*", metavar="SLOT=OWNER/MODEL/VERSION", help="release by slot, the model's name there"
    )
    parser.add_argument(
        "--file", type=named, metavar="PATH", action="append", default=[], help="profiles/X.toml or policy/X.json"
    )
    parser.add_argument("--renew", action="store_true", help="sign again what is assigned; DEVICE may be 'all'")
    parser.add_argument("--nothing", action="store_true", help="assign nothing: the device retires what it has")
    _own_keys(parser, "key of the director")
    publisher_options(parser)


def _bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="the device's id")
    parser.add_argument(
        "--out", type=named, metavar="DIR", required=True, help="where to write root.json and device.json"
    )
    parser.add_argument(
        "--url", type=named, metavar="URL", help="where devices find public (default: url in fleet.toml)"
    )
    publisher_options(parser)


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level that is logged on stderr (info)",
    )
    secrets_option(parser)
    publisher_options(parser)


VERBS = (
    Verb(
        "serve",
        "serve",
        "run the controller: enrol devices, sign their assignments, steer rollouts",
        "  edge-fleet serve --dir /var/lib/edge-fleet    # SQLite; see fleet.toml\n"
        "  edge-fleet serve --passphrase-file /run/secrets/online",
        _serve,
    ),
    Verb(
        "doctor",
        "doctor",
        "check the controller's database, clock, certificates, keys and blobs; 1 on findings",
        "  edge-fleet doctor --dir /var/lib/edge-fleet\n  edge-fleet doctor --json | jq .findings",
        publisher_options,
    ),
    Verb(
        "keys",
        "keys",
        "create a key, or register one that a token holds; show public keys",
        "  edge-fleet keys new alice                    # alice.pem (secret), alice.pub\n"
        "  edge-fleet keys new online --out keys --no-passphrase\n"
        "  PYKCS11LIB=/usr/lib/libykcs11.so edge-fleet keys new bob --hsm hsm:2\n"
        "  edge-fleet keys show",
        _keys,
    ),
    Verb(
        "repo",
        "repo",
        "begin a repository: draft its root (2 of 3 by default) and its targets",
        "  edge-fleet repo init --root alice.pub bob.pub carol.pub \\\n"
        "      --targets alice.pub bob.pub --online keys/online.pub \\\n"
        "      --director keys/director.pub",
        _repo,
    ),
    Verb(
        "delegate",
        "delegate",
        "let an owner sign releases, models/OWNER/*/*/*, or key holders software/*/*/* or settings/*/*/*",
        "  edge-fleet delegate acme --key acme.pub\n  edge-fleet delegate acme --key ann.pub ben.pub\n"
        "  edge-fleet delegate --software --key alice.pub bob.pub\n"
        "  edge-fleet delegate --settings --key alice.pub bob.pub",
        _delegate,
    ),
    *RELEASE_VERBS,
    Verb(
        "sign",
        "sign",
        "show drafts in words and sign them; needs only the drafts and the key",
        "  edge-fleet sign drafts/models-acme.json --key acme.pem\n"
        "  edge-fleet sign drafts/*.json --key alice.pem --key bob.pub --yes",
        _sign,
    ),
    Verb(
        "publish",
        "publish",
        "publish what is signed, with a new snapshot and timestamp; daily, or as often as the timestamp expires",
        "  edge-fleet publish\n"
        "  edge-fleet publish /media/usb/models-acme.json --key keys/online.pem \\\n"
        "      --passphrase-file /run/secrets/online\n"
        "  edge-fleet publish --remote    # by the controller of $EDGE_FLEET_URL",
        _publish,
    ),
    Verb(
        "rotate",
        "rotate",
        "replace the keys of a role; the next root is signed by the old keys and the new ones",
        "  edge-fleet rotate root --key alice.pub bob.pub dora.pub --threshold 2\n"
        "  edge-fleet rotate timestamp --key keys/online-2.pub",
        _rotate,
    ),
    Verb(
        "renew",
        "rotate",
        "draft an offline role as it is, with a new expiry",
        "  edge-fleet renew targets models-acme",
        _renew,
    ),
    Verb(
        "verify",
        "verify",
        "check a whole repository as published: signatures, thresholds, digests, expiries, files",
        "  edge-fleet verify\n  edge-fleet verify /var/www/fleet --json",
        _verify,
    ),
    Verb(
        "assign",
        "assign",
        "set what a device runs, for fleets without a controller: writes assignments/DEVICE.json",
        "  edge-fleet assign camera-7 meter-reader=acme/meter-reader/2 \\\n"
        "      --file profiles/lab.toml\n"
        "  edge-fleet assign all --renew        # daily: they expire after 24 hours",
        _assign,
    ),
    Verb(
        "bootstrap",
        "bootstrap",
        "write what edge-agent bootstrap reads: the root to trust and the addresses",
        "  edge-fleet bootstrap camera-7 --out camera-7 --url https://fleet.example.org",
        _bootstrap,
    ),
    Verb(
        "status",
        "status",
        "show roles, keys, expiries, drafts, releases and assignments",
        "  edge-fleet status\n  edge-fleet status --json | jq .drafts",
        publisher_options,
    ),
    *OPERATOR_VERBS,
)

PROGRAM = Program(
    "edge-fleet",
    __version__,
    "Publishes signed releases for devices to fetch, and steers which device runs\n"
    "what: keys and drafts that key holders sign, a repository, a controller and its\n"
    "operators' verbs.",
    "fleet.cli",
    VERBS,
    extra="fleet",
)
