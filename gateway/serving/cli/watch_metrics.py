"""Metrics of the MQTT link for `edge-gateway watch`, read again and again from the daemon's /metrics by a thread."""

from __future__ import annotations

import http
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys
from gateway.serving.cli.remote import read_object

STOP_S = 0.5
TIMEOUT_S = 2.0
"""Timeout of each step of an exchange."""
NO_ADDRESS = "HTTP is off in the configuration; name the gateway's address with --url"
NOT_YET = "it has not answered yet"
_SAMPLE = re.compile(
    r'^edge_gateway_mqtt_(drops_total|now)\{broker="([^"\\]*)",(?:reason|what)="([^"\\]*)"\} ([0-9.e+]+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class LinkMetrics:
    """Gauges of the link and drops by reason, as the daemon at `where` counts them. `problem`: why there are none."""

    where: str = ""
    problem: str = ""
    link: Mapping[str, int] = field(default_factory=dict)
    drops: Mapping[str, int] = field(default_factory=dict)


def parse_metrics(text: str, where: str, broker: str) -> LinkMetrics:
    """Return the metrics of one MQTT broker in Prometheus' text format."""
    found: dict[str, dict[str, int]] = {"now": {}, "drops_total": {}}
    for family, name, label, value in _SAMPLE.findall(text):
        if name == broker:
            found[family][label] = int(float(value))
    absent = f"it has no metrics of MQTT broker '{broker}'; is it configured where it runs?"
    problem = "" if found["now"] else absent
    return LinkMetrics(where, problem, found["now"], found["drops_total"])


def read_metrics(places: Sequence[tuple[GatewayAddress, Keys]], broker: str) -> LinkMetrics:
    """Return the metrics of the first gateway that answers, or why there are none."""
    problem = LinkMetrics(problem=NO_ADDRESS)
    for place, keys in places:
        try:
            with GatewayClient(place, keys, TIMEOUT_S) as client:
                status, content = client.exchange("GET", "/metrics")
            if status != http.HTTPStatus.OK:
                read_object(status, content)
            return parse_metrics(content.decode("utf-8", "replace"), str(place), broker)
        except (UnreachableError, RequestError, ConfigurationError) as error:
            found = error.message if isinstance(error, RequestError) else str(error)
            problem = problem if problem.where else LinkMetrics(str(place), found)
    return problem


class MetricsPoller:
    """Thread that reads the metrics every `every_s`. It is a daemon thread: a gateway that hangs delays no end."""

    def __init__(self, places: Sequence[tuple[GatewayAddress, Keys]], broker: str, every_s: float) -> None:
        self._places, self._broker, self._every_s = places, broker, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self.newest = LinkMetrics(str(places[0][0]) if places else "", NOT_YET)
        """Result of the last reading."""

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. A reading in progress is waited for, but not longer than STOP_S."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while True:
            self.newest = read_metrics(self._places, self._broker)
            if self._stop.wait(self._every_s):
                return
