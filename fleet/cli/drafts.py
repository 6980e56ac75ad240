"""`edge-fleet drafts`, and `edge-fleet publish` at a controller. Drafts and signatures are sent, keys are not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from fleet.cli.common import asker
from fleet.cli.remote import client, listed, local
from fleet.cli.sign import check_seen, sign_draft
from fleet.client.client import Client, ClientSettings, Json, path_of, record_of
from fleet.disk import read_bounded, write_durably
from fleet.publisher.drafts import Draft, draft_bytes, draft_document, read_draft
from fleet.publisher.impact import Impact
from fleet.publisher.keys import load_signer
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted, plain, print_facts, print_json

PUBLISH_TIMEOUT_S = 1_800.0
"""Files of new releases are copied before the controller answers."""


def command(arguments: argparse.Namespace) -> int:
    """Carry out one action. Return its exit code."""
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "download": _download,
        "upload": _upload,
        "sign": _sign,
        "delete": _delete,
    }
    return verbs[arguments.action](arguments)


def publish_remote(arguments: argparse.Namespace) -> int:
    """Send signatures that were made elsewhere, then let the controller publish what is ready."""
    if arguments.key or arguments.mirror:
        raise ConfigurationError("the controller signs with its own online keys and fills its bucket itself")
    asked = client(arguments, ClientSettings(read_timeout_s=PUBLISH_TIMEOUT_S))
    for name in arguments.draft:
        _send_signatures(asked, _read(name))
    done = asked.ask("POST", path_of("publication"))
    if arguments.json:
        print_json(done)
        return 0
    for sentence in _concerns(done):
        print(f"edge-fleet: {sentence}", file=sys.stderr)
    for role, version in done["published"].items():
        print(f"published {plain(role)}, version {version}")
    for role, why in done["waiting"].items():
        print(plain(f"the draft of {role} waits: {why}"))
    print(f"{counted(done['files'], 'file')} copied at {asked.url}; publish again before {local(done['expires'])}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = [*client(arguments).pages(path_of("drafts"))]
    columns = ("role", "version", "signatures missing", "expires", "waits for")
    return listed(arguments, "drafts", found, columns, _row, none="no draft waits")


def _row(one: Json) -> tuple[str, ...]:
    return one["role"], str(one["version"]), str(one["missing"]), local(one["expires"]), one["waits"] or "publication"


def _show(arguments: argparse.Namespace) -> int:
    found = client(arguments).ask("GET", path_of("drafts", arguments.role))
    if arguments.json:
        print_json(found)
        return 0
    for line in found["words"]:
        print(plain(line))
    for sentence in _concerns(found):
        print(f"  {sentence}")
    print_facts([("document", found["document"]), ("waits for", found["waits"] or "publication")])
    return 0


def _concerns(found: Json) -> list[str]:
    """Return how many devices lose what, in words."""
    return [plain(record_of(Impact, one).sentence) for one in found["concerns"]]


def _download(arguments: argparse.Namespace) -> int:
    draft = _downloaded(client(arguments), arguments.role)
    file = Path(arguments.out or f"{draft.role}.json")
    write_durably(file, draft_bytes(draft))
    if arguments.json:
        print_json({"role": draft.role, "file": str(file), "document": draft.document, "missing": draft.missing})
        return 0
    print(f"{draft.role}, version {draft.metadata.signed.version}: {file}")
    print(f"next: edge-fleet sign {file} --key KEY where the key is, then edge-fleet drafts upload {file}")
    return 0


def _upload(arguments: argparse.Namespace) -> int:
    """Send each file: a copy of the waiting draft adds its signatures, any other is a new draft."""
    asked = client(arguments)
    waiting = {entry["role"]: entry["document"] for entry in asked.pages(path_of("drafts"))}
    done = []
    for name in arguments.file:
        draft = _read(name)
        if waiting.get(draft.role) == draft.document:
            done.append(_send_signatures(asked, draft))
            continue
        state = "*" if arguments.replace and draft.role in waiting else ""
        path = path_of("drafts", draft.role)
        done.append(asked.ask("PUT", path, body=draft_document(draft), if_match=state))
    return _print_drafts(arguments, done)


def _sign(arguments: argparse.Namespace) -> int:
    """Sign drafts of the controller on this machine. Return 1 if the holder declined one: then the others wait."""
    check_seen(arguments)
    asked = client(arguments)
    drafts = [_downloaded(asked, role) for role in arguments.role]
    signers = [load_signer(Path(key), asker(arguments)) for key in arguments.key]
    keyids = {signer.public_key.keyid for signer in signers}
    for draft in drafts:
        if not keyids & draft.keys.keys():
            raise ConfigurationError(f"none of these keys may sign {draft.role}; see edge-fleet drafts show")
    done = []
    for draft in drafts:
        if not arguments.json:
            for sentence in _concerns(asked.ask("GET", path_of("drafts", draft.role))):
                print(sentence)
        signed = sign_draft(draft, signers, arguments, draft.role)
        if signed is None:
            break
        done.append(_send_signatures(asked, signed))
    _print_drafts(arguments, done)
    return 0 if len(done) == len(drafts) else 1


def _delete(arguments: argparse.Namespace) -> int:
    found = client(arguments).ask("DELETE", path_of("drafts", arguments.role))
    if arguments.json:
        print_json(found)
    else:
        print(f"withdrawn: the draft of {plain(found['role'])}, version {found['version']}")
    return 0


def _print_drafts(arguments: argparse.Namespace, done: list[Json]) -> int:
    if arguments.json:
        print_json({"drafts": done})
        return 0
    for one in done:
        rest = f"waits: {one['waits']}" if one["waits"] else "complete: edge-fleet publish --remote"
        print(plain(f"{one['role']}, version {one['version']}: {rest}"))
    return 0


def _read(name: str) -> Draft:
    return read_draft(read_bounded(Path(name), FleetSettings().document_limit_bytes), name)


def _downloaded(asked: Client, role: str) -> Draft:
    path = path_of("drafts", role, "file")
    return read_draft(asked.fetch(path)[0], f"{asked.url}{path}")


def _send_signatures(asked: Client, draft: Draft) -> Json:
    """Send only the signatures of a draft."""
    found = [{"keyid": one.keyid, "sig": one.signature} for one in draft.metadata.signatures.values()]
    if not found:
        raise ConfigurationError(
            f"this copy of the draft of {draft.role} has no signature, and the draft waits already; "
            "sign it with edge-fleet sign, then upload it"
        )
    body = {"document": draft.document, "signatures": found}
    return asked.ask("POST", path_of("drafts", draft.role, "signatures"), body=body)
