"""Connections of the agent: a poll and the reports after it are one TLS handshake.

Telemetry survives what the controller does to the connection in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import DirectorSettings
from fleet.controller.database import telemetry
from gateway.common.wire.connection import BoundedConnection
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch import certificate
from gateway.device.agent.fetch.certificate import read_held
from gateway.device.agent.report import reporting
from gateway.device.agent.report.reporting import report
from gateway.device.agent.update import work
from gateway.device.store.spool import Spool
from tests.simulators.asking import enrolment_token
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.enrolled_device import CONFIG, DEVICE, Daemon, Device
from tests.simulators.operator import until

TELEMETRY = b"POST /v1/self/telemetry"
Cut = Callable[[BoundedConnection], None]


class Watched:
    """Controller whose connections are counted and cut.

    `shown`: serials of the certificates that came with them; `cut`: what happens to the next one that brings telemetry.
    """

    def __init__(self, controller: RunningController, device: Device) -> None:
        self.controller, self.device = controller, device
        self.made: list[BoundedConnection] = []
        self.shown: list[str] = []
        self.cut: Cut | None = None

    def handshakes(self) -> int:
        """Return the number of handshakes since the last call."""
        count, self.made[:] = len(self.made), []
        return count

    def brings(self, connection: BoundedConnection, data: bytes) -> None:
        if self.cut and data.startswith(TELEMETRY):
            cut, self.cut = self.cut, None
            cut(connection)

    def is_told(self, rows: int) -> None:
        """Check that all rows are there once, and no more wait."""
        with self.controller.control.database.read() as connection:
            (vitals,) = [one for one in telemetry.sources(connection, DEVICE) if one.stream == "vitals"]
        assert (vitals.rows, vitals.contiguous, vitals.gaps, vitals.lost) == (rows, rows, (), 0)
        spool = Spool.open(self.device.folder, reporting.boot_in(self.device.folder), self.controller.clock())
        assert spool.usage().records == 0
        spool.close()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    daemon = Daemon()
    for room in (work, reporting):
        monkeypatch.setattr(room, "DaemonClient", lambda _settings: daemon)
    config = FleetConfig(director=settings_with(DirectorSettings(), published_every_s=0.0))
    with controlling(tmp_path / "fleet", config) as controller:
        token, folder = enrolment_token(controller, DEVICE), tmp_path / "device"
        application = EnrolmentInput(controller.url, token, authority=controller.ca_file.read_text())
        device = Device(None, folder, enrol(application, folder, CONFIG), daemon)  # type: ignore[arg-type]
        found = Watched(controller, device)
        made, received = BoundedConnection.connection_made, BoundedConnection.data_received

        def connection_made(connection: BoundedConnection, transport: object) -> None:
            made(connection, transport)  # type: ignore[arg-type]
            found.made.append(connection)
            shown = connection.transport.get_extra_info("peercert")["serialNumber"]
            found.shown.append(f"{int(shown, 16):x}")

        def data_received(connection: BoundedConnection, data: bytes) -> None:
            found.brings(connection, data)
            received(connection, data)

        monkeypatch.setattr(BoundedConnection, "connection_made", connection_made)
        monkeypatch.setattr(BoundedConnection, "data_received", data_received)
        yield found


def test_a_turn_makes_one_handshake(watched: Watched) -> None:
    for rows in (1, 2):
        assert watched.device.turn() == ""
        assert watched.handshakes() == 1
        watched.is_told(rows)


def test_a_connection_that_was_closed_between_question_and_telling_is_made_anew(watched: Watched) -> None:
    with watched.device.asked() as connections:
        (kept,) = watched.made
        kept.loop.call_soon_threadsafe(kept.transport.close)
        until(kept.lost.is_set, "the connection is still open")
        assert report(watched.device.folder, CONFIG, watched.device.identity, connections) == ""
    assert watched.handshakes() == 2
    watched.is_told(1)


def unheard(connection: BoundedConnection) -> None:
    """Close the connection at the controller just as the request comes."""
    connection.transport.abort()


def unanswered(connection: BoundedConnection) -> None:
    """Let the controller take the request, and lose its answer."""
    transport = connection.transport
    transport.write = lambda _data: transport.abort()  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", [unheard, unanswered])
def test_what_is_told_on_a_connection_that_breaks_is_told_once_more_and_stored_once(watched: Watched, cut: Cut) -> None:
    watched.cut = cut
    assert watched.device.turn() == ""
    assert (watched.cut, watched.handshakes()) == (None, 2)
    watched.is_told(1)
    assert watched.device.turn() == ""
    assert watched.handshakes() == 1
    watched.is_told(2)


def test_a_certificate_that_is_renewed_is_shown_at_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "RENEW_AT_SHARE", 0.0)
    before = read_held(watched.device.folder)
    assert watched.device.turn() == ""
    after = read_held(watched.device.folder)
    assert before
    assert after
    assert watched.shown == [before.serial, after.serial]
