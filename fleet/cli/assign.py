"""`edge-fleet assign`: what a device runs, in fleets with a file server and without a controller."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuf.api.metadata import Metadata, Targets

from fleet.cli.common import now, own_signers, writing
from fleet.disk import write_durably
from fleet.publisher.assignments import assigned, next_assignment, renewed_assignment, slots_of
from fleet.publisher.repository import Published, assignment_file, read_assignments
from fleet.publisher.roles import DIRECTOR, add_signature, quorum
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.domain.release_paths import HOLDS, fits_slot, is_slot, parse_written
from gateway.common.terminal.tables import counted, print_json
from gateway.common.trust.assignment_form import assignment_metadata

EVERY = "all"


def command(arguments: argparse.Namespace) -> int:
    """Assign to one device, or renew what is assigned to one or all."""
    with writing(arguments) as work:
        published = work.published()
        standing = read_assignments(work.public, work.settings.document_limit_bytes)
        made = (
            _renewed(work, arguments, standing) if arguments.renew else _assigned(work, arguments, published, standing)
        )
        if published.targets is None:
            raise ConfigurationError("nothing is published here; edge-fleet publish comes first")
        wanted = quorum(published.targets.signed, DIRECTOR)
        signers = own_signers(work, arguments, {key.keyid for key in wanted.keys})
        if len(signers) < wanted.threshold:
            raise ConfigurationError(
                f"{counted(wanted.threshold, 'key')} of the director must sign, and {len(signers)} are here; "
                "name them with --key, or keep them in the folder keys"
            )
        for device, metadata in made.items():
            for signer in signers:
                add_signature(metadata, signer)
            write_durably(work.public / assignment_file(device), metadata.to_bytes())
    _say(made, as_json=arguments.json)
    return 0


def _assigned(
    work: Workspace, arguments: argparse.Namespace, published: Published, standing: Mapping[str, Metadata[Targets]]
) -> dict[str, Metadata[Targets]]:
    device = arguments.device
    if not NAME_PATTERN.fullmatch(device) or device == EVERY:
        raise ConfigurationError(f"{device!r:.150} is not a device's id; use letters, digits, '.', '_' and '-'")
    if not (arguments.slots or arguments.file or arguments.nothing):
        raise ConfigurationError(f"no release is named for {device}; to make it retire all that it has, use --nothing")
    before = standing.get(device)
    assignment = next_assignment(
        device,
        read_slots(published, arguments.slots),
        [assigned(published, path) for path in arguments.file],
        version=before.signed.version + 1 if before else 1,
        now=now(),
        settings=work.settings,
    )
    removed = sorted(_slots_before(before) - assignment.slots.keys()) if before else []
    return {device: assignment_metadata(replace(assignment, extra={"removed": removed} if removed else {}))}


def _slots_before(before: Metadata[Targets]) -> set[str]:
    """Return the slots that an assignment fills or orders to be emptied."""
    ordered = before.signed.unrecognized_fields.get("removed", [])
    return {*slots_of(before), *(slot for slot in ordered if isinstance(slot, str))}


def read_slots(published: Published, texts: Sequence[str]) -> dict[str, Target]:
    """Read slots, each written `SLOT=OWNER/MODEL/VERSION`. Raise ConfigurationError."""
    slots: dict[str, Target] = {}
    for text in texts:
        slot, _, release = text.partition("=")
        try:
            path = parse_written(release).path
        except ValueError as error:
            raise ConfigurationError(f"{text!r:.200} is not SLOT=OWNER/MODEL/VERSION: {error}") from None
        if not (is_slot(slot) and fits_slot(path, slot)):
            raise ConfigurationError(f"{text!r:.200}: {slot!r:.100} is not a slot for {path}; {HOLDS}")
        if slot in slots:
            raise ConfigurationError(f"the slot {slot} is named twice; a slot holds one release")
        slots[slot] = assigned(published, path)
    return slots


def _renewed(
    work: Workspace, arguments: argparse.Namespace, standing: Mapping[str, Metadata[Targets]]
) -> dict[str, Metadata[Targets]]:
    if arguments.slots or arguments.file or arguments.nothing:
        raise ConfigurationError("--renew signs again what is assigned; name neither slots nor files with it")
    chosen = (
        dict(standing) if arguments.device == EVERY else {k: v for k, v in standing.items() if k == arguments.device}
    )
    if not chosen:
        raise ConfigurationError(f"nothing is assigned to {arguments.device!r:.150} yet")
    return {device: renewed_assignment(metadata, now(), work.settings) for device, metadata in chosen.items()}


def _say(made: Mapping[str, Metadata[Targets]], *, as_json: bool) -> None:
    documents = [
        {
            "device": device,
            "version": metadata.signed.version,
            "expires": metadata.signed.expires.strftime(TIME_FORMAT),
            "slots": dict(slots_of(metadata)),
        }
        for device, metadata in made.items()
    ]
    if as_json:
        print_json({"assigned": documents})
        return
    for document in documents:
        print(f"{document['device']}: version {document['version']}, valid until {document['expires']}")
