"""`/v1/rollouts/{id}/devices` and `…/facts`: devices of a rollout, and its facts."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from fleet.controller.access import Action
from fleet.controller.api.fields import NameInPath, NameInQuery
from fleet.controller.api.identity import ACTION, Call, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.api.rollouts import known_rollout
from fleet.controller.api.rollouts_form import WAVES
from fleet.controller.api.rollouts_views import RolloutDevice, device
from fleet.controller.control.rollouts_record import fact_of
from fleet.controller.database import rollouts
from fleet.controller.rollouts.facts_form import fact_document
from fleet.controller.rollouts.state import DeviceState


@get(
    "/v1/rollouts/{rollout:str}/devices",
    opt={ACTION: Action.ROLLOUTS_READ},
    sync_to_thread=True,
    summary="List the devices of a rollout with their states",
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


@get(
    "/v1/rollouts/{rollout:str}/facts",
    opt={ACTION: Action.ROLLOUTS_READ},
    sync_to_thread=True,
    summary="List the facts of a rollout, in order",
)
def list_facts(
    request: Call, rollout: NameInPath, after: Number = 0, limit: Limit = PAGE_ROWS
) -> Page[dict[str, object]]:
    """Return the facts of a rollout as `edge-fleet rollouts replay` reads them: `seq`, `at`, `event`."""
    known_rollout(request, rollout)
    control = control_of(request)
    with control.database.read() as connection:
        found = rollouts.facts_of(connection, rollout, limit, after=after)
    return page(found, limit, lambda one: fact_document(fact_of(one)), lambda one: one.sequence)


HANDLERS = (list_devices, list_facts)
