"""Publisher elsewhere: makes releases from a copy of the published metadata, and sends drafts over the API."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from securesystemslib.signer import CryptoSigner

from fleet.publisher import signing
from fleet.publisher.drafts import Draft, draft_bytes, read_draft
from fleet.publisher.releases import Terms, model_files, plan_release, read_model
from tests.simulators.controller import RunningController
from tests.simulators.fleet_repository import model_folder

OWNER_ROLE = "models-acme"


@dataclass
class MadeRelease:
    """Draft of a release that was made elsewhere, with its files by digest."""

    draft: Draft
    files: dict[str, bytes]


def release(
    running: RunningController, folder: Path, model: str, version: str, owner: str = "acme", **terms: Any
) -> MadeRelease:
    """Make a release as `edge-fleet model add` does elsewhere; nothing is staged or saved here."""
    place = folder / "elsewhere" / owner / model / version
    model_folder(place, model, version, {"only": f"{model} {version} of {owner}".encode()})
    read = read_model(place, running.control.workspace.settings)
    planned = plan_release(running.control.workspace.drafting(running.clock()), read, owner, Terms(**terms))
    files = {file.sha256: (place / file.path).read_bytes() for file in model_files(planned.release)}
    return MadeRelease(planned.draft, files)


def upload(client: httpx.Client, content: bytes) -> str:
    """Upload a whole file. Return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    begun = client.post("/v1/blobs", json={"digest": digest, "size_bytes": len(content)})
    assert begun.status_code == 201, begun.text
    if not begun.json()["complete"]:
        sent = client.patch(f"/v1/blobs/{digest}", params={"offset": begun.json()["received_bytes"]}, content=content)
        assert sent.status_code == 200, sent.text
        assert sent.json()["complete"]
    return digest


def put(client: httpx.Client, draft: Draft, **headers: str) -> httpx.Response:
    """Upload a draft."""
    return client.put(f"/v1/drafts/{draft.role}", content=draft_bytes(draft), headers=headers)


def sent(client: httpx.Client, made: MadeRelease) -> httpx.Response:
    """Upload a release's files, then its draft."""
    for content in made.files.values():
        upload(client, content)
    return put(client, made.draft)


def signatures(draft: Draft, *signers: CryptoSigner) -> dict[str, Any]:
    """Return the body with which these keys sign a draft."""
    signed = draft
    for signer in signers:
        signed = signing.signed_with(signed, signer)
    listed = [{"keyid": one.keyid, "sig": one.signature} for one in signed.metadata.signatures.values()]
    return {
        "document": draft.document,
        "signatures": [one for one in listed if one["keyid"] not in draft.metadata.signatures],
    }


def downloaded(client: httpx.Client, role: str) -> tuple[Draft, str]:
    """Return a draft that waits, and its ETag."""
    answer = client.get(f"/v1/drafts/{role}/file")
    assert answer.is_success, answer.text
    return read_draft(answer.content, "the answer"), answer.headers["etag"]
