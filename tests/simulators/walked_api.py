"""Requests that a client can derive from the OpenAPI document: paths of existing objects, and valid bodies."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fleet.controller.database import desired
from fleet.controller.database.desired import Desired
from fleet.publisher import signing
from fleet.publisher.drafts import draft_bytes
from tests.simulators.asking import csr, new_key
from tests.simulators.controller import RunningController
from tests.simulators.fleet_http import Device
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, V2, document
from tests.simulators.uploading import OWNER_ROLE, signatures

TAG = "pilot"
"""Tag of all objects that `Ground` creates."""


@dataclass(frozen=True)
class Operation:
    """An operation of the OpenAPI document."""

    method: str
    path: str
    id: str
    body: Mapping[str, Any] | None
    public: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def asked(self, client: httpx.Client, path: str, content: Any) -> httpx.Response:
        """Send a request. `path`: of an existing object; `content`: text or JSON."""
        told = {"content": content} if isinstance(content, str) else {"json": content} if self.body else {}
        return client.request(self.method, path, **told)


def operations(controller: RunningController) -> list[Operation]:
    """Return all operations of the document."""
    with controller.client(None) as nobody:
        paths = nobody.get("/schema/openapi.json").json()["paths"]
    return [
        Operation(method.upper(), path, said["operationId"], said.get("requestBody"), said.get("security") == [])
        for path, item in paths.items()
        for method, said in item.items()
    ]


class Ground:
    """Factory of objects for requests. They are new each time, so that calls do not affect each other."""

    def __init__(self, controller: RunningController, admin: httpx.Client) -> None:
        self.controller, self.admin, self._numbers = controller, admin, itertools.count(1)
        self._content = ""
        controller.repository.add_release(SLOT, "2")
        until(lambda: admin.get("/v1/releases").json()["items"], "the release is not read")

    def device(self, tag: str = TAG) -> Device:
        """Return a new enrolled device."""
        return self.controller.enrolled(self._name("camera"), tags=[tag])

    def path(self, operation: Operation, device: str = "") -> str:
        """Return the path with an existing object for each parameter; `device`: use that one."""
        device = device or (self.device().certificate.device if "{device}" in operation.path else "")
        path = re.sub(r"{(\w+)}", lambda found: self._value(found[1], device), operation.path)
        return f"{path}?follow=false" if path == "/v1/changes" else path

    def _value(self, name: str, device: str) -> str:
        fixed = {"device": device, "owner": "acme", "model": SLOT, "version": "2", "stream": "vitals", "wave": "1"}
        makers: Mapping[str, Callable[[], Any]] = {
            "number": lambda: self.asked_for(device),
            "slot": lambda: self._assigned(device),
            "rollout": lambda: self._made("rollouts", document()),
            "enrolment_id": lambda: self._made("enrolments", {"tags": [TAG]}),
            "token": lambda: self._made("tokens", {"name": self._name("spare"), "role": "viewer"}),
            "kind": lambda: "conflict",
            "role": self._drafted,
            "digest": self._begun,
        }
        return fixed.get(name) or str(makers[name]())

    def _drafted(self) -> str:
        """Let a new draft wait. Return its role."""
        repository = self.controller.repository
        repository.workspace.save([signing.renew(repository.drafting(), OWNER_ROLE)])
        return OWNER_ROLE

    def _begun(self) -> str:
        """Begin the upload of a new file, whose content is the body of the next request. Return its digest."""
        self._content = self._name("content of file")
        digest = _digest(self._content)
        answer = self.admin.post("/v1/blobs", json={"digest": digest, "size_bytes": len(self._content)})
        assert answer.is_success, answer.text
        control = self.controller.control
        control.uploads.begin(digest, len(self._content), "a publisher", control.clock())  # each token has its own
        return digest

    def _signed(self) -> dict[str, Any]:
        """Return signatures of the draft that waits."""
        workspace = self.controller.repository.workspace
        return signatures(workspace.drafts()[OWNER_ROLE], *self.controller.repository.keys[OWNER_ROLE])

    def _draft(self) -> Any:
        """Return the draft of a new version, as an upload."""
        repository = self.controller.repository
        return json.loads(draft_bytes(signing.renew(repository.drafting(), OWNER_ROLE)))

    def asked_for(self, device: str) -> int:
        """Request diagnostics of the device. Return their number."""
        return int(self._made(f"devices/{device}/diagnostics", {}))

    def _assigned(self, device: str) -> str:
        """Return a slot in which the device is to run something."""
        wanted = Desired(device, SLOT, V2, "a" * 64, 1, "", self.controller.clock())
        with self.controller.control.database.write() as connection:
            desired.put(connection, [wanted], self.controller.control.database.settings)
        return SLOT

    def body(self, operation: Operation, device: str = "") -> Any:
        """Return a body with which the route succeeds. Raise KeyError if the body is not listed here.

        `device`: the calling device.
        """
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
            "post_v1_blobs": lambda: {"digest": _digest(self._name("file")), "size_bytes": 9},
            "patch_v1_blobs_digest": lambda: self._content,
            "put_v1_drafts_role": self._draft,
            "post_v1_drafts_role_signatures": self._signed,
            "post_v1_tokens": lambda: {"name": self._name("token"), "role": "viewer"},
            "put_v1_self_inventory": dict,
            "post_v1_self_telemetry": str,
            "post_v1_self_certificate": lambda: {"csr": csr(new_key())},
            "post_v1_self_diagnostics": lambda: {"id": self.asked_for(device) if device else 1, "answer": {}},
        }
        return bodies[operation.id]() if operation.id in bodies or operation.body["required"] else {}

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Check that the block changes nothing that the audit log records."""
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
