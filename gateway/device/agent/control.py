"""Client of the daemon's control socket, one request at a time."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.common.domain.activation import Activation, activation_document
from gateway.common.domain.errors import UnreachableError
from gateway.common.unix_http import UnixConnection
from gateway.device.agent.answers import AnswerObject, plain, read_answer
from gateway.device.agent.settings import ControlClientSettings

Document = dict[str, Any]
PASSING = frozenset({http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.SERVICE_UNAVAILABLE})
"""Status codes of temporary conditions."""


class DaemonRefusedError(Exception):
    """Refusal by the daemon. `fault` is the kind, the text is the reason."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(detail)
        self.fault, self.detail = fault, detail


class DaemonClient:
    """Client of the daemon.

    Every method raises UnreachableError if the daemon does not answer or cannot do it now, and RefusedError if it
    refuses.
    """

    def __init__(self, settings: ControlClientSettings) -> None:
        self._settings = settings

    def status(self) -> Document:
        """Return the daemon process (`instance`, `rss_bytes`) and its model versions."""
        return self._ask("GET", "/v1/status")

    def vitals(self) -> Document:
        """Return temperature, power and memory."""
        return self._ask("GET", "/v1/vitals")

    def inventory(self) -> Document:
        """Return the hardware of the device."""
        return self._ask("GET", "/v1/inventory")

    def statistics(self, slot: str) -> dict[str, Document]:
        """Return counters of a slot's versions, by version; empty if the daemon does not know the slot."""
        answer = self._ask("GET", f"/v1/statistics?model={quote(slot)}")
        return {entry["version"]: entry for entry in answer["models"]}

    def all_statistics(self) -> list[Document]:
        """Return the counters of all versions of all models."""
        return list(self._ask("GET", "/v1/statistics")["models"])

    def settings(self) -> Document:
        """Return the settings of the fleet: in force, on trial, committed, and those that failed last."""
        return self._ask("GET", "/v1/settings")

    def try_settings(self, activation: Activation, within_s: float) -> None:
        """Let the daemon restart with these settings, and take them back unless they are confirmed in time."""
        body = {"activation": activation_document(activation), "within_s": within_s}
        self._ask("POST", "/v1/settings/trial", body, self._settings.load_timeout_s)

    def confirm_settings(self, release: str) -> None:
        """Let the daemon keep the settings that are on trial."""
        self._ask("POST", "/v1/settings/confirm", {"sha256": release})

    def revert_settings(self, release: str, reason: str) -> None:
        """Let the daemon restart without the settings that are on trial."""
        self._ask("POST", "/v1/settings/revert", {"sha256": release, "reason": reason})

    def plan(self, activation: Activation) -> list[Document]:
        """Return the variants of a release: those that this device can run, best first, and why not the others."""
        answer = self._ask("POST", "/v1/plan", activation_document(activation))
        return list(answer["candidates"])

    def load(self, activation: Activation) -> Document:
        """Verify, try and warm up a release. It answers no requests yet."""
        return self._ask(
            "POST", _model(activation.slot, "load"), activation_document(activation), self._settings.load_timeout_s
        )

    def route(self, slot: str, weights: Mapping[str, int], shadow: str = "", lease_s: float = 0.0) -> None:
        """Share the requests that name no version, in percent. `shadow` answers copies of requests, for comparison."""
        body = {"weights": dict(weights), "shadow": shadow, "lease_s": lease_s}
        self._ask("PUT", _model(slot, "route"), body)

    def replay(self, slot: str, version: str) -> Document:
        """Run the golden set of a loaded version while no requests come. Return `rows`, `passed`, `reason`."""
        return self._ask("POST", _model(slot, "replay"), {"version": version}, self._settings.load_timeout_s)

    def unload(self, slot: str, version: str, drain_s: float) -> None:
        """Drain and free a version. No effect if it is not loaded."""
        body = {"version": version, "drain_s": drain_s}
        self._ask("POST", _model(slot, "unload"), body, self._settings.timeout_s + drain_s)

    def commit(self) -> Document:
        """Make the daemon read which releases are committed, and serve them."""
        return self._ask("POST", "/v1/commit", {}, self._settings.load_timeout_s)

    def _ask(self, method: str, path: str, body: Document | None = None, timeout_s: float | None = None) -> Document:
        settings = self._settings
        connection = UnixConnection(settings.socket, timeout_s or settings.timeout_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"} if body is not None else {})
            response = connection.getresponse()
            answer = response.read(settings.answer_limit_bytes)
            return _read(response.status, answer, response.length or 0)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise UnreachableError(
                f"the daemon does not answer on {settings.socket}: {error or type(error).__name__}; "
                "is edge-gateway.service running, and may this user open the socket? (EG-806)",
                table="control",
                key="socket",
            ) from error
        finally:
            connection.close()


def _model(slot: str, command: str) -> str:
    return f"/v1/models/{quote(slot)}/{command}"


def _read(status: int, content: bytes, missing_bytes: int) -> AnswerObject:
    """Return the document of an answer.

    Raise ValueError if it is not one: another program answered, or the daemon was killed meanwhile.
    """
    if missing_bytes:
        raise ValueError(f"{missing_bytes} bytes of its answer were not sent, or are more than are read")
    document = read_answer(content)
    if status >= http.HTTPStatus.BAD_REQUEST:
        fault, detail = plain(document.get("fault", status)), plain(document.get("detail", f"HTTP status {status}"))
        if status in PASSING:
            raise UnreachableError(f"the daemon cannot do it now: {detail}", table="control", key="socket")
        raise DaemonRefusedError(fault, detail)
    return document
