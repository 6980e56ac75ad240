"""`POST /v1/devices/tags`: tags and site of many devices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action
from fleet.controller.api.fields import KEPT, LARGEST, Name, Tags, Words
from fleet.controller.api.identity import ACTION, Call, actor, allow, control_of
from fleet.controller.control.labelling import Order, Outcome, preview, relabel
from fleet.controller.database.labels import LabelChange
from fleet.controller.rollouts.query_parser import QUERY_LIMIT_CHARS

NAMES = 10_000
"""Ids in one request; a query can select more."""


class TagsForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Change of labels of many devices.

    Which devices: `query`, in the query language of rollouts, or their ids as `devices`. What changes: tags to `add`
    and to `remove`, and `site` (null: unchanged). `expected`: 409 if another number of devices would change.
    """

    query: Annotated[str, Meta(max_length=QUERY_LIMIT_CHARS, pattern=KEPT)] = ""
    devices: Annotated[list[Name], Meta(max_length=NAMES)] = []
    add: Tags = []
    remove: Tags = []
    site: Words | None = None
    dry_run: bool = False
    expected: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


@dataclass(frozen=True, slots=True)
class TagsChanged:
    """Result of a change of labels.

    `selected` devices, of which `changed` change; `devices`: the first of these. `enrolments_void`: unused enrolment
    tokens of devices that lost a tag. `dry_run`: nothing was changed.
    """

    selected: int
    changed: int
    devices: Sequence[str]
    enrolments_void: int
    dry_run: bool


@post(
    "/v1/devices/tags",
    opt={ACTION: Action.DEVICES_LABEL},
    sync_to_thread=True,
    status_code=200,
    summary="Change tags and site of many devices",
)
def tag_devices(request: Call, data: JSONBody[TagsForm]) -> TagsChanged:
    """Change all of the devices in one transaction, or none; one entry in the audit log.

    Only for tokens without a scope, because scopes consist of tags.
    """
    identity, control = allow(request), control_of(request)
    change = LabelChange(frozenset(data.add), frozenset(data.remove), data.site)
    order = Order(change, data.query, data.devices, data.expected)
    if data.dry_run:
        return _view(preview(control.database, order), dry_run=True)
    return _view(relabel(control.database, order, actor(identity), control.clock()), dry_run=False)


def _view(outcome: Outcome, *, dry_run: bool) -> TagsChanged:
    return TagsChanged(outcome.selected, outcome.changed, outcome.devices, outcome.enrolments_void, dry_run)


HANDLERS = (tag_devices,)
