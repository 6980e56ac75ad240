"""Draft: a document that waits for signatures, with all that the key holders need to review it. Pure.

It is one JSON file. Only `metadata` is signed. The previous version, the quorums and the documents of new targets are
for display; `check_documents` checks the latter against the signed digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Key, Metadata, Root, Targets

from fleet.publisher.roles import ROOT, TARGETS, Quorum, check_targets, role_paths
from gateway.common.domain.errors import ConfigurationError

SCHEMA = 1
Document = Metadata[Root] | Metadata[Targets]


@dataclass(frozen=True, slots=True)
class Draft:
    """A document to sign. `documents`: content of new targets by path; `previous`: the published version or None."""

    role: str
    metadata: Document
    quorums: tuple[Quorum, ...]
    previous: Document | None = None
    documents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """The number of signatures that are missing before it can be published, summed over the quorums."""
        return sum(quorum.missing(self.metadata) for quorum in self.quorums if not quorum.optional)

    @property
    def document(self) -> str:
        """Return the SHA-256 of what signatures cover, as hex."""
        return hashlib.sha256(self.metadata.signed_bytes).hexdigest()

    @property
    def keys(self) -> Mapping[str, Key]:
        """All keys that may sign, by id."""
        return {key.keyid: key for quorum in self.quorums for key in quorum.keys}


def draft_bytes(draft: Draft) -> bytes:
    """Return the draft as the content of a file."""
    return (json.dumps(draft_document(draft), indent=1, sort_keys=True) + "\n").encode()


def draft_document(draft: Draft) -> dict[str, Any]:
    """Return the draft as a JSON object."""
    return {
        "schema": SCHEMA,
        "role": draft.role,
        "metadata": draft.metadata.to_dict(),
        "quorums": [
            {
                "keys": [{"keyid": key.keyid, **key.to_dict()} for key in quorum.keys],
                "threshold": quorum.threshold,
                "purpose": quorum.purpose,
                "optional": quorum.optional,
            }
            for quorum in draft.quorums
        ],
        "previous": draft.previous.to_dict() if draft.previous else None,
        "documents": {path: content.decode() for path, content in draft.documents.items()},
    }


def read_draft(content: bytes, file: str) -> Draft:
    """Read the result of `draft_bytes`. Raise ConfigurationError that names `file`."""
    try:
        document = json.loads(content)
        draft = Draft(
            role=str(document["role"]),
            metadata=Metadata.from_dict(document["metadata"]),
            quorums=tuple(_quorum(entry) for entry in document["quorums"]),
            previous=Metadata.from_dict(document["previous"]) if document["previous"] else None,
            documents={path: text.encode() for path, text in document["documents"].items()},
        )
        _check_kind(draft, document["schema"])
        draft.metadata.signed_bytes  # noqa: B018  check that it can be signed: canonical JSON has no lone surrogates
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        RepositoryError,
        ConfigurationError,
    ) as error:
        problem = f"is no draft that can be read ({type(error).__name__}: {error!s:.200}); ask for it again"
        raise ConfigurationError(problem, file=file) from None
    check_documents(draft, file)
    return draft


def merged(draft: Draft, returned: Draft) -> Draft:
    """Return `draft` with the valid signatures of a returned copy. Raise ConfigurationError if it is another draft."""
    if draft.metadata.signed_bytes != returned.metadata.signed_bytes:
        raise ConfigurationError(
            f"the signed {returned.role} is not the draft of {draft.role} that waits here; sign the current one"
        )
    signatures = {
        key.keyid: copy.metadata.signatures[key.keyid]
        for copy in (draft, returned)
        for key in draft.keys.values()
        if Quorum((key,), 1).signed_by(copy.metadata)
    }
    return replace(draft, metadata=cast("Document", Metadata(draft.metadata.signed, signatures)))


def check_documents(draft: Draft, file: str = "") -> None:
    """Check that each displayed document has the digest to be signed. Raise ConfigurationError."""
    targets = draft.metadata.signed.targets if isinstance(draft.metadata.signed, Targets) else {}
    for path, content in draft.documents.items():
        target = targets.get(path)
        if target is None or target.hashes.get("sha256") != hashlib.sha256(content).hexdigest():
            raise ConfigurationError(f"the draft shows another {path} than it would sign; do not sign it", file=file)


def _check_kind(draft: Draft, schema: object) -> None:
    if schema != SCHEMA:
        raise ValueError(f"schema {schema!r:.40} is not known, {SCHEMA} is")
    if draft.role not in {ROOT, TARGETS}:
        role_paths(draft.role)
    kind = Root if draft.role == ROOT else Targets
    if not all(isinstance(m.signed, kind) for m in (draft.metadata, draft.previous) if m):
        raise ValueError(f"its role is {draft.role}, its document of another kind")
    if isinstance(draft.metadata.signed, Targets):
        check_targets(draft.metadata.signed)


def _quorum(document: Mapping[str, Any]) -> Quorum:
    keys = tuple(Key.from_dict(key.pop("keyid"), key) for key in document["keys"])
    return Quorum(keys, int(document["threshold"]), str(document["purpose"]), bool(document["optional"]))
