"""Servers that stall, cut off, lie, refuse and redirect in circles.

The device goes on with what it has, says why, and is in step as soon as the server is well.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.simulators.bad_server import Behaviour, answer, cut, endless, serve, silence, trickle
from tests.simulators.fleet_device import SETTINGS, FleetDevice, fleet_device
from tests.simulators.hammer import Hammer

HASTE = {"read_timeout_s": 0.4, "document_deadline_s": 0.8, "blob_deadline_s": 0.8, "minimum_rate_window_s": 0.3}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[FleetDevice]:
    """Yield a device in which version 1 serves."""
    with fleet_device(tmp_path_factory.mktemp("device"), state) as made:
        made.configure(fetch={**SETTINGS["fetch"], **HASTE})
        yield made


@pytest.fixture(autouse=True)
def hammer(device: FleetDevice) -> Iterator[Hammer]:
    """Send requests throughout; none of them may fail."""
    with device.hammered() as hammer:
        yield hammer


LONGER = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
FAULTS: dict[str, Behaviour] = {
    "stalls at a byte per second": trickle(LONGER, 1.0),
    "says nothing": silence,
    "cuts off": cut(b"x" * 100_000, 10),
    "says less than it sends": lambda exchange: exchange.raw(LONGER.replace(b"1000000", b"1") + b"x" * 1000),
    "sends without end": endless(b"HTTP/1.1 200 OK\r\n\r\n"),
    "404": answer("404 Not Found"),
    "416": answer("416 Range Not Satisfiable"),
    "500": answer("500 Internal Server Error"),
    "redirects in circles": lambda exchange: answer("302 Found", f"Location: {exchange.path}")(exchange),
    "sends something else": serve(b"<html>please log in to this network</html>"),
}
PLACES = ("metadata/timestamp", "assignments/", "blobs/")


CASES = [(fault, place) for fault in FAULTS for place in PLACES]


@pytest.fixture(scope="module")
def coming(device: FleetDevice) -> str:
    """Return a version that is assigned, and of which nothing is here yet."""
    target = device.publish()
    device.assign(target)
    return target


def changes_nothing(device: FleetDevice, fault: str, place: str) -> None:
    before = device.serving
    device.server.ill = {place: FAULTS[fault]}
    try:
        done = device.sync()
    finally:
        device.server.ill = {}
    state, why = done.told["state"], done.told["why"]
    assert (done.code, state) in {(1, "refused"), (3, "unreachable"), (3, "waiting")}, why
    assert "127.0.0.1" in why or "the assignment for door-1" in why
    assert done.told["slots"]["meter-reader"]["committed"]["version"] == "1"
    assert device.serving == before


@pytest.mark.parametrize(("fault", "place"), [case for at, case in enumerate(CASES) if at % 7 == 0])
def test_a_bad_server_changes_nothing(device: FleetDevice, coming: str, fault: str, place: str) -> None:
    assert coming
    changes_nothing(device, fault, place)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "place"), [case for at, case in enumerate(CASES) if at % 7])
def test_a_bad_server_changes_nothing_anywhere(device: FleetDevice, coming: str, fault: str, place: str) -> None:
    assert coming
    changes_nothing(device, fault, place)


def test_a_server_that_is_gone_and_comes_back(device: FleetDevice, coming: str) -> None:
    device.server.ill = {"": lambda exchange: None}
    before = device.serving
    done = device.sync()
    assert (done.code, done.told["state"], device.serving) == (3, "unreachable", before)
    device.server.ill = {}
    done = device.sync()
    assert (done.code, done.told["slots"]["meter-reader"]["committed"]["target"]) == (0, coming)


def test_what_is_there_already_is_not_fetched_again(device: FleetDevice) -> None:
    asked = len(device.server.asked)
    assert device.sync().code == 0
    fetched = [path.partition("?")[0] for path in device.server.asked[asked:]]
    assert fetched == ["/metadata/2.root.json", "/metadata/timestamp.json", "/assignments/door-1.json"]


def test_documents_that_have_expired(device: FleetDevice) -> None:
    device.assign(
        device.publish(), expires=datetime.now(UTC) - timedelta(hours=1), issued=datetime(2026, 1, 1, tzinfo=UTC)
    )
    done = device.sync()
    assert (done.code, done.told["last_poll"]["reason"]) == (1, "wrong-time")  # it would have held for months
    now = datetime.now(UTC)
    device.assign(device.publish(), issued=now - timedelta(hours=25), expires=now - timedelta(hours=1))
    done = device.sync()
    assert (done.code, done.told["last_poll"]["reason"], done.told["state"]) == (1, "expired", "refused")
    device.assign(f"models/acme/meter-reader/{device.newest}/release")
    assert device.sync().code == 0


@pytest.mark.long
def test_metadata_that_has_expired_or_comes_from_the_future(device: FleetDevice) -> None:
    assert device.update().code == 0
    before, now = device.serving, device.repository.now
    device.repository.now = now - timedelta(days=20)
    device.repository.publish()
    done = device.sync()
    assert (done.code, done.told["last_poll"]["reason"]) == (1, "expired")
    assert device.serving == before
    device.repository.now = now + timedelta(days=300)
    device.repository.publish()
    device.assign(f"models/acme/meter-reader/{device.newest}/release")
    done = device.sync()
    assert done.code == 0, done.told["why"]  # whose clock is wrong is not known; it is signed, newer, and holds
    assert device.serving == before
    device.repository.now = now
    device.repository.publish()
    device.assign(device.publish())
    assert device.sync().code == 0
