"""Alerts on their way to a webhook, on SQLite and PostgreSQL alike.

Each change is sent at least once, whatever the receiver does, and nothing else waits for it.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from fleet.controller.database import alerts
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AwayError
from fleet.controller.monitoring.message import read_secret
from fleet.controller.monitoring.post import Post
from fleet.controller.monitoring.settings import AlertSettings
from fleet.controller.monitoring.webhook import Webhook
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, database
from tests.simulators.receiver import Receiver, Said, receiving

__all__ = ["database"]
TEXT = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Sender:
    """Sender of alerts. `at_s`: time of its clock; `chance` 1: pauses are as long as they can be."""

    def __init__(self, database: Database, url: str, **settings: Any) -> None:
        self.database, self.counts, self.at_s = database, Counter[str](), 0.0
        self.settings = settings_with(AlertSettings(url=url), **settings)
        self.restart()

    def restart(self) -> None:
        post, secret = Post(self.settings.timeout_s, ssl.create_default_context()), read_secret(TEXT, "file")
        self.webhook = Webhook(self.database, self.settings, post, self.counts, secret=secret, chance=lambda: 1.0)

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.at_s)

    def turn(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.webhook.tick(self.now)

    def waiting(self) -> int:
        with self.database.read() as connection:
            return alerts.waiting(connection)


def opened(database: Database, *numbers: int, at_s: float = 0.0) -> list[Alert]:
    at = NOW + timedelta(seconds=at_s)
    made = [
        Alert(f"{n:04}", "silent", f"d{n}", "", AlertState.OPEN, at, at, at, summary=f"d{n} is silent") for n in numbers
    ]
    with database.write() as connection:
        alerts.put(connection, made, tell=True)
    return made


def ids(receiver: Receiver) -> list[str]:
    return [posted.headers["webhook-id"] for posted in receiver.posted]


def test_an_alert_arrives_signed_and_its_end_too(database: Database) -> None:
    with receiving() as receiver:
        sender = Sender(database, receiver.url + "/hook?to=ops")
        now_s = (datetime.now(NOW.tzinfo) - NOW).total_seconds()  # a receiver compares with its own clock
        (made,) = opened(database, 1, at_s=now_s)
        sender.turn(now_s)
        posted = receiver.posted[0]
        document = Verifier(TEXT).verify(posted.content, dict(posted.headers))
        assert (posted.path, document["type"], document["data"]["device"]) == ("/hook?to=ops", "alert.opened", "d1")
        over = replace(made, state=AlertState.CLOSED, closed=sender.now())
        with database.write() as connection:
            alerts.put(connection, [over], tell=True)
        sender.turn(now_s + 10)
        sender.turn(now_s + 20)
        assert ids(receiver) == ["0001-opened", "0001-closed"]
        assert json.loads(receiver.posted[1].content)["type"] == "alert.closed"
        assert (sender.waiting(), sender.counts["webhook_sent"]) == (0, 2)


def test_many_go_in_their_order_over_one_connection(database: Database) -> None:
    with receiving() as receiver:
        sender = Sender(database, receiver.url, batch_rows=7)
        opened(database, *range(10, 30), at_s=1)
        opened(database, *range(50, 60), at_s=0)
        sender.turn(2)
        assert ids(receiver) == [f"{n:04}-opened" for n in (*range(50, 60), *range(10, 30))]
        assert receiver.connections == 1


def test_a_receiver_that_is_away_is_tried_again_ever_more_seldom(database: Database) -> None:
    with receiving(*[Said(500)] * 4) as receiver:
        sender = Sender(database, receiver.url, retry_s=4.0, retry_limit_s=10.0)
        opened(database, 1, 2)
        for at_s, attempts in ((0, 1), (3.9, 1), (4, 2), (11.9, 2), (12, 3), (21.9, 3), (22, 4), (31.9, 4)):
            sender.turn(at_s)
            assert len(receiver.posted) == attempts, at_s
        assert sender.waiting() == 2
        sender.turn(32)
        assert ids(receiver) == ["0001-opened"] * 5 + ["0002-opened"]
        assert len({posted.content for posted in receiver.posted[:5]}) == 1
        assert len({posted.headers["webhook-timestamp"] for posted in receiver.posted[:5]}) == 5
        assert sender.counts == {"webhook_sent": 2, "webhook_failed": 4}


def test_it_is_waited_as_long_as_the_receiver_asks_within_reason(database: Database) -> None:
    with receiving(Said(429, {"retry-after": "60"}), Said(503, {"retry-after": "99999"})) as receiver:
        sender = Sender(database, receiver.url, retry_s=1.0, retry_limit_s=100.0)
        opened(database, 1)
        for at_s, attempts in ((0, 1), (59, 1), (60, 2), (159, 2), (160, 3)):
            sender.turn(at_s)
            assert len(receiver.posted) == attempts, at_s


def test_nobody_there_and_a_cut_connection_and_a_restart_lose_nothing(database: Database) -> None:
    opened(database, 1)
    with receiving() as receiver:
        url = receiver.url
    sender = Sender(database, url)
    sender.turn()
    assert (sender.waiting(), sender.counts) == (1, {"webhook_failed": 1})
    with receiving(Said(0)) as receiver:
        sender = Sender(database, receiver.url)
        sender.turn()
        sender.restart()
        sender.turn()
        assert ids(receiver) == ["0001-opened"] * 2
    assert sender.waiting() == 0


def test_a_message_that_is_refused_again_and_again_does_not_stop_the_others(database: Database) -> None:
    with receiving(*[Said(422)] * 3) as receiver:
        sender = Sender(database, receiver.url, refusals_limit=3, retry_s=1.0, retry_limit_s=1.0)
        opened(database, 1, 2)
        for at_s in range(5):
            sender.turn(at_s)
        assert ids(receiver) == ["0001-opened"] * 3 + ["0002-opened"]
        assert sender.counts == {"webhook_sent": 1, "webhook_failed": 3, "webhook_dropped": 1}
        assert sender.waiting() == 0


@pytest.mark.parametrize("status", [301, 401, 404, 500])
def test_what_any_message_would_be_answered_drops_none(database: Database, status: int) -> None:
    with receiving(*[Said(status, {"location": "/elsewhere"})] * 9) as receiver:
        sender = Sender(database, receiver.url, refusals_limit=2, retry_s=1.0, retry_limit_s=1.0)
        opened(database, 1)
        for at_s in range(6):
            sender.turn(at_s)
        assert {posted.path for posted in receiver.posted} == {"/"}
        assert (len(receiver.posted), sender.waiting()) == (6, 1)


def test_a_receiver_that_is_gone_is_left_alone(database: Database) -> None:
    with receiving(Said(410)) as receiver:
        sender = Sender(database, receiver.url)
        opened(database, 1)
        for at_s in (0, 4_000, 8_000):
            sender.turn(at_s)
        assert (len(receiver.posted), sender.waiting()) == (1, 1)


def test_what_nobody_took_for_days_is_dropped_and_counted(database: Database) -> None:
    with receiving(Said(500)) as receiver:
        sender = Sender(database, receiver.url, give_up_s=3_600.0)
        opened(database, 1)
        sender.turn(0)
        sender.turn(3_601)
        assert (len(receiver.posted), sender.waiting()) == (1, 0)
        assert sender.counts["webhook_dropped"] == 1


def test_where_the_database_goes_away_after_a_message_arrived_it_comes_again(database: Database) -> None:
    with receiving() as receiver:
        sender = Sender(database, receiver.url)
        opened(database, 1)
        sender.database = _Failing(database)  # type: ignore[assignment]
        sender.restart()
        with pytest.raises(AwayError):
            sender.turn()
        sender.database = database
        sender.restart()
        sender.turn()
        assert ids(receiver) == ["0001-opened"] * 2
        assert len({posted.content for posted in receiver.posted}) == 1


class _Failing:
    """Database that can be read, and fails at each attempt to write."""

    def __init__(self, database: Database) -> None:
        self.read = database.read

    def write(self) -> None:
        raise AwayError("the database is away", 5.0)
