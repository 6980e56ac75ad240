"""Assignment of one device: the document that the director signs, as in Uptane, reduced to one file. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from tuf.api.metadata import Metadata, Targets

from fleet.publisher.repository import Published
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_form import TIME_FORMAT


def assigned(published: Published, path: str) -> Target:
    """Return a published target for an assignment. Raise ConfigurationError if it is not published."""
    found = published.target(path)
    if found is None:
        raise ConfigurationError(f"{path!r:.300} is not published; edge-fleet status lists what is")
    return Target(path, found.length, found.hashes["sha256"])


def next_assignment(
    device: str,
    slots: Mapping[str, Target],
    files: Iterable[Target],
    *,
    version: int,
    now: datetime,
    settings: FleetSettings,
    nonce: str = "",
    poll_s: float | None = None,
) -> Assignment:
    """Return an assignment issued now. Raise ConfigurationError if it has one release in two slots."""
    paths = [target.path for target in slots.values()]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigurationError(f"{path} is assigned to two slots; a release serves in one")
    expires = now + timedelta(hours=settings.assignment_expiry_h)
    return Assignment(device, version, now, expires, dict(slots), tuple(files), nonce, poll_s)


def renewed_assignment(metadata: Metadata[Targets], now: datetime, settings: FleetSettings) -> Metadata[Targets]:
    """Return the same assignment with the next version, valid from now, unsigned."""
    signed = copy.deepcopy(metadata.signed)
    signed.version += 1
    signed.expires = now + timedelta(hours=settings.assignment_expiry_h)
    signed.unrecognized_fields["issued"] = now.strftime(TIME_FORMAT)
    signed.unrecognized_fields.pop("nonce", None)
    return Metadata(signed)


def slots_of(metadata: Metadata[Targets]) -> Mapping[str, str]:
    """Return the paths of the assigned releases by slot."""
    targets = metadata.signed.targets.values()
    return {str(t.custom["slot"]): t.path for t in targets if isinstance(t.custom, dict) and "slot" in t.custom}
