"""The metrics page: parsed as Prometheus parses it, and every metric documented."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

import gateway.serving.observe.metrics as observed
from gateway.common.domain.access import Security
from gateway.common.domain.statistics import LATENCY_BOUNDS_NS, MetricSample, ServableStatistics, StepStatistics
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.shares import RefusalReason
from gateway.serving.domain.vitals import Vitals
from gateway.serving.engine.settings import ResidencySettings
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.cameras.cameras import samples as camera_samples
from gateway.serving.frontends.mqtt.frontend import samples
from gateway.serving.frontends.mqtt.session.listener import Welcome
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.settings import SharedMemorySettings
from gateway.serving.observe.metrics import Metrics
from gateway.serving.runtimes import isolated
from gateway.serving.store.state import StateStore
from tests.simulators.engine_rig import Rig, manifest
from tests.simulators.inference import SimulatedInference, identity

DOCUMENT = Path(observed.__file__).with_name("METRICS.md")
VITALS = Vitals({"cpu-thermal": 51.5}, {"VDD_IN": 4.25}, memory_available_bytes=1024, throttled=False)


class Counted(SimulatedInference):
    """One model with numbers of its own in every counter."""

    def __init__(self) -> None:
        super().__init__([identity(Datatype.FP32, name='m"\n')])
        self.counted = ServableStatistics(
            'm"\n', "1", inferences=30, executions=20, queued=4, ignored_parameters=5, images_turned=6, parts=8
        )
        self.counted.success.add(ns=2_000_000_000, count=7)
        self.counted.fail.add(ns=1, count=2)
        self.counted.queue.add(ns=3_500_000_000)
        self.counted.compute_infer.add(ns=250_000_000)
        self.counted.drop("queue_full")
        self.counted.lanes = {"inline": 19, "worker": 1}
        self.counted.failed_runs, self.counted.weight = 3, 95
        self.counted.shadow.count(rows=8, disagreed=1, mean_abs=0.25)
        self.counted.shadow.skip("busy")
        self.counted.steps["sure"] = StepStatistics(11, 12, 13, 14, 15, 1_500_000_000)
        for ns in (1, LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[0] + 1, 60_000_000_000):
            self.counted.latency.add([0], ns)
        self.counted.texts.add(5, 9, (0, 500_000_000, 0, 1_000_000_000))
        self.counted.texts.add(2, 7, (0, 0, 1_000_000_000, 3_000_000_000))
        self.counted.wakes.add([0], 5)
        self.counted.cache_hit.add(ns=1)
        self.counted.cache_miss.add(ns=1)

    def statistics(self, model: str = "", version: str = "") -> list[ServableStatistics]:
        return [self.counted]


def families(metrics: Metrics) -> dict[str, Metric]:
    text, content_type = asyncio.run(metrics.render())
    assert content_type.startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families(metrics).values()
        for sample in family.samples
        if sample.name == f"edge_gateway_{name}" and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def metrics_of(engine: SimulatedInference, *samples: MetricSample) -> Metrics:
    return Metrics(engine, engine, sources=[lambda: samples], vitals=lambda: VITALS)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("requests_total", {"outcome": "success"}, 7),
        ("requests_total", {"outcome": "fail"}, 2),
        ("rows_total", {}, 30),
        ("executions_total", {}, 20),
        ("drops_total", {"reason": "queue_full"}, 1),
        ("ignored_parameters_total", {}, 5),
        ("images_turned_total", {}, 6),
        ("queued", {}, 4),
        ("queue_seconds_total", {}, 3.5),
        ("compute_seconds_total", {"stage": "infer"}, 0.25),
        ("compute_seconds_total", {"stage": "input"}, 0),
        ("model_ready", {"model": 'm"\n', "version": "1"}, 1),
        (
            "variant_info",
            {"variant": "reference", "runtime": "reference", "precision": "fp32", "accelerator": "cpu"},
            1,
        ),
        ("lane_executions_total", {"lane": "inline"}, 19),
        ("model_signed", {}, 0),
        ("failed_runs_total", {}, 3),
        ("weight_percent", {}, 95),
        ("shadow_rows_total", {"outcome": "agreed"}, 7),
        ("shadow_rows_total", {"outcome": "disagreed"}, 1),
        ("shadow_difference_total", {}, 2),
        ("shadow_skips_total", {"reason": "busy"}, 1),
        ("request_latency_seconds_bucket", {"le": "0.0001"}, 2),
        ("request_latency_seconds_bucket", {"le": "10.0"}, 3),
        ("request_latency_seconds_bucket", {"le": "+Inf"}, 4),
        ("request_latency_seconds_count", {}, 4),
        ("step_runs_total", {"step": "sure"}, 11),
        ("step_rows_total", {"step": "sure", "outcome": "run"}, 12),
        ("step_rows_total", {"step": "sure", "outcome": "skipped"}, 13),
        ("step_failures_total", {"step": "sure"}, 14),
        ("step_fallbacks_total", {"step": "sure"}, 15),
        ("step_seconds_total", {"step": "sure"}, 1.5),
        ("prompt_tokens_total", {}, 7),
        ("generation_tokens_total", {}, 16),
        ("generation_seconds_total", {}, 2.5),
        ("time_to_first_token_seconds_sum", {}, 1),
        ("time_to_first_token_seconds_count", {}, 1),
        ("temperature_celsius", {"zone": "cpu-thermal"}, 51.5),
        ("power_watts", {"rail": "VDD_IN"}, 4.25),
        ("memory_available_bytes", {}, 1024),
        ("throttled", {}, 0),
    ],
)
def test_the_page_says_what_was_counted(name: str, labels: dict[str, str], expected: float) -> None:
    assert value(metrics_of(Counted()), name, **labels) == expected


def test_the_process_is_measured() -> None:
    metrics = metrics_of(Counted())
    assert value(metrics, "process_resident_memory_bytes") > 10_000_000
    assert value(metrics, "process_cpu_seconds_total", mode="user") > 0


def test_a_model_that_does_not_serve_keeps_its_counters() -> None:
    engine = Counted()
    engine.unready = set(engine.manifests)
    metrics = metrics_of(engine)
    assert value(metrics, "model_ready") == 0
    assert value(metrics, "rows_total") == 30
    assert not families(metrics)["edge_gateway_variant_info"].samples


def test_frontends_add_samples() -> None:
    given = [
        MetricSample("mqtt_messages_total", "Messages received.", 3, {"route": "a"}),
        MetricSample("mqtt_messages_total", "Messages received.", 4, {"route": "b"}),
        MetricSample("edge_gateway_mqtt_sensors", "Sensors with a window.", 2, counter=False),
    ]
    metrics = metrics_of(Counted(), *given)
    assert value(metrics, "mqtt_messages_total", route="b") == 4
    assert value(metrics, "mqtt_sensors") == 2
    assert families(metrics)["edge_gateway_mqtt_sensors"].type == "gauge"


async def residency_samples() -> list[MetricSample]:
    """Return the samples of an engine with a budget that has closed and opened versions."""
    rig = Rig(residency=ResidencySettings(1))
    await rig.serve(manifest())
    rig.repository.residency._evictions["memory"] = rig.repository.residency._wakes["opened"] = 1
    found = list(rig.repository.residency.samples())
    await rig.repository.close()
    return found


def test_every_metric_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"model": "m", "version": "1"}
    keeper = SimpleNamespace(labels=labels, ends={"crashed": 1}, spare=None, workers=[], is_closed=False)
    monkeypatch.setattr(isolated, "_sessions", [SimpleNamespace(keeper=keeper, memory_bytes=1)])
    counters = {"connected": 1, "published": 2, "dropped_undecodable": 3}
    mqtt = samples("default", counters, {"main": Welcome(resumed=False)})
    pools = Pools()
    pools.make("grpc calls", "[grpc] max_concurrent_calls", 1).refuse("user:1", RefusalReason.CALLER)
    callers = Authentication("http", Security())
    callers.count("scope")
    shared = Regions(SharedMemorySettings(allowed=True)).samples()
    with closing(StateStore.open(tmp_path)) as opened:
        state = list(opened.samples())
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {
        name.removesuffix("_total"): (kind, set(labels.replace(",", " ").split())) for name, kind, labels in rows
    }
    camera = camera_samples("door", {"read": 3}, 1, up=True)
    others = (
        *camera,
        *state,
        *pools.refusals.samples(),
        *callers.samples(),
        *asyncio.run(residency_samples()),
        *isolated.samples(),
    )
    everything = metrics_of(Counted(), *mqtt, *shared, *others)
    shown = {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in families(everything).items()
    }
    assert shown == documented


def test_a_latency_falls_into_the_bucket_of_its_upper_bound() -> None:
    counted = ServableStatistics("m", "1").latency
    for bound in LATENCY_BOUNDS_NS:
        counted.add([0], bound)
    assert counted.counts == [1] * len(LATENCY_BOUNDS_NS) + [0]
    assert counted.ns == sum(LATENCY_BOUNDS_NS)


def test_requests_answered_together_are_counted_as_if_alone() -> None:
    together, alone = (ServableStatistics("m", "1").latency for _ in range(2))
    for began_ns in ([5, 7], [0, 900_000, 2_000_000]):
        together.add(began_ns, 3_000_000)
        for began in began_ns:
            alone.add([began], 3_000_000)
    assert together == alone


def test_sensors_are_not_read_on_the_loop() -> None:
    readers: list[int] = []
    engine = Counted()
    families(Metrics(engine, engine, vitals=lambda: readers.append(threading.get_ident()) or VITALS))  # type: ignore[func-returns-value]
    assert readers
    assert threading.get_ident() not in readers


class Parsed:
    """Collector of the families on a page."""

    def __init__(self, page: str) -> None:
        self._families = list(text_string_to_metric_families(page))

    def collect(self) -> list[Metric]:
        return self._families


def test_the_page_is_what_prometheus_client_writes() -> None:
    given = MetricSample("mqtt_messages_total", "Says \\ and\na line.", 3e7, {"route": 'a"\\\n', "broker": "b"})
    page = asyncio.run(metrics_of(Counted(), given).render())[0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Parsed(page.decode()))
    assert generate_latest(registry) == page


@given(st.floats() | st.integers(-(2**70), 2**70) | st.booleans())
def test_numbers_are_written_as_prometheus_client_does(number: float) -> None:
    assert observed._number(number) == floatToGoString(number)  # type: ignore[no-untyped-call]


def test_many_models_leave_the_event_loop_free() -> None:
    engine = Counted()
    many = [ServableStatistics(f"m{index}", "1", inferences=index) for index in range(3 * observed.MODELS_AT_ONCE + 1)]
    passes = 0

    def counted(model: str = "", version: str = "") -> list[ServableStatistics]:
        nonlocal passes
        passes = 0
        return many

    async def scraped() -> bytes:
        nonlocal passes
        scrape = asyncio.ensure_future(metrics_of(engine).render())
        while not scrape.done():
            await asyncio.sleep(0)
            passes += 1
        return scrape.result()[0]

    engine.statistics = counted  # type: ignore[method-assign]
    page = asyncio.run(scraped()).decode()
    assert passes >= 3
    rows = next(each for each in text_string_to_metric_families(page) if each.name == "edge_gateway_rows")
    assert [sample.value for sample in rows.samples] == list(range(len(many)))
