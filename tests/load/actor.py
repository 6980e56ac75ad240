"""Life of one simulated device: it enrols, then polls, reports and sleeps repeatedly."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timezone

from gateway.common.domain.retry import longest_pause_s
from gateway.common.trust.distrust import Distrust
from tests.load.casting import Behaviour, Character
from tests.load.conversation import Conversation, refuse
from tests.load.device import SimulatedDevice
from tests.load.enrolling import SimulatedEnrolment, admitted, apply
from tests.load.identities import SimulatedIdentity
from tests.load.line import DeviceHttpClient, LostError
from tests.load.settings import Settings
from tests.load.stage import Stage, TurnedAwayError
from tests.load.wire import device_context

JSON = (("Content-Type", "application/json"),)
WANTED = b'{"tags": ["simulated"]}'
"""Tags that tokens made here give to devices, so that a query can select or exclude them."""
SAID_CHARS = 200


class Actor:
    """Task of one device. `run` lasts until the simulation stops."""

    def __init__(self, character: Character, stage: Stage) -> None:
        self.device = SimulatedDevice(character, stage.boot_epoch)
        self._character, self._stage, self._tally = character, stage, stage.tally
        self._chance = random.Random(f"{stage.settings.seed} {character.number}")
        self._conversation: Conversation | None = None
        self._application: SimulatedEnrolment | None = None
        self._failures, self._replica = 0, character.number

    async def run(self) -> None:
        """Run the device. A silent device ends once something was offered to it."""
        try:
            while not self._stage.stopping.is_set():
                await self._cycle()
                if self.device.part is Behaviour.SILENT and self.device.slots:
                    self._tally.states[self._character.number] = "silent"
                    break
                await self._stage.pause(self._pause_s())
        except TurnedAwayError:
            self._tally.states[self._character.number] = "turned away"
        finally:
            self._hang_up()

    def identity(self) -> SimulatedIdentity | None:
        """Return the identity to continue with in a later simulation, or None before enrolment."""
        if self._conversation is None:
            return None
        found = {name: slot.committed for name, slot in self.device.slots.items() if slot.committed}
        committed = {name: [target.path, target.size_bytes, target.sha256] for name, target in found.items()}
        return replace(self._conversation.identity, committed=committed)

    async def _cycle(self) -> None:
        """Run one cycle. Failures are counted and retried later."""
        self._failures += 1
        try:
            self._conversation = self._conversation or await self._begun()
            self._conversation.retry_after_s = 0.0
            await self._conversation.cycle()
            self._failures = 0
        except LostError:
            self._hang_up()
        except Distrust as error:
            self._tally.distrusted += 1
            self._tally.failed("distrust", str(error)[:SAID_CHARS])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._tally.failed("answer of another form", f"{type(error).__name__}: {error!s}"[:SAID_CHARS])

    async def _begun(self) -> Conversation:
        stage, number = self._stage, self._character.number
        identity = stage.known.get(self._character.name) or await self._enrolled()
        context = None
        if stage.anonymous is not None:
            context = device_context(stage.authority, identity.identity.encode())
        self.device.name = identity.device
        self.device.restore(identity.committed, datetime.now(timezone.utc))
        self._tally.states[number] = "committed" if identity.committed else "enrolled"
        line = DeviceHttpClient(
            stage.servers, stage.tally, number, context, at=self._replica, resume=stage.settings.resume
        )
        return Conversation(self.device, identity, line, stage)

    async def _enrolled(self) -> SimulatedIdentity:
        stage = self._stage
        async with stage.gate:
            line = DeviceHttpClient(
                stage.servers, stage.tally, self._character.number, stage.anonymous, at=self._replica
            )
            try:
                self._application = self._application or apply(self._character.name, await self._token(line))
                answer = await line.ask("enrol", "POST", "/v1/enrol", self._application.content, JSON)
            finally:
                line.close()
                self._replica = line.at
        refuse(answer)
        identity, root = admitted(self._application, answer.body)
        stage.belief.pin(root)
        return identity

    async def _token(self, line: DeviceHttpClient) -> str:
        if not self._stage.operator:
            return self._stage.token()
        headers = (*JSON, ("Authorization", f"Bearer {self._stage.operator}"))
        answer = await line.ask("token", "POST", "/v1/enrolments", WANTED, headers)
        refuse(answer)
        return str(json.loads(answer.body)["token"])

    def _hang_up(self) -> None:
        if self._conversation is not None:
            self._conversation.line.close()

    def _pause_s(self) -> float:
        if self._conversation is None:
            return pause_s(self._stage.settings, None, self._failures, 0.0, self._chance.random())
        assignment, talk = self.device.assignment, self._conversation
        told_s = (assignment.poll_s if assignment else None) or talk.identity.poll_s
        return pause_s(self._stage.settings, told_s, self._failures, talk.retry_after_s, self._chance.random())


def pause_s(settings: Settings, told_s: float | None, failures: int, least_s: float, chance: float) -> float:
    """Return the time until the next poll, as agents compute it.

    `told_s`: the interval from the controller, None before enrolment. `least_s`: the Retry-After of a refusal.
    `chance`: a new random number in 0..1.
    """
    base_s = settings.retry_s if told_s is None else told_s
    if settings.poll_s is not None and told_s is not None:
        base_s = settings.poll_s
    if failures:
        base_s = longest_pause_s(failures, settings.retry_s, base_s)
    jitter = 1.0 + (2.0 * chance - 1.0) * settings.jitter_percent / 100.0
    return max(base_s * jitter, least_s)
