"""`/v1/enrol`: how a device becomes one of the fleet. It needs no certificate: a token, or a serial that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta, Struct, json

from fleet.api.fields import Words
from fleet.api.identity import Call, control_of
from fleet.control.control import Control
from fleet.control.enrolling import Application
from fleet.serving.asgi import Scope, name_caller

REQUEST_CHARACTERS, TOKEN_CHARACTERS = 16_384, 256
RequestText = Annotated[str, Meta(max_length=REQUEST_CHARACTERS)]


class EnrolmentAsked(Struct, forbid_unknown_fields=True, frozen=True):
    """`token`, or a `serial` that was registered, or both; `csr`: PKCS #10 in PEM; `agent`: its version."""

    csr: RequestText
    token: Annotated[str, Meta(max_length=TOKEN_CHARACTERS)] = ""
    serial: Words = ""
    agent: Words = ""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """`root`: the newest signed root, from which on the device follows the chain; `repository`, `assignment`,
    `controller`: URLs; `poll_s`: how long to wait between two questions."""

    device: str
    certificate: str
    chain: str
    root: Mapping[str, Any]
    repository: str
    assignment: str
    controller: str
    poll_s: float


@post("/v1/enrol", sync_to_thread=True, status_code=200, security=[], summary="Become a device of the fleet")
def enrol(request: Call, data: JSONBody[EnrolmentAsked]) -> Enrolled:
    """The same token with the same key once more is the device whose answer was lost."""
    control = control_of(request)
    root = json.decode(control.publications.fresh().root)  # before a token is used up: nothing may be published yet
    asked = Application(data.csr.encode(errors="replace"), data.token, data.serial, data.agent)
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
    """What a device shows together with its certificate: the CA that signed it."""
    return control.authority.certificate_pem.decode()


HANDLERS = (enrol,)
