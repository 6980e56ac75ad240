"""What a client that knows nothing but the OpenAPI document can ask: paths of what is there, and bodies that fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fleet.database import desired
from fleet.database.desired import Desired
from tests.simulators.asking import csr, new_key
from tests.simulators.controller import RunningController
from tests.simulators.fleet_http import Device
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, V2, document

TAG = "pilot"
"""Borne by all that the ground gives."""


@dataclass(frozen=True)
class Operation:
    """A method of a path, as the document names it."""

    method: str
    path: str
    id: str
    body: Mapping[str, Any] | None
    public: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def asked(self, client: httpx.Client, path: str, content: Any) -> httpx.Response:
        """`path`: of something that is there; `content`: text or JSON."""
        told = {"content": content} if isinstance(content, str) else {"json": content} if self.body else {}
        return client.request(self.method, path, **told)


def operations(controller: RunningController) -> list[Operation]:
    """All that the document names."""
    with controller.client(None) as nobody:
        paths = nobody.get("/schema/openapi.json").json()["paths"]
    return [
        Operation(method.upper(), path, said["operationId"], said.get("requestBody"), said.get("security") == [])
        for path, item in paths.items()
        for method, said in item.items()
    ]


class Ground:
    """Things to ask about, new ones each time: what one call did is not in the way of the next."""

    def __init__(self, controller: RunningController, admin: httpx.Client) -> None:
        self.controller, self.admin, self._numbers = controller, admin, itertools.count(1)
        controller.repository.add_release(SLOT, "2")
        until(lambda: admin.get("/v1/releases").json()["items"], "the release is not read")

    def device(self, tag: str = TAG) -> Device:
        """One that enrolled."""
        return self.controller.enrolled(self._name("camera"), tags=[tag])

    def path(self, operation: Operation, device: str = "") -> str:
        """With what is there in place of each parameter; `device`: that one."""
        device = device or (self.device().certificate.device if "{device}" in operation.path else "")
        return re.sub(r"{(\w+)}", lambda found: self._value(found[1], device), operation.path)

    def _value(self, name: str, device: str) -> str:
        fixed = {"device": device, "owner": "acme", "model": SLOT, "version": "2", "stream": "vitals", "wave": "1"}
        makers: Mapping[str, Callable[[], Any]] = {
            "number": lambda: self.asked_for(device),
            "slot": lambda: self._assigned(device),
            "rollout": lambda: self._made("rollouts", document()),
            "enrolment_id": lambda: self._made("enrolments", {"tags": [TAG]}),
            "token": lambda: self._made("tokens", {"name": self._name("spare"), "role": "viewer"}),
        }
        return fixed.get(name) or str(makers[name]())

    def asked_for(self, device: str) -> int:
        """Diagnostics, of the device."""
        return int(self._made(f"devices/{device}/diagnostics", {}))

    def _assigned(self, device: str) -> str:
        """A slot in which the device is to run something."""
        wanted = Desired(device, SLOT, V2, "a" * 64, 1, "", self.controller.clock())
        with self.controller.control.database.write() as connection:
            desired.put(connection, [wanted], self.controller.control.database.settings)
        return SLOT

    def body(self, operation: Operation, device: str = "") -> Any:
        """Such that the route does what it is for; KeyError where it needs one and nobody wrote it down here.
        `device`: who asks."""
        if operation.body is None:
            return None
        bodies: Mapping[str, Callable[[], Any]] = {
            "post_v1_devices": lambda: {"serial": self._name("serial"), "tags": [TAG]},
            "post_v1_devices_tags": lambda: {"query": f"tag = {TAG}", "add": ["walked"]},
            "put_v1_devices_device_labels": lambda: {"tags": [TAG]},
            "post_v1_enrolments": lambda: {"tags": [TAG]},
            "post_v1_rollouts": document,
            "post_v1_rollouts_preview": document,
            "post_v1_rollouts_archive": lambda: {"before": "2026-01-01T00:00:00Z"},
            "put_v1_rollouts_rollout": document,
            "post_v1_rollouts_rollout_approve": lambda: {"spec": "0" * 64},
            "post_v1_tokens": lambda: {"name": self._name("token"), "role": "viewer"},
            "put_v1_self_inventory": dict,
            "post_v1_self_telemetry": str,
            "post_v1_self_certificate": lambda: {"csr": csr(new_key())},
            "post_v1_self_diagnostics": lambda: {"id": self.asked_for(device) if device else 1, "answer": {}},
        }
        return bodies[operation.id]() if operation.id in bodies or operation.body["required"] else {}

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Within the block nothing is changed that the audit log tells of."""
        before = self._last_deed()
        yield
        assert self._last_deed() == before

    def _last_deed(self) -> Any:
        return self.admin.get("/v1/audit", params={"limit": 1}).json()["items"]

    def _made(self, what: str, wanted: object) -> Any:
        answer = self.admin.post(f"/v1/{what}", json=wanted)
        assert answer.is_success, answer.text
        return answer.json()["id"]

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"
