"""Endpoints of the control API.

Litestar reads the annotations when it builds the application: import this only to build one.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from litestar import Request, get, post, put
from litestar.openapi.spec import OpenAPIType, Operation, Parameter, Schema

from gateway import __version__
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.statistics import ServableStatistics
from gateway.serving.domain.ports import Serving, SettingsStanding, SettingsTrials, Standings, Statistics
from gateway.serving.frontends.control import bodies
from gateway.serving.frontends.control.about import About, resident_bytes
from gateway.serving.frontends.control.settings import ControlServerSettings
from gateway.serving.frontends.http.body import BodyReader

MODEL = "/v1/models/{slot:str}"

Call = Request[Any, Any, Any]
T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ControlPorts:
    """Interfaces that the endpoints use."""

    serving: Serving
    standings: Standings
    statistics: Statistics
    settings_trials: SettingsTrials
    about: About
    settings: ControlServerSettings
    bodies: BodyReader


def taking(kind: type[msgspec.Struct]) -> type[Operation]:
    """Return an OpenAPI operation with a body of `kind`, which the handler reads itself, within limits."""

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = bodies.request_body(kind)

    return Taking


@dataclass
class AskingModel(Operation):
    """Query of GET /v1/statistics.

    The handler reads it itself: litestar 2.15 and its newest release declare query parameters differently.
    """

    def __post_init__(self) -> None:
        """Add the parameter that the handler reads from the query itself."""
        schema = Schema(type=OpenAPIType.STRING)
        self.parameters = [*(self.parameters or []), Parameter(name="model", param_in="query", schema=schema)]


@get("/v1/status", summary="The process and what it serves")
async def status(request: Call) -> bodies.StatusDocument:
    """Return the process, its profile and memory, and each model version with its state and share."""
    ports = ports_of(request)
    return bodies.StatusDocument(
        instance=ports.about.instance,
        version=__version__,
        pid=os.getpid(),
        profile=ports.about.profile,
        rss_bytes=resident_bytes(),
        restart=ports.about.restart(),
        problem=ports.about.problem(),
        broker=ports.about.broker(),
        models=[bodies.model_document(standing) for standing in ports.standings.standings()],
    )


@get("/v1/inventory", summary="What the device has")
async def inventory(request: Call) -> dict[str, Any]:
    """Return the inventory as `edge-gateway probe --json` prints it."""
    return dict(ports_of(request).about.inventory)


@get("/v1/vitals", summary="Heat, power and memory")
async def vitals(request: Call) -> bodies.VitalsDocument:
    """Read and return the vitals; null if the device does not report them."""
    return bodies.vitals_document(await asyncio.to_thread(ports_of(request).about.vitals))


@get("/v1/cameras", summary="State of each camera")
async def cameras(request: Call) -> dict[str, Any]:
    """Return state, rates, counts and latencies of each camera of the gateway."""
    return {"cameras": [dict(each) for each in ports_of(request).about.cameras()]}


@get("/v1/statistics", summary="Counters per model version", operation_class=AskingModel)
async def statistics(request: Call) -> bodies.StatisticsDocument:
    """Return the counters of all loaded versions, or of those of `model`; none for an unknown model."""
    ports = ports_of(request)
    placed = {(one.model, one.version): one.placement for one in ports.standings.standings()}
    lines = []
    for counted in _counted(ports, request.query_params.get("model", "")):
        placement = placed.get((counted.model, counted.version))
        lines.append(bodies.counters_document(counted, signed=placement is not None and placement.signed))
    return bodies.StatisticsDocument(lines)


@post("/v1/plan", status_code=200, summary="What this device could run", operation_class=taking(bodies.ActivationBody))
async def plan(request: Call) -> bodies.PlanDocument:
    """Return every variant of a signed release, best first. Only the release's manifest must be present."""
    activation = bodies.activation_of(await body_of(request, bodies.ActivationBody))
    ports = ports_of(request)
    candidates = await ports.serving.plan(activation)
    return bodies.PlanDocument(ports.about.profile, [bodies.candidate_document(candidate) for candidate in candidates])


@post(MODEL + "/load", status_code=200, summary="Load a release", operation_class=taking(bodies.ActivationBody))
async def load(request: Call) -> bodies.LoadedDocument:
    """Verify a release, try it in a child process and open it; it gets no requests yet.

    409 with the reason if refused.
    """
    activation = bodies.activation_of(await body_of(request, bodies.ActivationBody))
    if activation.slot != (slot := _slot(request)):
        raise RequestError(
            Fault.INVALID, f"the path names slot '{slot:.200}', the body '{activation.slot:.200}'; name one"
        )
    return bodies.loaded_document(await ports_of(request).serving.load(activation))


@put(MODEL + "/route", status_code=200, summary="Share requests", operation_class=taking(bodies.RouteBody))
async def route(request: Call) -> dict[str, Any]:
    """Set how requests that name no version are shared, atomically, for the duration of the lease."""
    body = await body_of(request, bodies.RouteBody)
    await ports_of(request).serving.route(_slot(request), body.weights, shadow=body.shadow, lease_s=body.lease_s)
    return {}


@post(MODEL + "/replay", status_code=200, summary="Replay a golden set", operation_class=taking(bodies.ReplayBody))
async def replay(request: Call) -> bodies.ReplayedDocument:
    """Run the golden set of a loaded version while no requests arrive."""
    body = await body_of(request, bodies.ReplayBody)
    found = await ports_of(request).serving.replay(_slot(request), body.version)
    return bodies.ReplayedDocument(found.rows, found.passed, found.reason)


@post(MODEL + "/unload", status_code=200, summary="Unload a version", operation_class=taking(bodies.UnloadBody))
async def unload(request: Call) -> dict[str, Any]:
    """Drain and unload a version. A version that is not loaded is no error."""
    body, ports = await body_of(request, bodies.UnloadBody), ports_of(request)
    if not 0 <= body.drain_s <= (most_s := ports.settings.max_drain_s):
        raise RequestError(Fault.INVALID, f"drain_s must be 0 to {most_s:g} seconds, not {body.drain_s!r:.40}")
    await ports.serving.unload(_slot(request), body.version, body.drain_s)
    return {}


@post("/v1/commit", status_code=200, summary="Serve the committed releases", operation_class=taking(bodies.CommitBody))
async def commit(request: Call) -> dict[str, Any]:
    """Read again which releases are committed. Releases that are loaded already keep serving."""
    await body_of(request, bodies.CommitBody)
    await ports_of(request).serving.commit()
    return {}


@get("/v1/settings", summary="Settings of the fleet")
async def settings(request: Call) -> SettingsStanding:
    """Return which settings of the fleet are in force, on trial or committed, and why the last ones failed."""
    return ports_of(request).settings_trials.standing()


@post(
    "/v1/settings/trial",
    status_code=202,
    summary="Try settings of the fleet",
    operation_class=taking(bodies.SettingsTrialBody),
)
async def try_settings(request: Call) -> dict[str, Any]:
    """Verify and check a release of settings, then restart the gateway with them on trial. 409 with the reason."""
    body = await body_of(request, bodies.SettingsTrialBody)
    await ports_of(request).settings_trials.try_out(bodies.activation_of(body.activation), body.within_s)
    return {}


@post(
    "/v1/settings/confirm",
    status_code=200,
    summary="Commit settings on trial",
    operation_class=taking(bodies.SettingsConfirmBody),
)
async def confirm_settings(request: Call) -> dict[str, Any]:
    """Keep the settings that are on trial. 409 if others are in force."""
    body = await body_of(request, bodies.SettingsConfirmBody)
    await ports_of(request).settings_trials.confirm(body.sha256)
    return {}


@post(
    "/v1/settings/revert",
    status_code=200,
    summary="Take settings on trial back",
    operation_class=taking(bodies.SettingsRevertBody),
)
async def revert_settings(request: Call) -> dict[str, Any]:
    """Restart the gateway with the committed settings. 409 if other settings are on trial."""
    body = await body_of(request, bodies.SettingsRevertBody)
    await ports_of(request).settings_trials.revert(body.sha256, body.reason)
    return {}


HANDLERS = (
    status,
    inventory,
    vitals,
    cameras,
    statistics,
    plan,
    load,
    route,
    replay,
    unload,
    commit,
    settings,
    try_settings,
    confirm_settings,
    revert_settings,
)


def ports_of(request: Call) -> ControlPorts:
    """Return the objects with which the application was built."""
    return cast("ControlPorts", request.app.state.ports)


async def body_of(request: Call, kind: type[T]) -> T:
    """Return the JSON body. Raises as `BodyReader.read` does, and INVALID for other JSON."""
    reader = ports_of(request).bodies
    with reader.lease(request.scope["state"]["admitted"]) as lease:
        content = await reader.read(request.receive, dict(request.headers), lease)
        return bodies.decoded(bytes(content), kind)


def _counted(ports: ControlPorts, model: str) -> Sequence[ServableStatistics]:
    try:
        return ports.statistics.statistics(model)
    except RequestError as error:
        if error.fault is Fault.NOT_FOUND:
            return ()
        raise


def _slot(request: Call) -> str:
    return str(request.path_params["slot"])
