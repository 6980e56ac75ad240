"""`/v1/publication`: what devices see, what is ready to be published, and its publication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from litestar import get, post

from fleet.controller.access import Action
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.drafts import Concern, concern
from fleet.controller.api.identity import Call, actor, allow, control_of
from fleet.controller.control.publication import PublicationState
from fleet.publisher.settings import FleetSettings
from fleet.times import moment

SHOWN = "/v1/publication"


@dataclass(frozen=True, slots=True)
class PublishedRole:
    """Document of a role, as devices see it."""

    role: str
    version: int
    expires: str


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """Settings of `fleet.toml` with which drafts are made."""

    root_expiry_d: float
    targets_expiry_d: float
    owner_expiry_d: float
    document_limit_bytes: int
    release_file_limit_bytes: int


@dataclass(frozen=True, slots=True)
class PublicationView:
    """State before a publication.

    `ready`: roles whose drafts it would publish; `waiting`: why others wait, by role; `concerns`: effect on devices.
    """

    published: Sequence[PublishedRole]
    ready: Sequence[str]
    waiting: Mapping[str, str]
    concerns: Sequence[Concern]
    settings: DraftingSettings


@dataclass(frozen=True, slots=True)
class PublicationDone:
    """Result of a publication.

    `published`: versions by role; `files`: number of copied files; `uploaded`: number of files uploaded into the bucket
    (null: there is none). Publish again before `expires`.
    """

    published: Mapping[str, int]
    waiting: Mapping[str, str]
    files: int
    uploaded: int | None
    concerns: Sequence[Concern]
    expires: str


@operation(get, "/v1/publication", Action.DRAFTS_READ, "What is published, and what is ready to be")
def show_publication(request: Call) -> PublicationView:
    """Return the published versions. The files themselves are at /repository/metadata."""
    allow(request)
    control = control_of(request)
    return _view(control.publisher.standing(control.clock()), control.workspace.settings)


@operation(post, "/v1/publication", Action.PUBLISH, "Publish what is ready", state=SHOWN, status_code=200)
def publish(request: Call) -> PublicationDone:
    """Publish with a new timestamp, signed by the online keys in this controller's `keys/`; 409 if they are missing."""
    identity, control = allow(request), control_of(request)

    def check(standing: PublicationState) -> None:
        check_state(request, lambda: _view(standing, control.workspace.settings))

    done = control.publisher.publish(actor(identity), control.clock(), check=check)
    concerns = [concern(impact) for impact in done.concerns]
    return PublicationDone(done.published, done.waiting, done.files, done.uploaded, concerns, moment(done.expires))


def _view(standing: PublicationState, settings: FleetSettings) -> PublicationView:
    published = [PublishedRole(one.what, one.version, moment(one.expires)) for one in standing.expiries]
    values = {name: getattr(settings, name) for name in DraftingSettings.__dataclass_fields__}
    concerns = [concern(impact) for impact in standing.concerns]
    return PublicationView(published, standing.ready, standing.waiting, concerns, DraftingSettings(**values))


HANDLERS = (show_publication, publish)
