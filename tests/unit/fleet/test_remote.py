"""Output of verbs for a controller's answers: times, releases, documents; and the warning of a last admin."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.cli.parser import main
from fleet.cli.remote import ago, bounded, local, one_line, short, target_of
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.scripted_server import TOKEN, Scripted, good, problem, scripted

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    with scripted() as running:
        monkeypatch.setenv("EDGE_FLEET_URL", running.url)
        monkeypatch.setenv("EDGE_FLEET_TOKEN", TOKEN)
        yield running


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "now"),
        (59, "now"),
        (60, "1 min ago"),
        (119, "1 min ago"),
        (120, "2 min ago"),
        (7199, "120 min ago"),
        (7200, "2 h ago"),
        (172_800, "2 d ago"),
        (8_640_000, "100 d ago"),
    ],
)
def test_how_long_ago(seconds, words) -> None:
    assert ago((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == words


def test_no_time_is_said() -> None:
    assert (ago(None), local(None)) == ("never", "-")


@pytest.mark.usefixtures("berlin")
def test_times_are_those_of_who_looks() -> None:
    assert local("2027-07-01T23:30:00Z") == "2027-07-02 01:30"
    assert local("2027-01-01T23:30:00.123456Z") == "2027-01-02 00:30"


@pytest.mark.parametrize("name", ["acme/meter-reader/2", "@settings/berlin/3", "@software/edge-gateway/0.3", ""])
def test_a_release_has_a_short_name(name) -> None:
    assert short(target_of(name)) == name
    assert target_of(target_of(name)) == target_of(name)


@pytest.mark.parametrize("text", ["reader", "acme/reader", "acme//2", "acme/reader/..", "a/b/c/d"])
def test_what_is_no_release(text) -> None:
    with pytest.raises(ConfigurationError, match="write OWNER/MODEL/VERSION"):
        target_of(text)


def test_a_document_in_a_line() -> None:
    assert one_line({"b": 1, "a": "x y", "no": None, "nothing": "", "none": [], "zero": 0}) == "b=1 a=x y zero=0"
    assert one_line({"x": {"y": [1]}}) == 'x={"y": [1]}'
    assert (len(one_line({"x": "y" * 999})), one_line({"x": "\x1b[2J"})) == (160, "x=\\u001b[2J")


def test_a_list_is_cut_where_it_says_so(capsys) -> None:
    assert bounded(({"n": number} for number in range(9)), 2) == [{"n": 0}, {"n": 1}]
    assert "2 shown, and there are more: --limit N" in capsys.readouterr().err
    assert len(bounded(({"n": number} for number in range(2)), 2)) == 2
    assert capsys.readouterr().err == ""


def test_settings_are_shown_as_they_were_signed(server, capsys) -> None:
    at = "2027-03-01T12:00:00Z"
    release = {
        "target": "settings/berlin/3/release",
        "digest": "ab" * 32,
        "floor": "1",
        "released": at,
        "first_read": at,
    }
    found = {"release": release, "document": {"toml": "[mqtt]\nurl = '\u202e'\n"}, "refused": ""}
    server.replies = [good(found)]
    assert main(["releases", "show", "@settings/berlin/3"]) == 0
    assert server.asked[0][1] == "/v1/releases/%40settings/berlin/3"
    out = capsys.readouterr().out
    assert out.startswith("release            @settings/berlin/3\n")
    assert out.endswith("  | [mqtt]\n  | url = '\\u202e'\n")


def token(number: int, days: float, **changes: Any) -> dict[str, Any]:
    expires = (datetime.now(UTC) + timedelta(days=days)).isoformat()
    made = {"id": number, "prefix": "eft_x", "name": f"t{number}", "role": "admin", "tags": [], "revoked": None}
    return {**made, "expires": expires, "created": expires, "created_by": "x", **changes}


@pytest.mark.parametrize(
    ("tokens", "warned"),
    [
        ([token(1, 3)], True),
        ([token(1, 3), token(2, 30)], False),
        ([token(1, 3), token(2, 30, tags=["pilot"]), token(3, 30, role="viewer")], True),
        ([token(1, 3), token(2, 30, revoked="2027-01-01T00:00:00Z")], True),
        ([token(1, 30)], False),
    ],
)
def test_the_end_of_the_last_admin_is_announced(server, capsys, tokens, warned) -> None:
    server.replies = [good({"items": tokens, "next": None})]
    assert main(["tokens", "list"]) == 0
    assert ("the last admin token for all devices ends" in capsys.readouterr().out) == warned


def test_labels_are_replaced_in_the_state_in_which_they_were_read(server, capsys) -> None:
    labels = (200, {"etag": '"read"'}, b'{"tags": ["a"], "site": "rome"}')
    server.replies = [labels, problem(412, "it has changed since it was read")]
    assert main(["devices", "label", "camera-1", "--add", "b"]) == 1
    method, path, headers, body = server.asked[1]
    assert (method, path, headers["if-match"]) == ("PUT", "/v1/devices/camera-1/labels", '"read"')
    assert json.loads(body) == {"tags": ["a", "b"], "site": "rome"}
    assert "it has changed since it was read" in capsys.readouterr().err
