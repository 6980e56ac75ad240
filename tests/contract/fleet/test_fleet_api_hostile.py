"""Whatever text stands in a filter, a name or a label, it is text: it finds itself and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fleet.controller.access import Role
from tests.simulators.controller import RunningController, controlling
from tests.simulators.examples import examples

pytestmark = pytest.mark.timeout(120)
INJECTIONS = (
    "' OR '1'='1",
    "'; DROP TABLE devices; --",
    'x" OR ""="',
    "%",
    "_",
    "*",
    "\\",
    "a\x00b",
    "\ud800",
    "pilot' UNION SELECT digest FROM api_tokens --",
    "{}",
    "$1",
    ":tag",
    "../../etc/passwd",
)
TEXTS = st.one_of(st.sampled_from(INJECTIONS), st.text(min_size=1, max_size=60))
often = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for name, tag in (("camera-1", "pilot"), ("camera-2", "lobby")):
            running.enrolled(name, tags=[tag], site="berlin")
        yield running


@pytest.fixture(scope="module")
def client(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client(Role.ADMIN) as admin:
        yield admin


def encoded(text: str) -> str:
    """Encode half surrogates like a careless client would send them."""
    return quote(text.encode(errors="surrogatepass"), safe="")


@often
@given(TEXTS, st.sampled_from(["tag", "site", "profile", "serial", "target", "after"]))
@example("' OR '1'='1", "tag")
def test_a_filter_of_devices_is_a_value(client, text, name) -> None:
    answer = client.get(f"/v1/devices?{name}={encoded(text)}")
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200 and name != "after" and text not in {"pilot", "lobby", "berlin"}:
        assert answer.json()["items"] == []


@often
@given(
    TEXTS,
    st.sampled_from(
        ["events?device=", "events?kind=", "events?rollout=", "audit?actor=", "audit?subject=", "alerts?rule="]
    ),
)
def test_a_filter_of_records_is_a_value(client, text, path) -> None:
    answer = client.get(f"/v1/{path}{encoded(text)}")
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200 and text not in {"camera-1", "camera-2"}:
        assert answer.json()["items"] == []


@often
@given(TEXTS, st.sampled_from(["", "/inventory", "/telemetry", "/telemetry/vitals", "/diagnostics"]))
def test_a_name_in_a_path_is_a_name(client, text, rest) -> None:
    answer = client.get(f"/v1/devices/{encoded(text)}{rest}")
    assert answer.status_code in {400, 404}, (text, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"


@often
@given(st.lists(TEXTS, max_size=5, unique=True), TEXTS)
def test_labels_come_back_as_they_were_given(client, tags, site) -> None:
    body = {"tags": tags, "site": site}
    try:
        answer = client.put("/v1/devices/camera-2/labels", json=body)
    except UnicodeEncodeError:  # httpx sends no half surrogates
        return
    if answer.status_code == 400:
        assert any("\x00" in text for text in (*tags, site)), answer.text
        return
    assert (answer.json()["tags"], answer.json()["site"]) == (sorted(tags), site)
    for tag in tags:
        found = client.get(f"/v1/devices?tag={encoded(tag)}&site={encoded(site)}").json()["items"]
        assert [device["id"] for device in found] == ["camera-2"]
    assert client.get("/v1/devices/camera-1").json()["tags"] == ["pilot"]
