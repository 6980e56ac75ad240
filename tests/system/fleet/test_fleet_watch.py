"""A controller that runs: what a device reports reaches a webhook and a collector; a dead webhook delays nothing."""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from standardwebhooks import Webhook

from fleet.controller.access import Role
from fleet.controller.authority.ca import new_authority
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import MaintenanceSettings
from fleet.controller.database.tail import position
from fleet.controller.monitoring.settings import AlertSettings, MetricsSettings, OtlpSettings
from fleet.controller.serving.tls import server_context
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.receiver import Posted, Receiver, Said, receiving

pytestmark = pytest.mark.timeout(180)
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
UPDATE = {
    "key": "k1",
    "slot": "meter-reader",
    "target": "models/acme/meter-reader/2/release",
    "version": "2",
    "state": "rolled_back",
    "failure": {"step": "probation", "reason": "latency", "evidence": {"p99_us": 9000}},
}


def config(**changes: Any) -> FleetConfig:
    given = AlertSettings(secret_file="webhook.secret", **changes)
    alerts = settings_with(given, evaluate_every_s=0.2, settle_s=0.1, calm_s=0.0, retry_s=0.1)
    return replace(
        FleetConfig(),
        alerts=alerts,
        metrics=settings_with(MetricsSettings(), cache_s=0.0),
        maintenance=settings_with(MaintenanceSettings(), tick_s=0.2),
    )


def prepared(folder: Path) -> FleetRepository:
    repository = FleetRepository(folder)
    secret = repository.workspace.folder / "webhook.secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    return repository


def privately_certified(ca_file: Path) -> ssl.SSLContext:
    """Return the TLS context of a server on this machine; the authority to trust is written to `ca_file`."""
    authority, now = new_authority(datetime.now(UTC)), datetime.now(UTC)
    ca_file.write_bytes(authority.pem)
    return server_context(*authority.issue_server(["127.0.0.1"], now), authority.pem)


def tell(client: httpx.Client, seq: int, stream: str, document: dict[str, Any]) -> None:
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    record = {
        "stream": stream,
        "boot_epoch": 1,
        "seq": seq,
        "at": at,
        "kind": stream.removesuffix("s"),
        "class": "vitals",
    }
    body = gzip.compress(json.dumps(record | {"document": document}).encode() + b"\n")
    headers = {"content-encoding": "gzip", "content-type": "application/x-ndjson"}
    answer = client.post("/v1/self/telemetry", content=body, headers=headers)
    assert answer.status_code in {200, 201}, answer.text


def until(receiver: Receiver, wanted: Callable[[Posted], bool]) -> Posted:
    """Return the message that is wanted, and ignore all that come before."""
    while not wanted(posted := receiver.wait()):
        pass
    return posted


def leading(fleet: RunningController) -> None:
    """Wait for the leader's first evaluation: reports before it open no alert."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with fleet.control.database.read() as connection:
            if position(connection, "watch") is not None:
                return
        time.sleep(0.05)
    raise AssertionError("nobody looked")


def test_a_roll_back_reaches_the_webhook_signed_and_the_collector_parsed(tmp_path: Path) -> None:
    """Both over TLS, with certificates that only their own authority vouches for."""
    repository = prepared(tmp_path)
    context = privately_certified(repository.workspace.folder / "ours.pem")
    with receiving(context=context) as hook, receiving(context=context) as collector:
        settings = config(url=hook.url + "/alerts", ca_file="ours.pem")
        otlp = OtlpSettings(collector.url, ca_file="ours.pem")
        settings = replace(settings, otlp=otlp, metrics=settings_with(MetricsSettings(), cache_s=0.0, own_every_s=0.5))
        with controlling(tmp_path, settings, repository) as fleet:
            leading(fleet)
            with fleet.device_client(fleet.enrolled("camera-7")) as device:
                tell(device, 1, "vitals", {"temperatures_c": {"cpu": 51.0}})
                tell(device, 1, "updates", UPDATE)
                posted = hook.wait()
                document = Webhook(SECRET).verify(posted.content, dict(posted.headers))
                assert (posted.path, document["type"]) == ("/alerts", "alert.opened")
                assert document["data"]["summary"] == "camera-7 gave up meter-reader 2: latency"
                assert document["data"]["evidence"]["evidence_p99_us"] == 9000
                tell(device, 2, "updates", UPDATE | {"key": "k2", "state": "committed", "failure": None})
                closed = json.loads(hook.wait().content)
                assert (closed["type"], closed["data"]["id"]) == ("alert.closed", document["data"]["id"])
            logs = until(collector, lambda posted: posted.path == "/v1/logs")
            json_format.Parse(logs.content, ExportLogsServiceRequest(), ignore_unknown_fields=False)
            assert b"camera-7" in logs.content
            own = until(collector, lambda posted: b"edge_fleet_leader" in posted.content)
            json_format.Parse(own.content, ExportMetricsServiceRequest(), ignore_unknown_fields=False)


def test_a_dead_webhook_slows_nobody_and_hears_of_it_later(tmp_path: Path) -> None:
    repository = prepared(tmp_path)
    with receiving(*[Said(500)] * 2, Said(0)) as hook, controlling(tmp_path, config(url=hook.url), repository) as fleet:
        leading(fleet)
        with fleet.device_client(fleet.enrolled("camera-7")) as device, fleet.client(Role.VIEWER) as viewer:
            tell(device, 1, "updates", UPDATE)
            ids = {hook.wait().headers["webhook-id"] for _ in range(4)}
            assert len(ids) == 1
            assert len({posted.content for posted in hook.posted}) == 1
            while "edge_fleet_alerts_untold 0.0" not in (page := fleet.replica._monitoring.page.render()[0].decode()):
                time.sleep(0.05)
            assert 'edge_fleet_webhook_messages_total{outcome="failed"} 3.0' in page
            assert viewer.get("/metrics").status_code == 200


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    repository = prepared(tmp_path)
    (repository.workspace.folder / "webhook.secret").chmod(0o644)
    with (
        pytest.raises(ConfigurationError, match="others may read it"),
        controlling(tmp_path, config(url="http://127.0.0.1:9"), repository),
    ):
        pass


@pytest.mark.parametrize("table", ["alerts", "otlp"])
def test_a_controller_does_not_start_with_authorities_that_are_none(tmp_path: Path, table: str) -> None:
    repository = prepared(tmp_path)
    receiver = {
        "alerts": config(url="https://127.0.0.1:9"),
        "otlp": FleetConfig(otlp=OtlpSettings("https://127.0.0.1:9")),
    }
    settings = receiver[table]
    settings = replace(settings, **{table: replace(getattr(settings, table), ca_file="ours.pem")})
    with pytest.raises(ConfigurationError, match=rf"{table}\.ca_file: .*ours\.pem cannot be used .*No such file"):
        controlling(tmp_path, settings, repository).__enter__()
