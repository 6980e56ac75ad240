"""Metrics of the controller and its fleet, as values: the source of the Prometheus page and of OTLP.

METRICS.md describes each of them. Values that the database has to count are counted at most once in `cache_s`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fleet.controller.control.control import Control
from fleet.controller.control.rollouts_record import LIVE
from fleet.controller.database import rollouts
from fleet.controller.database.errors import AbsentError, AwayError
from fleet.controller.database.figures import Figures, figures
from fleet.controller.monitoring.readings import RULES
from fleet.controller.monitoring.timing import Timing
from fleet.controller.rollouts.state import device_counts
from gateway import __version__
from gateway.common.domain.statistics import MetricSample

PREFIX = "edge_fleet_"
FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("assignments_signed", "assignments_signed", "", "Assignments signed."),
    ("enrolled", "enrolments", "outcome", "Requests to enrol, by outcome."),
    ("enrolment_refused_", "enrolments", "outcome", "Requests to enrol, by outcome."),
    ("telemetry_rows", "telemetry_rows", "", "Rows of telemetry that were new and are stored."),
    ("telemetry_left_", "telemetry_left", "reason", "Rows of telemetry left out, by reason."),
    ("reports_", "reports", "outcome", "Reports of devices on updates, by outcome."),
    ("alerts_left_out", "alerts_left_out", "", "Alerts not opened because too many were open."),
    ("webhook_", "webhook_messages", "outcome", "Messages to the webhook, by outcome."),
    ("otlp_items_", "otlp_items", "outcome", "Data points and log records for the OTLP endpoint, by outcome."),
    ("maintenance_failed_", "maintenance_failures", "job", "Failed runs of maintenance jobs, by job."),
)
"""Prefix or name of a counter, its metric, the label for the rest of the name, and the help text.

A counter that matches no entry belongs to `REFUSED`.
"""
REFUSED = ("refused", "reason", "Requests and connections refused or headers ignored, by reason.")


@dataclass(frozen=True, slots=True)
class Sources:
    """Inputs of metrics: whether this replica leads, queue lengths, and times of the last maintenance."""

    leads: Callable[[], bool] = bool
    queues: Mapping[str, Callable[[], int]] = field(default_factory=dict)
    done: Callable[[], Mapping[str, float]] = dict


class Measures:
    """Reader of all metrics. Thread-safe."""

    def __init__(self, control: Control, timing: Timing, cache_s: float, sources: Sources) -> None:
        self._control, self.timing, self._cache_s, self._sources = control, timing, cache_s, sources
        self._lock = threading.Lock()
        self._counted: tuple[Figures | None, Mapping[tuple[str, str], int]] = (None, {})
        self._counted_s = float("-inf")

    def samples(self) -> list[MetricSample]:
        """Return all samples except the histogram, which is `timing.durations`."""
        found, members = self._figures()
        text = "Devices of rollouts that are not over, by state; of the leader only."
        of_rollouts = [
            _gauge("rollout_devices", text, count, {"rollout": rollout, "state": state})
            for (rollout, state), count in sorted(members.items())
        ]
        parts = (self._itself(found), _counts(self._control.counts), _requests(self.timing), of_rollouts)
        return [*(sample for part in parts for sample in part), *(_fleet(found) if found else ())]

    def _itself(self, found: Figures | None) -> Iterator[MetricSample]:
        yield _gauge("build_info", "The controller's version; always 1.", 1, {"version": __version__})
        yield _gauge("leader", "1 where this replica decides, else 0.", int(self._sources.leads()))
        text = "1 if this replica can sign assignments, 0 if too few of the director's keys are in its `keys` folder."
        yield _gauge("director_signs", text, int(not self._control.director.obstacle()))
        yield _gauge("database_up", "1 where the database answered, else 0.", int(found is not None))
        yield _gauge("change_streams", "Open streams of changes.", len(self._control.subscriptions))
        for name, length in sorted(self._sources.queues.items()):
            yield _gauge("queue_length", "Queue length, by queue.", length(), {"queue": name})
        for job, at_s in sorted(self._sources.done().items()):
            text = "Time at which a maintenance job ended last, in seconds since 1970."
            yield _gauge("maintenance_done_timestamp_seconds", text, at_s, {"job": job})
        yield from _process()

    def _figures(self) -> tuple[Figures | None, Mapping[tuple[str, str], int]]:
        with self._lock:
            if time.monotonic() - self._counted_s >= self._cache_s:
                try:
                    with self._control.database.read() as connection:
                        found = figures(connection)
                    self._counted = found, self._rollout_devices() if self._sources.leads() else {}
                except AwayError:
                    self._counted = None, {}
                self._counted_s = time.monotonic()
            return self._counted

    def _rollout_devices(self) -> Mapping[tuple[str, str], int]:
        """Count devices of live rollouts by rollout and state. Only the leader calls it: it caches their states."""
        counts: Counter[tuple[str, str]] = Counter()
        settings, states = self._control.database.settings, self._control.rollouts.states
        with self._control.database.read() as connection:
            for stored in rollouts.page(connection, settings, states=LIVE, limit_rows=settings.page_limit_rows):
                try:
                    known = states.read(connection, stored.id, settings)
                except AbsentError:
                    continue
                for by_state in device_counts(known.state).values():
                    counts.update({(stored.id, state): count for state, count in by_state.items()})
        return counts


def _fleet(found: Figures) -> Iterator[MetricSample]:
    for state, count in found.devices.items():
        yield _gauge("devices", "Devices, by state.", count, {"state": state})
    for state, count in sorted(found.rollouts.items()):
        yield _gauge("rollouts", "Rollouts, by state.", count, {"state": state})
    for rule in sorted({*RULES, *found.open_alerts}):
        yield _gauge("alerts_open", "Open alerts, by rule.", found.open_alerts.get(rule, 0), {"rule": rule})
    yield _gauge("alerts_untold", "Changes of alerts not yet accepted by the webhook.", found.untold_alerts)
    yield _gauge("telemetry_kept_rows", "Telemetry rows stored.", found.telemetry_rows)
    yield _gauge("telemetry_kept_bytes", "Bytes of stored telemetry documents.", found.telemetry_bytes)
    yield _gauge("telemetry_lost_rows", "Telemetry rows that devices dropped before sending.", found.lost_rows)
    yield _gauge("events_kept", "Events stored.", found.events)
    yield _gauge("assignments", "Devices for which an assignment was signed.", found.assignments)
    yield _gauge("certificates", "Device certificates stored.", found.certificates)
    yield _gauge("database_bytes", "Size of the database on its disk, in bytes.", found.database_bytes)


def _counts(counted: Counter[str]) -> Iterator[MetricSample]:
    totals: dict[tuple[str, str, str, str], float] = {}
    for name, value in sorted(counted.copy().items()):
        metric, label, unit, text = _family(name)
        key = (metric, label, unit if label else "", text)
        totals[key] = totals.get(key, 0) + value
    for (metric, label, unit, text), total in totals.items():
        yield _counter(metric, text, total, {label: unit} if label else {})


def _family(name: str) -> tuple[str, str, str, str]:
    """Return the metric, the label's name, its value, and the help text of a counter."""
    for known, metric, label, text in FAMILIES:
        if name == known:
            return metric, label, name, text
        if known.endswith("_") and name.startswith(known):
            return metric, label, name.removeprefix(known).lower(), text
    return REFUSED[0], REFUSED[1], name, REFUSED[2]


def _requests(timing: Timing) -> Iterator[MetricSample]:
    for (route, status), count in sorted(timing.ended.copy().items()):
        attributes = {"route": route, "status": str(status)}
        yield _counter("requests", "Requests, by route and status; 0: cut off.", count, attributes)
    for route, size_bytes in sorted(timing.received_bytes.copy().items()):
        text = "Bytes of requests' bodies as they travelled, by route."
        yield _counter("request_bytes", text, size_bytes, {"route": route})


def _process() -> Iterator[MetricSample]:
    from psutil import Process

    process = Process()
    with process.oneshot():
        resident_bytes, cpu = process.memory_info().rss, process.cpu_times()
    yield _gauge("process_resident_memory_bytes", "Resident memory of the controller, in bytes.", resident_bytes)
    for mode, seconds in {"user": cpu.user, "system": cpu.system}.items():
        yield _counter("process_cpu_seconds", "Processor seconds of the controller, by mode.", seconds, {"mode": mode})


def _gauge(name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> MetricSample:
    return MetricSample(PREFIX + name, text, value, labels or {}, counter=False)


def _counter(name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> MetricSample:
    return MetricSample(f"{PREFIX}{name}_total", text, value, labels or {}, counter=True)
