"""/metrics: promtool finds no fault, every metric is documented, and a scrape under load disturbs no client."""

import re
import subprocess

import pytest

from tests.simulators.daemon import documented
from tests.simulators.hammer import hammering


def scrape(daemon):
    command = ["curl", "-sS", "--fail", "--max-time", "20", f"http://{daemon.http}/metrics"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def page(gateway):
    with hammering(gateway, "meter-reader"), hammering(gateway, "activity"):
        return scrape(gateway)


def test_promtool_has_nothing_to_say(page):
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_is_documented(page):
    told = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    assert told
    assert told <= documented()


def value(page, name, **labels):
    """Return the one sample of `name` that has these labels."""
    wanted = [rf'{key}="{text}"' for key, text in labels.items()]
    lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
    (line,) = [line for line in lines if all(part in line for part in wanted)]
    return float(line.rpartition(" ")[2])


def test_the_page_counts_what_was_asked(gateway, page):
    before = value(page, "edge_gateway_requests_total", model="activity", outcome="success")
    with hammering(gateway, "activity") as hammer:
        hammer.wait_answers()
        during = [scrape(gateway) for _ in range(20)]
        hammer.wait_answers()
    counts = [value(one, "edge_gateway_requests_total", model="activity", outcome="success") for one in during]
    after = value(scrape(gateway), "edge_gateway_requests_total", model="activity", outcome="success")
    assert hammer.failures == []
    assert before < counts[0] <= counts[-1] <= after
    assert counts == sorted(counts)
    assert after >= before + len(hammer.versions)


def test_what_an_operator_looks_for(page):
    for model in ("activity", "meter-reader"):
        assert value(page, "edge_gateway_model_ready", model=model, version="1") == 1
        assert value(page, "edge_gateway_variant_info", model=model) == 1
        assert value(page, "edge_gateway_queue_seconds_total", model=model) > 0
        assert value(page, "edge_gateway_compute_seconds_total", model=model, stage="infer") > 0
    assert value(page, "edge_gateway_process_resident_memory_bytes") > 10e6
    assert value(page, "edge_gateway_memory_available_bytes") > 0
