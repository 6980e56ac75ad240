"""`edge-fleet sign`: sign drafts on the key holder's machine, which needs only the drafts and the key."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from securesystemslib.signer import Signer

from fleet.cli.common import asker
from fleet.disk import read_bounded, write_durably
from fleet.publisher.drafts import Draft, draft_bytes, read_draft
from fleet.publisher.keys import load_signer
from fleet.publisher.roles import Quorum
from fleet.publisher.settings import FleetSettings
from fleet.publisher.signing import signed_with
from fleet.publisher.wording import describe
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted, print_json


def command(arguments: argparse.Namespace) -> int:
    """Show each draft in words, ask, and sign with every key that may sign it. Return 1 if the holder declined one."""
    check_seen(arguments)
    limit = FleetSettings().document_limit_bytes
    drafts = {Path(name): read_draft(read_bounded(Path(name), limit), name) for name in arguments.draft}
    signers = [load_signer(Path(key), asker(arguments)) for key in arguments.key]
    drafts = _concerning(drafts, signers, as_json=arguments.json)
    done = [_sign(file, draft, signers, arguments) for file, draft in drafts.items()]
    if arguments.json:
        documents = [
            {"role": d.role, "file": str(f), "missing": d.missing} for f, d in zip(drafts, done, strict=True) if d
        ]
        print_json({"signed": documents})
    return 0 if all(done) else 1


def check_seen(arguments: argparse.Namespace) -> None:
    """Raise ConfigurationError if drafts would be signed without being shown and without --yes."""
    if arguments.json and not arguments.yes:
        raise ConfigurationError("--json does not show drafts in words; add --yes once you have seen what is signed")


def _concerning(drafts: Mapping[Path, Draft], signers: Sequence[Signer], *, as_json: bool) -> dict[Path, Draft]:
    """Return the drafts that these keys may sign. Raise ConfigurationError if there are none."""
    ids = {signer.public_key.keyid for signer in signers}
    concerning = {file: draft for file, draft in drafts.items() if not ids.isdisjoint(draft.keys)}
    others = {file: draft for file, draft in drafts.items() if file not in concerning}
    if not concerning:
        roles = ", ".join(sorted(draft.role for draft in others.values()))
        raise ConfigurationError(f"none of these keys may sign {roles}", file=", ".join(map(str, others)))
    if not as_json:
        for file, draft in others.items():
            print(f"skipped {file}: none of these keys may sign {draft.role}")
    return concerning


def _sign(file: Path, draft: Draft, signers: list[Signer], arguments: argparse.Namespace) -> Draft | None:
    """Return the signed draft, or None if the holder declined."""
    signed = sign_draft(draft, signers, arguments, str(file))
    if signed is None:
        return None
    if signed is not draft:
        write_durably(file, draft_bytes(signed))
    if not arguments.json:
        rest = (
            f"{counted(signed.missing, 'more signature')} needed" if signed.missing else "complete: edge-fleet publish"
        )
        print(f"{'signed' if signed is not draft else 'these keys had signed'} {file}: {rest}")
    return signed


def sign_draft(draft: Draft, signers: Sequence[Signer], arguments: argparse.Namespace, what: str) -> Draft | None:
    """Show the draft in words, ask, and return it with signatures of these keys; None if the holder declines."""
    for signer in signers:
        key = signer.public_key
        if key.keyid not in draft.keys or Quorum((key,), 1).signed_by(draft.metadata):
            continue
        if not arguments.json:
            print("\n".join(describe(draft, key)))
        if not arguments.yes and not _agreed(what):
            return None
        draft = signed_with(draft, signer)
    return draft


def _agreed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask on; --yes signs without asking", file=what)
    return input("sign this? [y/N] ").strip().lower() in {"y", "yes"}
