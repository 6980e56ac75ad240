"""Record of the topic filters at the broker: by client, bounded, and without effect on the start if it fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.session.subscriptions import CLIENTS_LIMIT, FILE, SubscriptionRecord


def test_each_broker_and_client_id_has_its_filters(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for number in range(CLIENTS_LIMIT + 1):
        SubscriptionRecord(folder, "mqtt://a", f"gw{number}").write({"s/#", f"{number}"})
    assert SubscriptionRecord(folder, "mqtt://a", "gw0").filters is None
    assert SubscriptionRecord(folder, "mqtt://a", "gw1").filters == {"s/#", "1"}
    assert SubscriptionRecord(folder, "mqtt://b", "gw1").filters is None


def test_a_fresh_copy_counts_and_what_was_recorded_is_not_written_again(tmp_path: Path) -> None:
    SubscriptionRecord(tmp_path, "mqtt://a", "gw").write({"s/#"})
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path, moved)
    record = SubscriptionRecord(moved, "mqtt://a", "gw")
    assert record.filters == {"s/#"}
    inode = (moved / FILE).stat().st_ino
    record.write({"s/#"})
    assert (moved / FILE).stat().st_ino == inode


def test_a_record_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    record = SubscriptionRecord(tmp_path / "file", "mqtt://a", "gw")
    record.write({"s/#"})
    assert record.filters == {"s/#"}
    assert "subscriptions not recorded" in caplog.text


def test_a_message_is_done_once_all_its_routes_are() -> None:
    routes = {"a", "b"}
    a, b = (Message("s", b"1", qos=1, mid=1, route=name, routes=routes) for name in ("a", "b"))
    assert [a.done(), a.done(), b.done(), b.done(), Message("s", b"1").done()] == [False, False, True, False, True]
