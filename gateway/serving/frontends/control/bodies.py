"""Request and response bodies of the control API. It loads msgspec: import it only with the application."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, RequestBody, Schema

from gateway.common.domain.activation import Activation, read_activation
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.selection import Candidate
from gateway.common.domain.statistics import LATENCY_BOUNDS_NS, ServableStatistics
from gateway.serving.domain.ports import Loaded, VersionStatus
from gateway.serving.domain.vitals import Vitals

T = TypeVar("T", bound=msgspec.Struct)


class ActivationBody(msgspec.Struct, forbid_unknown_fields=True):
    """Signed release in a slot, and the evidence that its owner signed it."""

    slot: str
    target: str
    release: str
    variants: list[str]
    evidence: list[str]
    root: int


class RouteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Shares in percent by version, for `lease_s`.

    `shadow` is a version that also runs requests, for comparison ("": none).
    """

    weights: dict[str, int]
    lease_s: float
    shadow: str = ""


class UnloadBody(msgspec.Struct, forbid_unknown_fields=True):
    """Version to unload, and the time in which it may finish its queue."""

    version: str
    drain_s: float


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """Version whose golden set is replayed."""

    version: str


class ReplayedDocument(msgspec.Struct):
    """Number of golden rows that ran, and the verdict.

    0 rows: there is no golden set, or requests arrived in the meantime.
    """

    rows: int
    passed: bool
    reason: str


class SettingsTrialBody(msgspec.Struct, forbid_unknown_fields=True):
    """Release of settings to try, and the seconds after the restart within which the trial must be confirmed."""

    activation: ActivationBody
    within_s: float


class SettingsConfirmBody(msgspec.Struct, forbid_unknown_fields=True):
    """Digest of the release that is on trial."""

    sha256: str


class SettingsRevertBody(msgspec.Struct, forbid_unknown_fields=True):
    """Digest of the release that is on trial, and why it is taken back."""

    sha256: str
    reason: str


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Empty body."""


class ModelDocument(msgspec.Struct):
    """Model version: READY, LOADING, LOADED (no requests yet), UNLOADING, or UNAVAILABLE with the reason.

    `weight`: its share of the requests that name no version, in percent.
    """

    model: str
    version: str
    variant: str
    accelerator: str
    state: str
    signed: bool
    weight: int
    reason: str


class StatusDocument(msgspec.Struct):
    """Process and its model versions.

    `instance` differs after each start. `restart`: what waits for a restart. `problem`: why the committed releases
    could not be read, or why verdicts are not written to the disk. `broker`: whether MQTT is connected; null without.
    """

    instance: str
    version: str
    pid: int
    profile: str
    rss_bytes: int
    restart: str
    problem: str
    broker: bool | None
    models: list[ModelDocument]


class VitalsDocument(msgspec.Struct):
    """Temperatures, power and memory; null if the device does not report them."""

    temperatures_c: dict[str, float]
    power_watts: dict[str, float]
    throttled: bool | None
    memory_available_bytes: int | None


class CountersDocument(msgspec.Struct):
    """Counters of one version.

    `latency_counts` has one entry more than `latency_bounds_ns`, for slower requests. `busy`: requests wait or are in a
    run.
    """

    model: str
    version: str
    signed: bool
    weight: int
    requests: int
    failed: int
    executions: int
    failed_runs: int
    rejected_runs: int
    latency_ns: int
    latency_counts: list[int]
    latency_bounds_ns: list[int]
    infer_ns: int
    compared: int
    disagreed: int
    busy: bool


class StatisticsDocument(msgspec.Struct):
    """Counters by version."""

    models: list[CountersDocument]


class CandidateDocument(msgspec.Struct):
    """Variant on an accelerator; rank 1 is the best of the ladder.

    `fits`: hardware and software are present, whatever a trial found. `eligible`: it fits, and nothing else excludes
    it.
    """

    variant: str
    accelerator: str | None
    rank: int | None
    fits: bool
    eligible: bool
    reason: str


class PlanDocument(msgspec.Struct):
    """Variants of a release that this device could run."""

    profile: str
    candidates: list[CandidateDocument]


class MeasuredDocument(msgspec.Struct):
    """Cost of one-row runs, from the trial on this device."""

    p50_us: float
    p99_us: float
    cpu_us: float
    memory_bytes: int


class LoadedDocument(msgspec.Struct):
    """Variant and accelerator that the release would serve with."""

    variant: str
    accelerator: str
    reason: str
    measured: MeasuredDocument | None


def decoded(content: bytes, kind: type[T]) -> T:
    """Decode a body as `kind`; an empty body is `{}`. Raises RequestError INVALID with the position of the problem."""
    try:
        return msgspec.json.decode(content.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(Fault.INVALID, f"the request body: {error}; see /schema/openapi.json") from None


def activation_of(body: ActivationBody) -> Activation:
    """Return the activation in a body. Raises RequestError INVALID."""
    try:
        return read_activation(msgspec.structs.asdict(body))
    except ValueError as error:
        raise RequestError(Fault.INVALID, f"the request body: {error}") from None


def model_document(standing: VersionStatus) -> ModelDocument:
    """Return one line of GET /v1/status."""
    placement = standing.placement
    return ModelDocument(
        model=standing.model,
        version=standing.version,
        variant=placement.variant if placement else "",
        accelerator=placement.accelerator if placement else "",
        state=standing.state,
        signed=placement.signed if placement else False,
        weight=standing.weight,
        reason=standing.reason,
    )


def vitals_document(vitals: Vitals) -> VitalsDocument:
    """Return the answer to GET /v1/vitals."""
    heat, power = dict(vitals.temperatures_c), dict(vitals.power_watts)
    return VitalsDocument(heat, power, vitals.throttled, vitals.memory_available_bytes)


def counters_document(statistics: ServableStatistics, *, signed: bool) -> CountersDocument:
    """Return one line of GET /v1/statistics."""
    return CountersDocument(
        model=statistics.model,
        version=statistics.version,
        signed=signed,
        weight=statistics.weight,
        requests=statistics.success.count + statistics.fail.count,
        failed=statistics.fail.count,
        executions=statistics.executions,
        failed_runs=statistics.failed_runs,
        rejected_runs=statistics.rejected_runs,
        latency_ns=statistics.latency.ns,
        latency_counts=list(statistics.latency.counts),
        latency_bounds_ns=list(LATENCY_BOUNDS_NS),
        infer_ns=statistics.compute_infer.ns,
        compared=statistics.shadow.compared,
        disagreed=statistics.shadow.disagreed,
        busy=statistics.busy,
    )


def candidate_document(candidate: Candidate) -> CandidateDocument:
    """Return one line of the answer to POST /v1/plan."""
    c = candidate
    return CandidateDocument(c.variant.name, c.accelerator, c.rank, c.fits, c.eligible, c.reason)


def loaded_document(loaded: Loaded) -> LoadedDocument:
    """Return the answer to POST …/load."""
    m = loaded.measured
    measured = None if m is None else MeasuredDocument(m.run_us, m.p99_us, m.cpu_us, m.memory_bytes)
    return LoadedDocument(loaded.variant, loaded.accelerator, loaded.reason, measured)


_TYPES = {"string": OpenAPIType.STRING, "integer": OpenAPIType.INTEGER, "number": OpenAPIType.NUMBER}


def request_body(kind: type[msgspec.Struct]) -> RequestBody:
    """Return the OpenAPI description of a body that the handler reads itself, within limits."""
    _, components = msgspec.json.schema_components([kind])
    schema = _schema(components[kind.__name__], components)
    return RequestBody(required=True, content={"application/json": OpenAPIMediaType(schema=schema)})


def _schema(plain: dict[str, Any], named: Mapping[str, dict[str, Any]]) -> Schema:
    """Convert a JSON Schema of msgspec to litestar's. `named`: the schemas that `$ref` names."""
    if "$ref" in plain:
        return _schema(named[plain["$ref"].rpartition("/")[2]], named)
    kind = plain["type"]
    if kind == "array":
        return Schema(type=OpenAPIType.ARRAY, items=_schema(plain["items"], named))
    if kind == "object":
        values = plain.get("additionalProperties", False)
        return Schema(
            type=OpenAPIType.OBJECT,
            required=plain.get("required"),
            properties={name: _schema(inner, named) for name, inner in plain.get("properties", {}).items()} or None,
            additional_properties=_schema(values, named) if isinstance(values, dict) else values,
        )
    return Schema(type=_TYPES[kind])
