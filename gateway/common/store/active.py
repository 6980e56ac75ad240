"""File `active.json`: the releases that this device has committed. The daemon serves them from the disk alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.common.domain.activation import Activation, Installed, activation_document, read_activation
from gateway.common.domain.assignment import Target
from gateway.common.files import durable
from gateway.common.store.errors import DamagedError, StoreAbsentError, StoreError, store_errors
from gateway.common.store.plain import check_digest
from gateway.common.store.roots import read_bounded

ACTIVE_FILE = "active.json"
SCHEMA = 1
ACTIVE_LIMIT_BYTES = 4_194_304
"""Largest active.json that is read: it is enough for more than a thousand slots."""
SIZE_LIMIT_BYTES = 2**53
"""Largest size: not every JSON reader is exact for greater integers (RFC 8259, 6)."""


@dataclass(frozen=True, slots=True)
class Active:
    """Committed releases by slot; `previous`: those before them, for a rollback; `files`: profiles and policies."""

    slots: Mapping[str, Activation] = field(default_factory=dict)
    previous: Mapping[str, Activation] = field(default_factory=dict)
    files: tuple[Installed, ...] = ()

    @property
    def releases(self) -> frozenset[str]:
        """Return the digests of all releases that must stay on the disk."""
        return frozenset(activation.release for part in (self.slots, self.previous) for activation in part.values())


def committed(active: Active, activation: Activation) -> Active:
    """Return `active` with `activation` in its slot; the release before it becomes the previous one. Idempotent."""
    slot = activation.slot
    before, previous = active.slots.get(slot), dict(active.previous)
    if before is not None and before.release != activation.release:
        previous[slot] = before
    return replace(active, slots={**active.slots, slot: activation}, previous=previous)


def retired(active: Active, slot: str) -> Active:
    """Return `active` without `slot` and its previous release. Idempotent."""
    return replace(active, slots=_without(active.slots, slot), previous=_without(active.previous, slot))


def without_stopped(active: Active, is_stopped: Callable[[Activation], bool]) -> Active:
    """Return `active` without stopped releases: their slots are retired, and no rollback leads to one."""
    for slot in [slot for slot, one in active.slots.items() if is_stopped(one)]:
        active = retired(active, slot)
    return replace(active, previous={slot: one for slot, one in active.previous.items() if not is_stopped(one)})


def rolled_back(active: Active, slot: str) -> Active:
    """Return `active` with the previous release in `slot`, and none before it. Raises AbsentError if there is none."""
    if slot not in active.previous:
        raise StoreAbsentError(f"the slot {slot} has no previous release to go back to; assign one instead")
    return replace(
        active, slots={**active.slots, slot: active.previous[slot]}, previous=_without(active.previous, slot)
    )


def read_active(file: Path) -> Active:
    """Read active.json; without a file nothing is committed. Raises DamagedError, StoreError."""
    try:
        content = read_bounded(file, ACTIVE_LIMIT_BYTES)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Active()
        raise
    try:
        return parse_active(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"cannot be read: {type(error).__name__} {error!s:.300}; move it away, the agent then installs again"
        raise DamagedError(what, file=file) from None


def write_active(file: Path, active: Active) -> None:
    """Replace the file atomically and durably. Raises SpaceError, StoreError; then the old file is unchanged."""
    with store_errors(file):
        durable.write_file(file, active_bytes(active))


def active_bytes(active: Active) -> bytes:
    """Return the file's content: JSON, UTF-8, sorted keys, with a newline at the end."""
    document = {
        "schema": SCHEMA,
        "slots": {slot: activation_document(activation) for slot, activation in active.slots.items()},
        "previous": {slot: activation_document(activation) for slot, activation in active.previous.items()},
        "files": [
            {
                "path": file.target.path,
                "sha256": file.target.sha256,
                "bytes": file.target.size_bytes,
                "evidence": list(file.evidence),
                "root": file.root,
            }
            for file in active.files
        ],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def parse_active(content: bytes) -> Active:
    """Read the output of `active_bytes`. Raises ValueError, TypeError, KeyError, AttributeError or RecursionError."""
    if len(content) > ACTIVE_LIMIT_BYTES:
        raise ValueError(f"it has more than {ACTIVE_LIMIT_BYTES} bytes")
    document = json.loads(content)
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r:.40} is not known, {SCHEMA} is")
    return Active(
        slots=_slots(document["slots"]),
        previous=_slots(document["previous"]),
        files=tuple(_file(entry) for entry in document["files"]),
    )


def _slots(documents: Mapping[str, Any]) -> dict[str, Activation]:
    slots = {slot: read_activation(document) for slot, document in documents.items()}
    for slot, activation in slots.items():
        if slot != activation.slot:
            raise ValueError(f"{slot!r:.80} is no slot, or not that of {activation.slot!r:.80}")
    return slots


def _file(document: Mapping[str, Any]) -> Installed:
    path, size, root = document["path"], document["bytes"], document["root"]
    if not isinstance(path, str) or type(size) is not int or not 0 <= size <= SIZE_LIMIT_BYTES:
        raise ValueError(f"{document!r:.200} is no file of the repository")
    if type(root) is not int or root < 1:
        raise ValueError(f"root must be a version, not {root!r:.80}")
    evidence = tuple(check_digest(digest) for digest in document["evidence"])
    return Installed(Target(path, size, check_digest(document["sha256"])), evidence, root)


def _without(slots: Mapping[str, Activation], slot: str) -> dict[str, Activation]:
    return {name: activation for name, activation in slots.items() if name != slot}
