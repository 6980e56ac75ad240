"""`/v1/rollouts`: drafts of rollouts, and operators' actions on them.

A token with a scope works with rollouts whose query demands one of its tags. Such a demand is put in front of the query
of what such a token drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated

from litestar import get, post, put
from litestar.params import JSONBody, PathParameter, QueryParameter

from fleet.controller.access import Action, Identity
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.fields import NameInPath, NameInQuery
from fleet.controller.api.identity import Call, action_of, actor, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.api.rollouts_form import WAVES, Approval, Motive, SpecForm, document_of
from fleet.controller.api.rollouts_views import (
    PreviewView,
    RolloutDevice,
    RolloutEntry,
    RolloutView,
    device,
    entry,
    preview,
    view,
)
from fleet.controller.api.scope import caller_of, scope_of, unseen
from fleet.controller.control import rollouts as words
from fleet.controller.control.rollouts_preview import preview as previewed
from fleet.controller.control.rollouts_record import RETURNING, RecordedRollout, fact_of
from fleet.controller.database import rollouts
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import (
    Aborted,
    Approved,
    Event,
    Paused,
    Resumed,
    RollbackRequested,
    Started,
    WaveApproved,
)
from fleet.controller.rollouts.facts_form import fact_document
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import DeviceState, Status
from gateway.common.domain.errors import Fault, RequestError

SHOWN = "/v1/rollouts/{rollout}"
"""Route that shows the state of a rollout."""
WaveInPath = Annotated[int, PathParameter(ge=1, le=WAVES, description="waves count from 1")]


@operation(get, "/v1/rollouts", Action.ROLLOUTS_READ, "List rollouts, oldest first")
def list_rollouts(
    request: Call,
    in_state: Annotated[Status | None, QueryParameter(name="state")] = None,
    archived: Annotated[bool, QueryParameter(description="also archived ones")] = False,
    after: NameInQuery = "",
    limit: Limit = PAGE_ROWS,
) -> Page[RolloutEntry]:
    """Return rollouts; with a scope only those for its devices. `archived`: include archived ones."""
    scope, control = scope_of(caller_of(request)), control_of(request)
    states = () if in_state is None else (in_state.value, *([RETURNING] if in_state is Status.ABORTED else []))
    with control.database.read() as connection:
        # The database cannot evaluate what the scope covers, so it is read page by page.
        stored = rollouts.every(
            connection, control.database.settings, states=states, archived=archived, after=after, page_rows=PAGE_ROWS
        )
        visible = (one for one in stored if words.covers(scope, parse(str(one.spec["query"]))))
        found = [*islice(visible, limit)]
    return page(found, limit, entry, lambda one: one.id)


@operation(get, "/v1/rollouts/{rollout:str}", Action.ROLLOUTS_READ, "Show a rollout")
def show_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Return a rollout: its specification, its state and that of its waves."""
    return view(known_rollout(request, rollout), control_of(request).clock())


@operation(post, "/v1/rollouts/preview", Action.ROLLOUTS_DRAFT, "Preview a specification", status_code=200)
def preview_rollout(request: Call, data: JSONBody[SpecForm]) -> PreviewView:
    """Return what a specification would reach; nothing is created."""
    spec = _drafted(request, caller_of(request), data)
    return preview(previewed(control_of(request).rollouts, spec), spec)


@operation(post, "/v1/rollouts", Action.ROLLOUTS_DRAFT, "Draft a rollout")
def create_rollout(request: Call, data: JSONBody[SpecForm]) -> RolloutView:
    """Create a draft. Nothing happens before it is approved and started.

    409 if its release must not be assigned.
    """
    identity, control = caller_of(request), control_of(request)
    spec, now = _drafted(request, identity, data), control.clock()
    return view(words.create(control.rollouts, spec, actor(identity), now), now)


@operation(
    put, "/v1/rollouts/{rollout:str}", Action.ROLLOUTS_DRAFT, "Replace the specification of a draft", state=SHOWN
)
def revise_rollout(request: Call, rollout: NameInPath, data: JSONBody[SpecForm]) -> RolloutView:
    """Replace the specification of a draft. 409 after it was approved: then it never changes."""
    identity, control = caller_of(request), control_of(request)
    spec, now = _drafted(request, identity, data), control.clock()
    permit = permission(request, identity)
    with unseen(request, identity):
        return view(words.revise(control.rollouts, rollout, spec, actor(identity), now, permit=permit), now)


def _word(path: str, summary: str, action: Action = Action.ROLLOUTS_CONTROL) -> post:
    """Return the route decorator for an operator's action on a rollout."""
    return operation(post, f"/v1/rollouts/{{rollout:str}}/{path}", action, summary, state=SHOWN, status_code=200)


@_word("approve", "Approve a draft", Action.ROLLOUTS_APPROVE)
def approve_rollout(request: Call, rollout: NameInPath, data: JSONBody[Approval]) -> RolloutView:
    """Approve a draft. 409 if its specification is not the one that the caller names."""
    return _say(request, rollout, lambda by: Approved(by, data.spec), "rollouts.approve", {"spec": data.spec})


@_word("start", "Start an approved rollout")
def start_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Start a rollout: devices are offered the release as its waves and windows allow."""
    return _say(request, rollout, Started, "rollouts.start")


@_word("pause", "Offer nothing until it is resumed")
def pause_rollout(request: Call, rollout: NameInPath, data: JSONBody[Motive | None] = None) -> RolloutView:
    """Pause a rollout. Devices that have an offer go on."""
    reason = data.reason if data else ""
    return _say(request, rollout, lambda by: Paused(by, reason), "rollouts.pause", {"reason": reason})


@_word("resume", "Resume a paused rollout")
def resume_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Resume a rollout. Failures until now no longer count."""
    return _say(request, rollout, Resumed, "rollouts.resume")


@_word("abort", "Abort a rollout permanently")
def abort_rollout(request: Call, rollout: NameInPath, data: JSONBody[Motive | None] = None) -> RolloutView:
    """Abort a rollout: its offers are withdrawn. A standing one is finished if it is between two rounds.

    Devices that committed go back if its specification forces that, or after /rollback.
    """
    reason = data.reason if data else ""
    return _say(request, rollout, lambda by: Aborted(by, reason), "rollouts.abort", {"reason": reason})


@_word("rollback", "Give all devices back what they had")
def rollback_rollout(request: Call, rollout: NameInPath) -> RolloutView:
    """Give devices back what they had, after the rollout was aborted."""
    return _say(request, rollout, RollbackRequested, "rollouts.rollback")


@_word("waves/{wave:int}/approve", "Approve a wave that needs approval")
def approve_wave(request: Call, rollout: NameInPath, wave: WaveInPath) -> RolloutView:
    """Approve a wave; it begins when it is due.

    The author of the rollout may not approve it if `[access] approve_own = false`.
    """
    return _say(request, rollout, lambda by: WaveApproved(wave, by), "rollouts.approve_wave", {"wave": wave})


def known_rollout(request: Call, rollout: str) -> RecordedRollout:
    """Return the rollout, if it is within the caller's scope. Raise RequestError DENIED, AbsentError."""
    identity, control = caller_of(request), control_of(request)
    with unseen(request, identity), control.database.read() as connection:
        known = control.rollouts.states.read(connection, rollout, control.database.settings)
    permission(request, identity)(known)
    control.rollouts.states.keep(known)
    return known


def permission(request: Call, identity: Identity, *, approves: bool = False) -> words.Permit:
    """Return a check that refuses rollouts for devices beyond the caller's scope.

    It also refuses what one person may not do alone, and an outdated If-Match. It raises RequestError DENIED, and what
    `check_state` raises.
    """
    scope = scope_of(identity)

    def permit(known: RecordedRollout) -> None:
        within = words.covers(scope, parse(known.spec.query))
        allow(request, scope if within else frozenset(), identity=identity)
        _check_author(request, known.stored, actor(identity), approves=approves)
        check_state(request, lambda: view(known, control_of(request).clock()))

    return permit


def _check_author(request: Call, stored: StoredRollout, by: str, *, approves: bool) -> None:
    """Refuse authors to approve their own rollouts, if `[access] approve_own = false`.

    Then a draft has one author; drafts from before that setting may have several. Raise RequestError DENIED.
    """
    if control_of(request).settings.access.approve_own:
        return
    if approves and by in {stored.created_by, stored.revised_by}:
        done = "drafted" if by == stored.created_by else "revised"
        problem = f"{by!r:.80} {done} the rollout {stored.id}, and another person has to approve it and its waves"
    elif action_of(request) is Action.ROLLOUTS_DRAFT and by != stored.created_by:
        problem = f"{stored.created_by!r:.80} drafted the rollout {stored.id}; make a draft of your own"
    else:
        return
    raise RequestError(Fault.DENIED, f"{problem} ([access] approve_own = false)")


def _drafted(request: Call, identity: Identity, form: SpecForm) -> Spec:
    with control_of(request).database.read() as connection:
        return words.drafted(connection, document_of(form), scope_of(identity))


def _say(
    request: Call,
    rollout: str,
    event: Callable[[str], Event],
    deed: str,
    details: Mapping[str, object] | None = None,
) -> RolloutView:
    identity, control = caller_of(request), control_of(request)
    by, now = actor(identity), control.clock()
    word = words.Word(event(by), deed, by, details or {})
    permit = permission(request, identity, approves=isinstance(word.event, (Approved, WaveApproved)))
    with unseen(request, identity):
        return view(words.say(control.rollouts, rollout, word, now, permit=permit), now)


@operation(
    get, "/v1/rollouts/{rollout:str}/devices", Action.ROLLOUTS_READ, "List the devices of a rollout with their states"
)
def list_devices(
    request: Call,
    rollout: NameInPath,
    *,
    in_state: Annotated[DeviceState | None, QueryParameter(name="state")] = None,
    wave: Annotated[
        int | None, QueryParameter(ge=0, le=WAVES, schema_extra={"minimum": 0}, description="0: the canary")
    ] = None,
    after: NameInQuery = "",
    limit: Limit = PAGE_ROWS,
) -> Page[RolloutDevice]:
    """Return the devices of a rollout in the order of their ids. `state`, `wave`: only devices in it."""
    members = known_rollout(request, rollout).state.members
    names = (name for name in sorted(members) if name > after)
    wanted = (members[name] for name in names if in_state in {None, members[name].state})
    found = [*islice((member for member in wanted if wave in {None, member.wave}), limit)]
    return page(found, limit, device, lambda member: member.device)


@operation(get, "/v1/rollouts/{rollout:str}/facts", Action.ROLLOUTS_READ, "List the facts of a rollout, in order")
def list_facts(
    request: Call, rollout: NameInPath, after: Number = 0, limit: Limit = PAGE_ROWS
) -> Page[dict[str, object]]:
    """Return the facts of a rollout as `edge-fleet rollouts replay` reads them: `seq`, `at`, `event`."""
    known_rollout(request, rollout)
    control = control_of(request)
    with control.database.read() as connection:
        found = rollouts.facts_of(connection, rollout, limit, after=after)
    return page(found, limit, lambda one: fact_document(fact_of(one)), lambda one: one.sequence)


HANDLERS = (
    list_rollouts,
    preview_rollout,
    create_rollout,
    show_rollout,
    revise_rollout,
    approve_rollout,
    start_rollout,
    pause_rollout,
    resume_rollout,
    abort_rollout,
    rollback_rollout,
    approve_wave,
    list_devices,
    list_facts,
)
