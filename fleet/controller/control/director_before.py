"""Takeover of assignments that were made by hand before the device had a controller.

An assignment that began at version 1 again would be refused as older than what the device has. An empty one would
retire all that the device runs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from tuf.api.metadata import Metadata, Targets

from fleet import events
from fleet.controller.audit import Deed
from fleet.controller.control.director_published import PublishedMetadata
from fleet.controller.database import audit, desired
from fleet.controller.database.desired import Desired
from fleet.controller.database.engine import Connection
from fleet.controller.database.settings import DatabaseSettings
from fleet.publisher.repository import assignment_file, read_metadata
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import Assignment
from gateway.common.domain.errors import ConfigurationError
from gateway.common.trust.assignment_form import read_assignment
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.settings import DEFAULTS

ACTOR = "the director"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ByHand:
    """Assignment that `edge-fleet assign` signed, in the published repository."""

    assignment: Assignment

    def adopt(self, connection: Connection, now: datetime, settings: DatabaseSettings) -> int:
        """Make this the desired state of the device. Return the next version.

        A slot for which a rollout has already set the desired state keeps that; this becomes what the slot held before
        it. Call it within `write`.
        """
        device, slots = self.assignment.device, self.assignment.slots
        desired.lock(connection, [device])
        had = [Desired(device, slot, one.path, one.sha256, one.size_bytes, "", now) for slot, one in slots.items()]
        taken = {one.slot for one in desired.of_device(connection, device).slots}
        desired.put(connection, (one for one in had if one.slot not in taken), settings)
        for slot in self.assignment.removed - taken:
            desired.remove(connection, [device], slot)
        desired.recall(connection, had)
        return self.assignment.version + 1

    def note(self, connection: Connection, now: datetime) -> None:
        """Append the takeover to the audit log. Call it last in the transaction."""
        slots = {slot: target.path for slot, target in self.assignment.slots.items()}
        details = {"version": self.assignment.version, "slots": slots}
        audit.append(connection, Deed(ACTOR, "assignments.adopt", self.assignment.device, details), now)


def by_hand(workspace: Workspace, publication: PublishedMetadata, device: str) -> ByHand | None:
    """Return the assignment made by hand that the device would believe, or None."""
    file = assignment_file(device)
    if not (workspace.public / file).exists():
        return None
    try:
        metadata: Metadata[Targets] = read_metadata(
            workspace.public, file, Targets, workspace.settings.document_limit_bytes
        )
        found = read_assignment(metadata.signed, file, DEFAULTS)
    except (ConfigurationError, Distrust, OSError) as error:
        _log.warning(events.ASSIGNMENT_NOT_ADOPTED, file, error)
        return None
    if publication.director.missing(metadata) or found.device != device:
        _log.warning(events.ASSIGNMENT_NOT_ADOPTED, file, "the director's keys did not sign it for this device")
        return None
    return ByHand(found)
