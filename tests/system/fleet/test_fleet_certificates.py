"""Certificates under load: devices renew them all the time, the device CA is replaced, and certificates expire.

Two replicas are restarted one by one as `fleet/README.md` says. Simulated devices renew as agents do; one is an agent.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.controller.database import certificates, telemetry
from gateway.device.agent.fetch.certificate import CA_FILE, read_held
from tests.simulators.authority import ca_of_the_guide
from tests.simulators.fleet_device import DEVICE, FleetDevice
from tests.simulators.member_device import PATIENT
from tests.simulators.played_fleet import Asked, Played, simulating
from tests.simulators.served_fleet import ServedFleet, answered, served_fleet, wait_until

PROGRAM, WAIT_S = "tests.simulators.renewing", 300.0
LIFE_S, POLL_S = 120.0, 2.0
TABLES = {
    "authority": {"validity_d": LIFE_S / 86_400, "backdate_s": 0.0},
    "director": {"poll_s": POLL_S, "published_every_s": 0.2},
    "scheduler": {"tick_s": 0.5},
    "database": {"lease_s": 2.0},
}


@dataclass
class Site:
    """Two replicas, simulated devices, and one agent."""

    fleet: ServedFleet
    played: Played
    device: FleetDevice
    names: list[str]

    @property
    def authority(self) -> Path:
        return self.fleet.ca_file.parent

    def restart(self) -> None:
        """Restart the replicas one by one."""
        for replica in self.fleet.replicas:
            assert replica.end() == 0
            replica.start()

    def renewed(self, step: str) -> None:
        """Wait until every device has a certificate that was issued after now."""
        since, began = datetime.now(UTC), time.monotonic()
        wait_until(lambda: all(self._issued(name) > since for name in self.names), WAIT_S, 0.5)
        print(f"{step}: all {len(self.names)} devices have renewed after {time.monotonic() - began:.0f} s")

    def _issued(self, name: str) -> datetime:
        with self.fleet.database.read() as connection:
            return max(one.issued for one in certificates.of_device(connection, name, self.fleet.database.settings))


def check_rows(site: Site) -> None:
    """Check that no row of telemetry is missing or was dropped, of any device."""
    with site.fleet.database.read() as connection:
        sources = [one for name in site.names for one in telemetry.sources(connection, name)]
    assert len(sources) >= 2 * len(site.names)
    assert all(one.gaps == () and one.lost == 0 and one.contiguous == one.rows for one in sources)


def enrolled(device: FleetDevice, fleet: ServedFleet) -> None:
    """Enrol the agent at the first replica, with a token for it."""
    made = answered(fleet.operator().post("/v1/enrolments", json={"device": DEVICE}))
    (device.folder / "token").write_text(made["token"])
    words = ("--token-file", str(device.folder / "token"), "--ca", str(fleet.ca_file))
    done = device.agent("enrol", fleet.replicas[0].url, *words)
    assert done.code == 0, done.err


@contextmanager
def renewing(folder: Path, state: Path, count: int) -> Iterator[Site]:
    """Run a site whose devices poll, report and renew."""
    device = FleetDevice(folder / "device", state)
    device.configure(fetch=PATIENT, telemetry={"retry_s": 1.0, "retry_limit_s": 2.0})
    shared = f"sqlite:///{folder}/shared.sqlite"
    with served_fleet(folder / "fleet", database=shared, replicas=2, tables=TABLES) as fleet, device.powered():
        for replica in fleet.replicas:
            replica.start()
        (folder / "tokens").write_text("\n".join(fleet.tokens(count)))
        urls = [replica.url for replica in fleet.replicas]
        asked = Asked(urls, fleet.ca_file, fleet.token, fleet.operator(), fleet.database)
        words = ("--tokens", str(folder / "tokens"), "--poll", str(POLL_S))
        with simulating(asked, folder, count, {}, *words, limit_s=WAIT_S, program=PROGRAM) as played:
            enrolled(device, fleet)
            with fleet.database.read() as connection:
                names = [name for (name,) in connection.exec_driver_sql("SELECT id FROM devices").all()]
            yield Site(fleet, played, device, names)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_another_device_ca_takes_over_and_no_device_notices(tmp_path: Path, state: Path) -> None:
    with renewing(tmp_path, state, 40) as site, site.device.started("run"):
        old = (site.authority / "ca.pem").read_bytes()
        ca_of_the_guide(site.authority)
        new, key = (site.authority / "new-ca.pem").read_bytes(), (site.authority / "new-ca.key").read_bytes()
        site.renewed("before")
        for step, pem in (("both are trusted", old + new), ("the new one signs", new + old), ("the old one goes", new)):
            if step == "the new one signs":
                (site.authority / "ca.key").write_bytes(key)
            (site.authority / "ca.pem").write_bytes(pem)
            site.restart()
            site.renewed(step)
        assert (site.device.store / CA_FILE).read_bytes().split() == new.split()
        found = site.played.stopped(60)
        print(
            f"renewals: {found['answers']['certificate']}; {site.fleet.cpu_s:.0f} s of processor time",
            found["problems"],
        )
        assert "turned away" not in found["states"]
        check_rows(site)
        assert site.device.status["controller"]["problem"] == ""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_device_whose_certificate_expired_says_so_and_keeps_what_it_has_to_tell(tmp_path: Path, state: Path) -> None:
    """No controller answered while it was to be renewed. Another token lets the device in, and nothing is lost."""
    with renewing(tmp_path, state, 4) as site:
        assert site.device.sync().code == 0
        for replica in site.fleet.replicas:
            replica.end(signal.SIGKILL)
        held = read_held(site.device.store)
        assert held
        wait_until(lambda: datetime.now(UTC) > held.expires, WAIT_S)
        for replica in site.fleet.replicas:
            replica.start()
        refused = site.device.sync()
        assert (refused.code, "this device's certificate expired at " in refused.err) == (3, True), refused.err
        enrolled(site.device, site.fleet)
        assert site.device.sync().code == 0
        check_rows(site)
