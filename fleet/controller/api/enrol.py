"""`/v1/enrol`: enrolment of devices. It needs no certificate, but a token or a registered serial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta, Struct, json

from fleet.controller.api.fields import Words
from fleet.controller.api.identity import Call, control_of
from fleet.controller.control.control import Control
from fleet.controller.control.enrolling import EnrolmentRequest
from fleet.controller.serving.asgi import Scope, name_caller

REQUEST_CHARACTERS, TOKEN_CHARACTERS = 16_384, 256
RequestText = Annotated[str, Meta(max_length=REQUEST_CHARACTERS)]


class EnrolmentAsked(Struct, forbid_unknown_fields=True, frozen=True):
    """Request for enrolment.

    `token`, or a registered `serial`, or both. `csr`: PKCS #10 in PEM. `agent`: version of the agent.
    """

    csr: RequestText
    token: Annotated[str, Meta(max_length=TOKEN_CHARACTERS)] = ""
    serial: Words = ""
    agent: Words = ""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Certificate and addresses of an enrolled device.

    `root`: the newest signed root, from which the device follows the chain. `repository`, `assignment`, `controller`:
    URLs. `poll_s`: time between two polls.
    """

    device: str
    certificate: str
    chain: str
    root: Mapping[str, Any]
    repository: str
    assignment: str
    controller: str
    poll_s: float


@post("/v1/enrol", sync_to_thread=True, status_code=200, security=[], summary="Enrol a device")
def enrol(request: Call, data: JSONBody[EnrolmentAsked]) -> Enrolled:
    """Enrol a device. The same token with the same key again is the device whose answer was lost."""
    control = control_of(request)
    root = json.decode(control.publications.fresh().root)  # before a token is used up: nothing may be published yet
    asked = EnrolmentRequest(data.csr.encode(errors="replace"), data.token, data.serial, data.agent)
    made = control.enrolling.enrol(asked, control.clock())
    name_caller(cast("Scope", request.scope), made.device)
    return Enrolled(
        device=made.device,
        certificate=made.pem.decode(),
        chain=chain(control),
        root=root,
        repository=control.repository_url,
        assignment=f"{control.url}/v1/self/assignment",
        controller=control.url,
        poll_s=float(control.director.poll_s(made.device)),
    )


def chain(control: Control) -> str:
    """Return the fleet's CA certificates, that which signs now first. Devices trust a port's certificate of each."""
    return control.authority.pem.decode()


HANDLERS = (enrol,)
