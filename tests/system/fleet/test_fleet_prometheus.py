"""A Prometheus that scrapes the controller over TLS with an API token, as METRICS.md says."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.controller.access import Role
from tests.simulators.controller import RunningController, controlling, free_port
from tests.simulators.served_fleet import wait_until

SCRAPE = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: edge-fleet
    scheme: https
    authorization: {{credentials_file: {token}}}
    tls_config: {{ca_file: {ca}, server_name: localhost}}
    static_configs: [{{targets: ["{target}"]}}]
"""


@contextmanager
def prometheus(fleet: RunningController, folder: Path) -> Iterator[str]:
    """Yield Prometheus' URL while it runs."""
    folder.mkdir()
    (folder / "token").write_text(fleet.token(Role.VIEWER))
    target = fleet.url.removeprefix("https://").replace("localhost", "127.0.0.1")
    text = SCRAPE.format(token=folder / "token", ca=fleet.ca_file.absolute(), target=target)
    (folder / "prometheus.yml").write_text(text)
    check = ["promtool", "check", "config", "prometheus.yml"]
    subprocess.run(check, cwd=folder, check=True, capture_output=True)
    port = free_port()
    words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def asked(url: str, query: str) -> list[dict[str, Any]]:
    """Return the results of a query; none while Prometheus starts."""
    question = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(question, timeout=5) as answer:  # noqa: S310  our own URL
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return found


def test_prometheus_reads_the_controller(tmp_path: Path) -> None:
    with controlling(tmp_path / "fleet") as fleet:
        fleet.enrolled("camera-1")
        with prometheus(fleet, tmp_path / "prometheus") as url:
            wait_until(lambda: asked(url, "sum(edge_fleet_leader) == 1"), 40)
            assert [one["value"][1] for one in asked(url, "up")] == ["1"]
            assert [one["value"][1] for one in asked(url, 'edge_fleet_devices{state="enrolled"}')] == ["1"]
            buckets = 'edge_fleet_request_duration_seconds_bucket{route="/metrics"}'
            wait_until(lambda: asked(url, f"histogram_quantile(0.99, sum by (le, route) ({buckets}))"), 40)
