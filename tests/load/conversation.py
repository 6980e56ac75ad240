"""Communication of an enrolled simulated device with its controller."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone

from gateway.common.domain.assignment import Target
from gateway.common.trust.targets import check_document
from tests.load.casting import Behaviour, inventory
from tests.load.device import SimulatedDevice
from tests.load.identities import SimulatedIdentity
from tests.load.line import DeviceHttpClient, Headers, LostError
from tests.load.spool import TelemetryLine, body
from tests.load.stage import Stage, TurnedAwayError
from tests.load.wire import Response

PACKED = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
LINES = (("Content-Type", "application/x-ndjson"), ("Content-Encoding", "gzip"))
TELEMETRY = "/v1/self/telemetry"
POISON = frozenset({400, 413, 422})
"""Statuses by which the controller refuses rows permanently."""
SHRINK = 4
"""Factor by which a batch shrinks then, until the refused row is found."""
OLD_NONCE = "bm9uY2Utb2YteWVzdGVyZGF5"


class Conversation:
    """Requests of one device.

    Methods raise LostError for temporary and TurnedAwayError for permanent refusals, Distrust for invalid signatures,
    and ValueError, KeyError or TypeError for responses of another form. `retry_after_s`: the controller's Retry-After
    since this was last set to 0.
    """

    def __init__(
        self, device: SimulatedDevice, identity: SimulatedIdentity, line: DeviceHttpClient, stage: Stage
    ) -> None:
        self.device, self.identity, self.line = device, identity, line
        self.retry_after_s = 0.0
        self._stage, self._settings, self._tally = stage, stage.settings, stage.tally
        self._number = device.character.number
        self._described = False
        self._old = b""
        self._ended: dict[str, str] = {}
        self._offered_at_s: dict[str, float] = {}

    async def cycle(self) -> None:
        """Poll and report once, then perform the updates that were offered."""
        async with self._stage.gate:
            if not self._described:
                await self._describe()
            await self._poll()
            await self._tell()
            self._hang_up()
        if self.device.part is not Behaviour.SILENT:
            for slot in self.device.due():
                await self._update(slot)
        if self.device.part is Behaviour.FLOODING:
            await self._flood()

    def _hang_up(self) -> None:
        if not self._settings.keep_alive:
            self.line.close()

    # ---- assignments -------------------------------------------------------------------------------------------------
    async def _describe(self) -> None:
        content = gzip.compress(json.dumps(inventory(self.device.character)).encode(), mtime=0)
        await self._request("inventory", "PUT", "/v1/self/inventory", content, PACKED)
        self._described = True

    async def _poll(self) -> None:
        device, path = self.device, self.identity.assignment
        if self._settings.refresh:
            await self._read(f"metadata/{self._stage.belief.root_version + 1}.root.json")
            await self._read("metadata/timestamp.json")
        if device.part is Behaviour.REPLAYING:
            path += f"?nonce={OLD_NONCE}"
        known = (("If-None-Match", device.etag),) if device.etag else ()
        answer = await self._request("assignment", "GET", path, b"", known)
        device.polls += 1
        if answer.status == 200:
            await self._heed(answer)

    async def _heed(self, answer: Response) -> None:
        device, now = self.device, datetime.now(timezone.utc)
        assignment = await self._stage.belief.assignment(device, answer.body, now, self._read)
        device.believe(assignment, answer.body, answer.headers.get("etag", ""), now)
        for slot in device.due():
            self._offered_at_s[slot] = self._stage.at_s
            self._tally.offered(self._number, self._stage.at_s)
        if assignment.extra.get("diagnostics"):
            await self._diagnose()

    async def _diagnose(self) -> None:
        answer = await self._request("diagnostics", "GET", "/v1/self/diagnostics")
        for asked in json.loads(answer.body)["requests"]:
            told = {"id": asked["id"], "answer": dict.fromkeys(asked["wanted"], "simulated")}
            content = gzip.compress(json.dumps(told).encode())
            await self._request("diagnostics", "POST", "/v1/self/diagnostics", content, PACKED)

    async def _update(self, name: str) -> None:
        """Perform an update to its outcome. It continues where an exchange failed before."""
        slot = self.device.slots[name]
        if slot.state != "probation":
            async with self._stage.gate:
                await self._step(name, "downloading")
                check_document((await self._read(_file(slot.target))).body, slot.target)
                self._hang_up()
            await self._stage.pause(self._settings.download_s)
            async with self._stage.gate:
                await self._step(name, "probation")
                self._hang_up()
        await self._stage.pause(self._settings.probation_s)
        async with self._stage.gate:
            self._ended[name] = self.device.verdict
            await self._step(name, self.device.verdict)
            self._hang_up()

    async def _step(self, name: str, state: str) -> None:
        self.device.step(name, state, datetime.now(timezone.utc))
        self._tally.states[self._number] = state
        await self._send()

    async def _read(self, path: str) -> Response:
        """Read a file of the repository through this controller. 404 is a valid response."""
        return await self.line.ask("repository", "GET", f"{self.identity.repository}/{path}")

    # ---- reports -----------------------------------------------------------------------------------------------------
    async def _tell(self) -> None:
        device, now = self.device, datetime.now(timezone.utc)
        device.tell_state(now)
        if not self._settings.quiet and len(device.spool) < self._settings.spool_limit_rows:
            device.tell_numbers(now)
        if device.part is Behaviour.REPLAYING and self._old:
            await self._request("telemetry", "POST", TELEMETRY, self._old, LINES)
        await self._send()

    async def _flood(self) -> None:
        """Send too much telemetry. A refusal does not stop the device; unacknowledged rows remain."""
        async with self._stage.gate:
            with suppress(LostError):
                for _ in range(self._settings.flood_batches):
                    while len(self.device.spool) < self._settings.batch_rows:
                        self.device.tell_numbers(datetime.now(timezone.utc))
                    await self._send()
            self._hang_up()

    async def _send(self) -> None:
        """Send all waiting records as far as the controller accepts them."""
        rows, spool = self._settings.batch_rows, self.device.spool
        while batch := spool.batch(rows):
            content = body(batch)
            answer = await self.line.ask("telemetry", "POST", TELEMETRY, content, LINES)
            if answer.status in POISON:
                rows = self._fewer(batch)
                continue
            self._check(answer)
            gone = spool.acknowledged(json.loads(answer.body))
            self._tally.rows += gone
            self._old = self._old or content
            if not gone:
                self._tally.failed("telemetry", "nothing was acknowledged")
                return
        self._confirm()

    def _confirm(self) -> None:
        """Count the updates that ended: the controller has received their reports."""
        for name, state in self._ended.items():
            took_s = self._stage.at_s - self._offered_at_s.get(name, self._stage.at_s)
            self._tally.ended(self._number, state, self._stage.at_s, took_s)
        self._ended.clear()

    def _fewer(self, batch: Sequence[TelemetryLine]) -> int:
        if len(batch) > 1:
            return max(1, len(batch) // SHRINK)
        self.device.spool.drop(batch)
        self._tally.failed("telemetry", "a row was refused permanently")
        return 1

    # ---- requests ----------------------------------------------------------------------------------------------------
    async def _request(
        self, what: str, method: str, path: str, content: bytes = b"", headers: Headers = ()
    ) -> Response:
        answer = await self.line.ask(what, method, path, content, headers)
        self._check(answer)
        return answer

    def _check(self, answer: Response) -> None:
        self.retry_after_s = max(self.retry_after_s, answer.retry_after_s)
        refuse(answer)


def refuse(answer: Response) -> None:
    """Raise TurnedAwayError or LostError if the status is an error."""
    if answer.status in {401, 403}:
        raise TurnedAwayError
    if answer.status >= 400:
        raise LostError


def _file(target: Target) -> str:
    folder, _, name = target.path.rpartition("/")
    return f"targets/{folder}/{target.sha256}.{name}"
