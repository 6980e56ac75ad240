"""`edge-fleet status`: roles with keys and expiries, drafts that wait, releases, assignments."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tuf.api.metadata import Metadata, Targets

from fleet.cli.common import draft_json, now, workspace
from fleet.cli.remote import short
from fleet.cli.verify import expiry_json
from fleet.publisher.assignments import slots_of
from fleet.publisher.drafts import Draft
from fleet.publisher.impact import barred
from fleet.publisher.publish import is_published
from fleet.publisher.releases import signed_floor
from fleet.publisher.repository import ASSIGNMENTS, Published, read_assignments
from fleet.publisher.roles import Quorum, delegated_roles, quorum
from fleet.publisher.settings import FleetSettings
from fleet.publisher.signing import expiry_d
from fleet.publisher.verify import Expiry, expiries, expiry_of
from fleet.publisher.wording import names
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_paths import is_release
from gateway.common.domain.routing import version_order
from gateway.common.terminal.tables import counted, print_json, print_table


@dataclass(frozen=True, slots=True)
class RepositoryStatus:
    """Everything that `status` shows."""

    published: Published
    drafts: tuple[Draft, ...]
    assignments: dict[str, Metadata[Targets]]
    at: datetime


def command(arguments: argparse.Namespace) -> int:
    """Print the status. Return 0 whatever it is (`verify` checks it)."""
    work = workspace(arguments)
    published = work.published()
    drafts = tuple(draft for draft in work.drafts().values() if not is_published(draft, published))
    if published.root is None and not drafts:
        raise ConfigurationError("holds no repository; edge-fleet repo init creates one", file=str(work.folder))
    assignments = read_assignments(work.public, work.settings.document_limit_bytes)
    standing = RepositoryStatus(published, drafts, assignments, now())
    if arguments.json:
        documents = [draft_json(work, draft) for draft in drafts]
        print_json({**_json(standing), "drafts": documents})
    else:
        times = {expiry.what: expiry for expiry in expiries(standing.published, standing.at)}
        rows = [
            (role, names(wanted), *_time(times.get(role), work.settings)) for role, wanted in roles(standing.published)
        ]
        if rows:
            print_table(("role", "keys", "version", "until (UTC)", "left"), rows)
        for draft in standing.drafts:
            missing = (
                f"{counted(draft.missing, 'signature')} missing" if draft.missing else "complete: edge-fleet publish"
            )
            print(f"\ndraft of {draft.role}, version {draft.metadata.signed.version}: {missing}")
        if found := releases(standing.published):
            print()
            lines = [(*short(path).split("/")[:3], floor, why) for path, floor, why in found]
            print_table(("owner", "model", "version", "floor", "not installed, because"), lines)
        if standing.assignments:
            print()
            print_table(("device", "slots", "version", "until (UTC)", "left"), list(_devices(standing, work.settings)))
    return 0


def roles(published: Published) -> Iterator[tuple[str, Quorum]]:
    """Yield every role with its keys, from root down."""
    if published.root:
        yield from ((role, quorum(published.root.signed, role)) for role in published.root.signed.roles)
    if published.targets:
        signed = published.targets.signed
        yield from ((role, quorum(signed, role)) for role in delegated_roles(signed))


def releases(published: Published) -> list[tuple[str, str, str]]:
    """Return path, signed floor, and why it is no longer installed ("": it is), by model and version."""
    targets = [target for role in published.roles.values() for target in role.signed.targets.values()]
    found = [(t.path, signed_floor(t), barred(published, t.path)[0]) for t in targets if is_release(t.path)]
    return sorted(found, key=lambda entry: (entry[0].split("/")[:-2], version_order(entry[0].split("/")[-2])))


def _json(standing: RepositoryStatus) -> dict[str, Any]:
    times = {expiry.what: expiry for expiry in expiries(standing.published, standing.at)}
    return {
        "roles": [
            {
                "role": role,
                "keys": names(wanted),
                **({k: v for k, v in expiry_json(times[role]).items() if k != "what"} if role in times else {}),
            }
            for role, wanted in roles(standing.published)
        ],
        "releases": [
            {"target": path, "floor": floor, "barred": why} for path, floor, why in releases(standing.published)
        ],
        "assignments": [
            {**expiry_json(expiry_of(device, metadata, standing.at)), "slots": dict(slots_of(metadata))}
            for device, metadata in standing.assignments.items()
        ],
    }


def _devices(standing: RepositoryStatus, settings: FleetSettings) -> Iterator[tuple[str, ...]]:
    for device, metadata in standing.assignments.items():
        slots = sorted(slots_of(metadata).items())
        versions = ", ".join(f"{slot}={' '.join(short(path).split('/')[1:])}" for slot, path in slots)
        expiry = expiry_of(f"{ASSIGNMENTS}/{device}", metadata, standing.at)
        yield (device, versions or "nothing", *_time(expiry, settings))


def _time(expiry: Expiry | None, settings: FleetSettings) -> tuple[str, str, str]:
    if expiry is None:
        return "", "", ""
    left = f"{expiry.days:.1f} d" if expiry.days >= 1 else f"{expiry.days * 24:.1f} h"
    if expiry.days <= 0:
        left = "EXPIRED"
    elif expiry.days < expiry_d(expiry.what, settings) * settings.expiry_notice_share:
        left += ", soon"
    return str(expiry.version), f"{expiry.expires:%Y-%m-%d %H:%M}", left
