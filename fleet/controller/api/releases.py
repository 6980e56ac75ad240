"""`/v1/releases`: published and verified releases. They are published with `edge-fleet publish`, in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import get

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import NameInPath, NameInQuery, PathInQuery, plain_fields
from fleet.controller.api.identity import Call, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Page, page
from fleet.controller.control.catalogue import usable
from fleet.controller.database import releases
from fleet.controller.database.errors import AbsentError
from fleet.controller.database.releases import KnownRelease
from gateway.common.domain.release_paths import ReleasePath


@dataclass(frozen=True, slots=True)
class ReleaseEntry:
    """A release.

    `target`: its path in the repository. `digest`, `size_bytes`: of the signed document. `floor`: oldest version that
    its owner allowed with it. `withdrawn`: since when it is no longer published.
    """

    target: str
    owner: str
    model: str
    version: str
    floor: str
    digest: str
    size_bytes: int
    released: str
    first_read: str
    withdrawn: str | None


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """A release with the document that its owner signed.

    `refused`: why no rollout may be made of it, "" if one may.
    """

    release: ReleaseEntry
    document: Mapping[str, Any]
    refused: str


@operation(get, "/v1/releases", Action.RELEASES_READ, "List releases by path")
def list_releases(
    request: Call, model: NameInQuery = "", after: PathInQuery = "", limit: Limit = PAGE_ROWS
) -> Page[ReleaseEntry]:
    """Return releases. `model`: only its releases."""
    allow(request)
    control = control_of(request)
    with control.database.read() as connection:
        found = releases.page(connection, control.database.settings, model=model, after=after, limit_rows=limit)
    return page(found, limit, _entry, lambda one: one.release.target)


@operation(get, "/v1/releases/{owner:str}/{model:str}/{version:str}", Action.RELEASES_READ, "Show a release")
def show_release(request: Call, owner: NameInPath, model: NameInPath, version: NameInPath) -> ReleaseView:
    """Return a release, and whether it may be assigned."""
    allow(request)
    target = ReleasePath(owner, model, version).path
    with control_of(request).database.read() as connection:
        found = releases.find(connection, target)
        if found is None:
            raise AbsentError(f"no release {target!r:.300} is published")
        return ReleaseView(_entry(found), found.release.document, usable(connection, target))


def _entry(known: KnownRelease) -> ReleaseEntry:
    here = ("first_read", "withdrawn")
    signed = ReleaseEntry.__dataclass_fields__.keys() - set(here)
    return ReleaseEntry(**plain_fields(known.release, signed), **plain_fields(known, here))


HANDLERS = (list_releases, show_release)
