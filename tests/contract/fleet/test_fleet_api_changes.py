"""The stream of changes over HTTP: what comes, how it is resumed, who is refused, and how it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control.rollouts_record import new_fact
from fleet.controller.control.settings import ChangesSettings
from fleet.controller.database import alerts, changes, events, rollouts
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.events import Event
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import Created
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.following import following
from tests.simulators.operator import until

pytestmark = pytest.mark.timeout(180)
QUICK = settings_with(ChangesSettings(), read_every_s=0.05, heartbeat_s=0.2, streams_per_caller=2, streams_limit=3)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("fleet"), replace(FleetConfig(), changes=QUICK)) as running:
        running.enrolled("camera", tags=["pilot"])
        running.enrolled("other", tags=["lobby"])
        yield running


def happens(fleet: RunningController, key: str, device: str = "camera") -> None:
    settings, now = fleet.control.database.settings, fleet.clock()
    with fleet.control.database.write() as connection:
        events.record(connection, [Event(device, key, now, "rollback", "reader")], now, settings)


@contextmanager
def happening(fleet: RunningController) -> Iterator[None]:
    """Record one event after the other on `camera`, faster than heartbeats come."""
    ended, count = threading.Event(), itertools.count()

    def record() -> None:
        while not ended.wait(QUICK.read_every_s):
            happens(fleet, f"on and on {next(count)}")

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_what_happens_comes_as_lists_show_it(fleet: RunningController) -> None:
    control, now = fleet.control, fleet.clock()
    with fleet.client(Role.VIEWER) as viewer, following(viewer) as stream:
        begin = stream.next()
        happens(fleet, "shown")
        event = stream.next("device.event")
        with control.database.write() as connection:
            alerts.put(connection, [Alert("a1", "silent", "camera", "", AlertState.OPEN, now, now, now)], tell=False)
        opened = stream.next("alert.opened")
        with control.database.write() as connection:
            spec = {"query": "all"}
            rollouts.create(connection, StoredRollout("r1", "n", "reader", "t", "draft", spec, now, "ann"))
            rollouts.record(connection, "r1", [new_fact(now, Created("r1", "ann"))], control.database.settings)
        fact = stream.next("rollout.fact")
        assert event.data == viewer.get("/v1/events?limit=1").json()["items"][0]
        assert opened.data == viewer.get("/v1/alerts?limit=1").json()["items"][0]
        assert fact.data["event"] == {"kind": "created", "rollout": "r1", "by": "ann"}
    assert (begin.event, begin.data["id"], stream.retry_ms) == ("position", begin.id, 3000)
    headers = stream.answer.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["cache-control"], headers["x-accel-buffering"], "etag" in headers) == ("no-store", "no", False)


@pytest.mark.parametrize("in_header", [True, False])
def test_a_reader_that_was_away_goes_on_where_it_was(fleet: RunningController, in_header: bool) -> None:
    with fleet.client(Role.VIEWER) as viewer:
        with following(viewer) as stream:
            stream.next()
            happens(fleet, f"first {in_header}")
            seen = stream.next("device.event")
        happens(fleet, f"second {in_header}")
        happens(fleet, f"third {in_header}")
        query, last_id = ("?after=0&follow=false", seen.id) if in_header else (f"?after={seen.id}&follow=false", "")
        with following(viewer, query, last_id) as stream:
            found = [message.data["id"] for message in stream if message.event == "device.event"]
    assert found == [seen.data["id"] + 1, seen.data["id"] + 2]


def test_streams_that_are_behind_and_streams_that_are_not_get_the_same(tmp_path: Path) -> None:
    """Some find in memory what others read from the database."""
    small = settings_with(QUICK, recent_changes=3, page_changes=2)
    with controlling(tmp_path, replace(FleetConfig(), changes=small)) as running:
        running.enrolled("camera")
        with running.client(Role.VIEWER) as viewer, following(viewer) as live:
            live.next()
            for number in range(20):
                happens(running, str(number))
            with following(viewer, "?after=0") as late:
                found = [[stream.next("device.event").data["id"] for _ in range(20)] for stream in (live, late)]
    assert found == [[*range(1, 21)]] * 2


def test_where_nothing_is_for_a_reader_its_position_moves(fleet: RunningController) -> None:
    """Else it would be too old one day."""
    with fleet.client(Role.VIEWER, tags=["lobby"]) as viewer, following(viewer) as stream:
        begin = stream.next()
        with happening(fleet):
            moved = stream.next()
        happens(fleet, "for it", device="other")
        assert (moved.event, stream.next("device.event").data["device"]) == ("position", "other")
    assert int(moved.id) > int(begin.id)


def test_a_stream_without_news_is_alive(fleet: RunningController) -> None:
    with fleet.client(Role.VIEWER) as viewer, following(viewer) as stream:
        lines = iter(stream.answer.iter_lines())
        assert [line for line in (next(lines) for _ in range(7)) if line.startswith(":")] == [": heartbeat"]


def test_filters(fleet: RunningController) -> None:
    with fleet.client(Role.VIEWER) as viewer:
        begin = _position(fleet)
        happens(fleet, "filtered")
        happens(fleet, "filtered", device="other")
        for query, devices in (
            ("", ["camera", "other"]),
            ("&device=other", ["other"]),
            ("&query=tag%3Dpilot", ["camera"]),
            ("&kind=alert.opened", []),
            ("&kind=alert.opened&kind=device.event", ["camera", "other"]),
            ("&rollout=r9", []),
        ):
            with following(viewer, f"?follow=false&after={begin}{query}") as stream:
                assert [one.data["device"] for one in stream if one.event == "device.event"] == devices, query


def _position(fleet: RunningController) -> str:
    return str(fleet.control.subscriptions.feed.now())


@pytest.mark.parametrize(
    "query", ["?after=x", "?after=1.2.3", "?kind=odd", "?kind=gap", "?query=nonsense%20(", "?follow=odd"]
)
def test_what_is_wrong_is_refused(fleet: RunningController, query: str) -> None:
    with fleet.client(Role.VIEWER) as viewer:
        assert viewer.get(f"/v1/changes{query}").status_code == 400


def test_what_is_lost_is_said(fleet: RunningController) -> None:
    happens(fleet, "to be swept")
    happens(fleet, "newest")
    old = _position(fleet)
    with fleet.control.database.write() as connection:
        changes.sweep(connection, fleet.clock() + timedelta(days=99), fleet.control.database.settings)
    happens(fleet, "newer")
    with fleet.client(Role.VIEWER) as viewer, following(viewer, "?follow=false", "1") as stream:
        stream.next()
        gap, rest = stream.next(), [message.event for message in stream]
    assert (gap.event, gap.data["after"], int(gap.id)) == ("gap", "1", int(old) - 1)
    assert "/v1/events" in gap.data["detail"]
    assert rest == ["device.event", "device.event"]


def test_what_a_change_referred_to_is_lost(fleet: RunningController) -> None:
    begin = _position(fleet)
    happens(fleet, "to be deleted")
    with fleet.control.database.write() as connection:
        deleted = events.page(connection, fleet.control.database.settings, limit_rows=1)[0]
        connection.execute(sa.text("DELETE FROM events WHERE id = :id"), {"id": deleted.id})
    with fleet.client(Role.VIEWER) as viewer, following(viewer, f"?follow=false&after={begin}") as stream:
        stream.next()
        gap, rest = stream.next(), [message.event for message in stream]
    assert (gap.event, gap.data["after"], gap.data["id"], rest) == ("gap", begin, _position(fleet), [])


def test_a_token_that_is_revoked_reads_no_further(fleet: RunningController) -> None:
    token = fleet.token(Role.VIEWER, name="leaver")
    with fleet.client(token=token) as viewer, fleet.client() as admin, following(viewer) as stream:
        stream.next()
        (number,) = [one["id"] for one in admin.get("/v1/tokens?limit=1000").json()["items"] if one["name"] == "leaver"]
        assert admin.delete(f"/v1/tokens/{number}").is_success
        assert [message for message in stream if message.event != "position"] == []
        assert viewer.get("/v1/changes").status_code == 401


def test_so_many_streams_of_a_caller_and_of_all(fleet: RunningController) -> None:
    until(lambda: not len(fleet.control.subscriptions), "streams of other tests are open")
    with ExitStack() as stack:
        one, other = (stack.enter_context(fleet.client(Role.VIEWER)) for _ in range(2))
        opened = [stack.enter_context(following(one)) for _ in range(2)]
        refused = one.get("/v1/changes")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
        stack.enter_context(following(other))
        full = other.get("/v1/changes")
        assert (full.status_code, full.headers["retry-after"]) == (503, "30")
        opened[0].answer.close()
        until(lambda: len(fleet.control.subscriptions) == 2, "the place of a stream that ended is not free")
        stack.enter_context(following(one)).next()


def test_streams_end_where_the_controller_stops(tmp_path: Path) -> None:
    """Within the grace for requests, which is long; none is cut off."""
    found: list[str] = []
    with controlling(tmp_path, replace(FleetConfig(), changes=QUICK)) as running, ExitStack() as stack:
        stream = stack.enter_context(following(stack.enter_context(running.client(Role.VIEWER))))
        stream.next()
        reading = threading.Thread(target=lambda: found.extend(message.event for message in stream))
        reading.start()
        running.control.subscriptions.stop()
        reading.join(20)
        assert not reading.is_alive()
    assert set(found) <= {"position"}


def test_a_reader_that_takes_nothing_is_left(tmp_path: Path) -> None:
    """Memory for a reader is bounded by the connection's buffers; its place is free again."""
    serve = replace(FleetConfig().serve, write_timeout_s=0.5)
    with controlling(tmp_path, replace(FleetConfig(), changes=QUICK, serve=serve)) as running:
        running.enrolled("camera")
        settings, now = running.control.database.settings, running.clock()
        with running.control.database.write() as connection:
            large = [Event("camera", str(n), now, "x", document={"text": "x" * 60_000}) for n in range(400)]
            events.record(connection, large, now, settings)
        with running.client(Role.VIEWER) as viewer, following(viewer, "?after=0"):
            until(lambda: len(running.control.subscriptions) == 1, "the stream is not open")
            until(lambda: len(running.control.subscriptions) == 0, "a reader that takes nothing keeps its stream")


def test_devices_are_refused(fleet: RunningController) -> None:
    with fleet.client(None) as anonymous, fleet.device_client(fleet.enrolled("camera-2")) as device:
        assert anonymous.get("/v1/changes").status_code == 401
        assert device.get("/v1/changes").status_code == 403
