"""/metrics of the controller: promtool finds nothing to say, every metric is documented, the page tells the truth."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.monitoring.measures import PREFIX
from fleet.controller.monitoring.otlp_devices import METRICS
from fleet.controller.monitoring.otlp_own import own_piece
from fleet.controller.monitoring.otlp_points import request
from fleet.controller.monitoring.readings import RULES
from fleet.controller.monitoring.settings import MetricsSettings
from fleet.controller.monitoring.timing import OTHER, Timing, route_of
from fleet.publisher.roles import DIRECTOR
from gateway.common.domain.statistics import MetricSample
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.databases import NOW
from tests.simulators.fleet_repository import FleetRepository, new_key

DOCUMENT = (Path(__file__).parents[3] / "fleet" / "METRICS.md").read_text()
COUNTED = (
    "rate_limited_device", "assignments_signed", "enrolled", "enrolment_refused_DENIED", "telemetry_rows",
    "telemetry_left_duplicate", "reports_recorded", "alerts_left_out", "webhook_sent", "otlp_items_sent",
    "maintenance_failed_publish",
)  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    config = replace(FleetConfig(), metrics=settings_with(MetricsSettings(), cache_s=0.0))
    with controlling(tmp_path_factory.mktemp("fleet"), config) as running:
        yield running


def scrape(fleet: RunningController) -> str:
    with fleet.client(Role.VIEWER) as client:
        answer = client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return answer.text


def value(page: str, name: str, **labels: str) -> float:
    """Return the one sample of `name` that has these labels."""
    wanted = [f'{key}="{text}"' for key, text in labels.items()]
    lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
    (line,) = [line for line in lines if all(part in line for part in wanted)]
    return float(line.rpartition(" ")[2])


def everything(fleet: RunningController) -> str:
    """Return a page on which nothing is missing."""
    counts = fleet.control.counts
    counts.update(dict.fromkeys(COUNTED, 1))
    with fleet.client() as client:
        client.post("/v1/tokens", json={})
    for _ in range(200):
        page = scrape(fleet)
        if "edge_fleet_maintenance_done_timestamp_seconds{" in page and value(page, "edge_fleet_leader"):
            return page
    raise AssertionError(page)


def test_who_has_not_the_directors_key_says_so_here(tmp_path, fleet) -> None:
    assert value(scrape(fleet), "edge_fleet_director_signs") == 1
    repository = FleetRepository(tmp_path / "publisher")
    repository.keys[DIRECTOR] = [new_key("of somebody else")]
    with controlling(tmp_path / "publisher", repository=repository) as poor:
        assert value(scrape(poor), "edge_fleet_director_signs") == 0
        with poor.device_client(poor.enrolled("camera-1")) as device:
            assert device.get("/v1/self/assignment").status_code == 503


def test_promtool_has_nothing_to_say(fleet: RunningController) -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=everything(fleet), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_is_documented_with_its_type_and_labels_and_nothing_else_is(fleet: RunningController) -> None:
    page = everything(fleet)
    told = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) ?\|", DOCUMENT, re.MULTILINE)
    written = {name: kind for name, kind, _ in rows}
    missing = {"edge_fleet_rollouts", "edge_fleet_rollout_devices"}  # there is none
    assert {name: kind for name, kind in written.items() if name not in missing} == told
    for name, _, labels in rows:
        found = {
            frozenset(re.findall(r'(\w+)="', line)) - {"le"}
            for line in page.splitlines()
            if re.match(rf"{name}(_bucket)?{{", line)
        }
        assert found <= {frozenset(labels.replace(" ", "").split(","))}, name


def test_who_may_not_is_told_nothing(fleet: RunningController) -> None:
    with fleet.client(None) as anonymous, fleet.device_client(fleet.enrolled("camera-0")) as device:
        assert anonymous.get("/metrics").status_code == 401
        assert device.get("/metrics").status_code == 403


def test_devices_and_their_polls(fleet: RunningController) -> None:
    before = scrape(fleet)
    with fleet.device_client(fleet.enrolled("camera-1")) as device:
        status = str(device.get("/v1/self/assignment").status_code)
    with fleet.client(None) as anonymous:
        anonymous.get("/v1/devices")
    after = scrape(fleet)
    assert (
        value(after, "edge_fleet_devices", state="enrolled")
        == value(before, "edge_fleet_devices", state="enrolled") + 1
    )
    assert value(after, "edge_fleet_requests_total", route="/v1/self/assignment", status=status) == 1
    assert value(after, "edge_fleet_request_duration_seconds_count", route="/v1/self/assignment") == 1
    assert value(after, "edge_fleet_requests_total", route="/v1/devices", status="401") >= 1
    assert {value(after, "edge_fleet_alerts_open", rule=rule) for rule in RULES} == {0.0}


def test_a_database_that_is_away_is_told_and_the_rest_stays(fleet: RunningController, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def away() -> object:
        raise fleet.control.database._away("it is gone")

    fleet.control.counts["assignments_signed"] += 1
    page = fleet.replica._monitoring.page
    monkeypatch.setattr(type(fleet.control.database), "read", lambda _self: away())
    text = page.render()[0].decode()
    assert value(text, "edge_fleet_database_up") == 0
    assert "edge_fleet_devices" not in text
    assert value(text, "edge_fleet_assignments_signed_total") >= 1


def test_what_the_database_counts_is_counted_once_in_a_while(tmp_path: Path) -> None:
    with controlling(tmp_path) as fleet:
        before = value(scrape(fleet), "edge_fleet_devices", state="enrolled")
        fleet.enrolled("camera-1")
        assert value(scrape(fleet), "edge_fleet_devices", state="enrolled") == before


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/self/assignment", "/v1/self/assignment"),
        ("/v1/self/assignment/x/y/z", "/v1/self/assignment"),
        ("/v1/self/other", OTHER),
        ("/v1/devices/camera-7", "/v1/devices"),
        ("/v1/unknown", OTHER),
        ("/repository/metadata/timestamp.json", "/repository"),
        ("/metrics", "/metrics"),
        ("", OTHER),
        ("*", OTHER),
        ("//", OTHER),
    ],
)
def test_a_route_is_one_of_a_handful_of_names(path: str, route: str) -> None:
    assert route_of(path) == route


def test_the_same_goes_to_otlp() -> None:
    samples = [
        MetricSample(f"{PREFIX}requests_total", "", 3, {"route": "x"}),
        MetricSample(f"{PREFIX}leader", "", 1.0, counter=False),
    ]
    timing = Timing()
    piece = own_piece(samples, timing, "me", NOW, NOW + timedelta(seconds=1))
    message = ExportMetricsServiceRequest()
    json_format.Parse(request(METRICS, [piece.content]), message, ignore_unknown_fields=False)
    (requests, leader) = message.resource_metrics[0].scope_metrics[0].metrics
    (point,) = requests.sum.data_points
    assert (point.as_int, point.time_unix_nano - point.start_time_unix_nano) == (3, 10**9)
    assert (requests.sum.is_monotonic, leader.gauge.data_points[0].as_double, piece.count) == (True, 1.0, 2)
