"""Archive of rollouts that are over: lists leave them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import NameInPath
from fleet.controller.api.identity import Call, actor, control_of
from fleet.controller.api.rollouts import SHOWN, permission
from fleet.controller.api.rollouts_views import RolloutView, view
from fleet.controller.api.scope import caller_of, scope_of, unseen
from fleet.controller.control import archiving
from fleet.controller.control.rollouts import covers
from fleet.controller.database.errors import RefusedError
from fleet.controller.rollouts.query_parser import parse
from gateway.common.domain.python310 import from_iso

TIME_CHARACTERS = 40


class Before(Struct, forbid_unknown_fields=True, frozen=True):
    """`before`: a time with its offset, such as 2027-01-31T00:00:00Z (RFC 3339)."""

    before: Annotated[str, Meta(min_length=1, max_length=TIME_CHARACTERS)]


@dataclass(frozen=True, slots=True)
class ArchivedView:
    """`rollouts` that were archived. `more`: there may be others; repeat the request."""

    rollouts: Sequence[str]
    more: bool


@operation(
    post,
    "/v1/rollouts/{rollout:str}/archive",
    Action.ROLLOUTS_CONTROL,
    "Archive a rollout that is over",
    state=SHOWN,
    status_code=200,
)
def archive_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Archive a rollout. It can still be shown, replayed and restored.

    409 unless it is finished or aborted. A second call changes nothing.
    """
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    permit = permission(request, identity)
    with unseen(request, identity):
        return view(archiving.archive(control.rollouts, rollout, actor(identity), now, permit=permit), now)


@operation(
    post,
    "/v1/rollouts/{rollout:str}/restore",
    Action.ROLLOUTS_CONTROL,
    "Restore an archived rollout",
    state=SHOWN,
    status_code=200,
)
def restore_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Restore an archived rollout. A second call changes nothing."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    permit = permission(request, identity)
    with unseen(request, identity):
        return view(archiving.restore(control.rollouts, rollout, actor(identity), now, permit=permit), now)


@operation(
    post, "/v1/rollouts/archive", Action.ROLLOUTS_CONTROL, "Archive rollouts that ended before a time", status_code=200
)
def archive_before(request: Call, data: JSONBody[Before]) -> ArchivedView:
    """Archive at most 1,000 rollouts that ended before a time; with a scope only those for its devices."""
    identity, control = caller_of(request), control_of(request)
    scope, before, now = scope_of(identity), _utc(data.before), control.clock()
    done = archiving.archive_before(
        control.database,
        before,
        actor(identity),
        now,
        wanted=lambda stored: covers(scope, parse(str(stored.spec["query"]))),
    )
    return ArchivedView(done.rollouts, done.more)


def _utc(text: str) -> datetime:
    """Read a time. Raise RefusedError if it is not a time, has no offset, or is beyond the range of UTC."""
    try:
        at = from_iso(text)
        if at.tzinfo is not None:
            return at.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        pass
    raise RefusedError(f"before: {text!r} is not a time with an offset; write it as 2027-01-31T00:00:00Z")


HANDLERS = (archive_rollout, restore_rollout, archive_before)
