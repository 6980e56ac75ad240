"""The verbs `drafts` and `uploads`: options and examples."""

from __future__ import annotations

import argparse

from fleet.cli.options import VerbAction, actions, secrets_option
from gateway.common.terminal.program import Verb, named


def _role(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", metavar="ROLE", type=named, help="models-OWNER, software, policy, targets, …")


def _download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=named, metavar="FILE", help="file to write (default: ROLE.json here)")
    _role(parser)


def _upload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="+", type=named, help="drafts, signed or not")
    parser.add_argument("--replace", action="store_true", help="replace another draft of the role that waits")


def _sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", metavar="ROLE", nargs="+", type=named, help="models-OWNER, software, targets, …")
    parser.add_argument(
        "--key", type=named, metavar="KEY", action="append", required=True, help="NAME.pem, or a token's NAME.pub"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    secrets_option(parser)


def _delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("digest", metavar="DIGEST", nargs="+", type=named, help="SHA-256 of a file, as the list has it")
    parser.add_argument("--by", type=named, metavar="TOKEN", help="the token that sent it (default: yours); for admins")


DRAFTS = Verb(
    "drafts",
    "drafts",
    "documents that wait for signatures at the controller: show, sign, upload, withdraw them; keys stay here",
    "  edge-fleet drafts list\n"
    "  edge-fleet drafts sign models-acme --key acme.pem   # shows it first, and asks\n"
    "  edge-fleet drafts download root --out usb/root.json",
    actions(
        VerbAction("list", "drafts that wait, and for what", "  edge-fleet drafts list"),
        VerbAction(
            "show",
            "what would be signed in words, who has signed, which devices are affected",
            "  edge-fleet drafts show models-acme",
            _role,
        ),
        VerbAction(
            "download",
            "write a draft as the file that edge-fleet sign takes",
            "  edge-fleet drafts download root --out root.json",
            _download,
        ),
        VerbAction(
            "upload",
            "send drafts, or the signatures in copies that were signed elsewhere",
            "  edge-fleet drafts upload root.json\n  edge-fleet drafts upload --replace models-acme.json",
            _upload,
        ),
        VerbAction(
            "sign",
            "show drafts in words, sign them here, send the signatures; the key stays here",
            "  edge-fleet drafts sign models-acme --key acme.pem\n"
            "  edge-fleet drafts sign root targets --key alice.pem --yes",
            _sign,
        ),
        VerbAction("delete", "withdraw a draft", "  edge-fleet drafts delete models-acme", _role),
    ),
)
UPLOADS = Verb(
    "uploads",
    "uploads",
    "files of releases at the controller that are not published: list them, delete them",
    "  edge-fleet uploads list\n"
    "  edge-fleet uploads delete DIGEST             # an upload of your own token\n"
    "  edge-fleet uploads delete DIGEST --by ci     # of another one, as an admin",
    actions(
        VerbAction("list", "uploads and complete files, by token", "  edge-fleet uploads list"),
        VerbAction("delete", "remove them, unless a draft names them", "  edge-fleet uploads delete DIGEST", _delete),
    ),
)
DRAFT_VERBS = (DRAFTS, UPLOADS)
