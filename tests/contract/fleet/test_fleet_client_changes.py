"""Changes as verbs follow them: over a restart of the controller, until a given time, and with a token that is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.cli.following import follow
from fleet.client.client import Access, Client, ClientSettings, ServerSentMessage
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import ChangesSettings
from fleet.controller.database import events
from fleet.controller.database.events import Event
from gateway.common.domain.errors import RequestError, UnreachableError
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling, free_port
from tests.simulators.fleet_repository import FleetRepository

pytestmark = pytest.mark.timeout(180)
CONFIG = replace(
    FleetConfig(), changes=settings_with(ChangesSettings(), read_every_s=0.05, heartbeat_s=0.2, reconnect_s=0.1)
)


def happens(running: RunningController, key: str) -> None:
    now, database = running.clock(), running.control.database
    with database.write() as connection:
        events.record(connection, [Event("camera", key, now, key)], now, database.settings)


def kinds(found: Iterator[ServerSentMessage], count: int) -> list[str]:
    events_alone = (message.data["kind"] for message in found if message.event == "device.event")
    return [next(events_alone) for _ in range(count)]


def asking(running: RunningController, token: str, settings: ClientSettings | None = None) -> Client:
    return Client(Access(running.url, token, str(running.ca_file)), settings)


def test_nothing_is_missed_while_the_controller_is_away(tmp_path: Path, capsys) -> None:
    repository, port = FleetRepository(tmp_path), free_port()
    with ExitStack() as first:
        running = first.enter_context(controlling(tmp_path, CONFIG, repository, port=port))
        running.enrolled("camera")
        found = follow(asking(running, running.token()), {})
        assert next(found).event == "position"
        happens(running, "before")
        assert kinds(found, 1) == ["before"]
        happens(running, "unseen")
    with controlling(tmp_path, CONFIG, repository, port=port) as running:
        happens(running, "after")
        assert kinds(found, 2) == ["unseen", "after"]
    found.close()
    assert "lost" not in capsys.readouterr().err


def test_a_controller_that_never_answered_is_not_waited_for() -> None:
    with pytest.raises(UnreachableError):
        next(follow(Client(Access(f"http://127.0.0.1:{free_port()}", "eft_x")), {}))


def test_time_that_is_over_ends_it(tmp_path: Path) -> None:
    """It ends between heartbeats, and before the timeout of a connection.

    On a busy machine the stream may not be open by then: it gets more time.
    """
    slow = replace(CONFIG, changes=replace(CONFIG.changes, heartbeat_s=3_600.0))
    with controlling(tmp_path, slow) as running:
        asked = asking(running, running.token(), ClientSettings(connect_timeout_s=3_600.0))
        tries = (list(follow(asked, {}, time.monotonic() + limit_s)) for limit_s in (0.3, 1.0, 3.0, 10.0))
        found = next(filter(None, tries))
    assert [message.event for message in found] == ["position"]


def test_a_token_that_holds_no_more_is_an_error(tmp_path: Path) -> None:
    with controlling(tmp_path, CONFIG) as running, running.client() as admin:
        found = follow(asking(running, running.token(name="leaver")), {})
        next(found)
        (number,) = [one["id"] for one in admin.get("/v1/tokens").json()["items"] if one["name"] == "leaver"]
        assert admin.delete(f"/v1/tokens/{number}").is_success
        with pytest.raises(RequestError):
            list(found)
