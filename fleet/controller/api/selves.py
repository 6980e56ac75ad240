"""`/v1/self/…`: routes for devices, which are identified by their certificate. A device sees only itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from litestar import Response, get, post, put
from litestar.openapi import ResponseSpec
from litestar.params import JSONBody, QueryParameter, RawBody
from msgspec import Struct

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.document import BODY
from fleet.controller.api.enrol import RequestText, chain
from fleet.controller.api.fields import LARGEST
from fleet.controller.api.identity import Call, allow_self, control_of
from fleet.controller.control.ingestion import Acknowledgement
from fleet.times import moment

INVENTORY = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
LINES = {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "required": False}
_ANSWER = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 1, "maximum": LARGEST}, "answer": {"type": "object"}},
    "required": ["id", "answer"],
}
ANSWER = {"content": {"application/json": {"schema": _ANSWER}}, "required": True}
NO_STORE = {"cache-control": "no-store"}
NonceInQuery = Annotated[str, QueryParameter(max_length=128, schema_extra={"pattern": "^[A-Za-z0-9_-]*$"})]


class RenewalAsked(Struct, forbid_unknown_fields=True, frozen=True):
    """Request for another certificate. `csr`: PKCS #10 in PEM, for another key than the device has now."""

    csr: RequestText


@dataclass(frozen=True, slots=True)
class Renewed:
    """The next certificate, and those of the CAs. The one before is valid until it expires."""

    certificate: str
    chain: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Acknowledgement: of each stream and boot, no row up to this number is missing."""

    acknowledged: Sequence[Acknowledgement]


@dataclass(frozen=True, slots=True)
class DiagnosticsRequest:
    """Request for diagnostics. `wanted`: of doctor, log, status, vitals. Answers after `expires` are refused."""

    id: int
    wanted: Sequence[str]
    expires: str


@dataclass(frozen=True, slots=True)
class DiagnosticsRequests:
    """Requests for diagnostics to this device, oldest first."""

    requests: Sequence[DiagnosticsRequest]


@operation(
    get,
    "/v1/self/assignment",
    Action.SELF_ASSIGNMENT,
    "Get this device's assignment, signed by the director",
    responses={
        HTTPStatus.OK: ResponseSpec(dict[str, Any], generate_examples=False, description="TUF targets metadata"),
        HTTPStatus.NOT_MODIFIED: ResponseSpec(None, generate_examples=False, description="The device has it"),
    },
)
def get_assignment(request: Call, nonce: NonceInQuery = "") -> Response[bytes]:
    """Return this device's assignment as TUF targets metadata.

    304 if If-None-Match names the current one. With a `nonce`, always a document that repeats it.
    """
    serial, control = allow_self(request), control_of(request)
    named = request.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"')
    found = control.director.assigned(serial, control.clock(), etag=named, nonce=nonce)
    headers = {"etag": f'"{found.digest}"', **NO_STORE}
    if found.content is None:
        return Response(b"", status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(found.content, media_type="application/json", headers=headers)


@operation(
    put,
    "/v1/self/inventory",
    Action.SELF_INVENTORY,
    "Store this device's inventory",
    opt={BODY: INVENTORY},
    status_code=HTTPStatus.NO_CONTENT,
)
def put_inventory(request: Call, body: RawBody) -> None:
    """Store this device's inventory, as `edge-gateway probe --json` prints it; gzip is accepted."""
    serial, control = allow_self(request), control_of(request)
    control.inventories.keep(serial, body, encoding_of(request), control.clock())


@operation(
    post,
    "/v1/self/telemetry",
    Action.SELF_TELEMETRY,
    "Store this device's telemetry",
    opt={BODY: LINES},
    status_code=HTTPStatus.OK,
)
def post_telemetry(request: Call, body: RawBody) -> Acknowledged:
    """Store telemetry. When this answers, all of it is on the disk.

    Lines of JSON (application/x-ndjson), also gzip: records and gaps.
    """
    serial, control = allow_self(request), control_of(request)
    return Acknowledged(control.intake.take(serial, body, encoding_of(request), control.clock))


@operation(
    post, "/v1/self/certificate", Action.SELF_CERTIFICATE, "Renew this device's certificate", status_code=HTTPStatus.OK
)
def post_certificate(request: Call, data: JSONBody[RenewalAsked]) -> Renewed:
    """Issue another certificate, for another key. Agents renew after two thirds of a certificate's life."""
    serial, control = allow_self(request), control_of(request)
    made = control.enrolling.renew(serial, data.csr.encode(errors="replace"), control.clock())
    return Renewed(made.pem.decode(), chain(control))


@operation(get, "/v1/self/diagnostics", Action.SELF_DIAGNOSTICS, "List requests for diagnostics to this device")
def get_diagnostics(request: Call) -> DiagnosticsRequests:
    """Return requests for diagnostics to this device. Its assignment says whether there are any."""
    serial, control = allow_self(request), control_of(request)
    waiting = control.inventories.asked(serial, control.clock())
    return DiagnosticsRequests([DiagnosticsRequest(one.id, one.wanted, moment(one.expires)) for one in waiting])


@operation(
    post,
    "/v1/self/diagnostics",
    Action.SELF_DIAGNOSTICS,
    "Answer a request for diagnostics",
    opt={BODY: ANSWER},
    status_code=HTTPStatus.NO_CONTENT,
)
def post_diagnostics(request: Call, body: RawBody) -> None:
    """Store an answer `{"id", "answer": {…}}`; gzip is accepted.

    404 if there is no such request, 409 for a second answer or one that is too late.
    """
    serial, control = allow_self(request), control_of(request)
    control.inventories.answered(serial, body, encoding_of(request), control.clock())


def encoding_of(request: Call) -> str:
    """Return the body's content encoding."""
    value: Any = request.headers.get("content-encoding", "")
    return str(value).strip().lower()


HANDLERS = (
    get_assignment,
    put_inventory,
    post_telemetry,
    post_certificate,
    get_diagnostics,
    post_diagnostics,
)
