"""`edge-gateway bench` as a shell sees it, with real gateways."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHIPPED, SHORT_TRIALS, Daemon, running

Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(state: Path) -> Bench:
    """Return a function that measures for a moment, with the program as installed and the shared verdicts."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(COMMAND[0]).with_name("edge-gateway"))
        command = [program, "bench", *arguments, "--seconds", "0.2", "--state", str(state)]
        environ = {**os.environ, "COLUMNS": "120"}
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environ)

    return call


@pytest.fixture
def gateway(state: Path, tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path / "gateway", state=state, config=QUIET + SHORT_TRIALS) as daemon:
        yield daemon


@pytest.mark.timeout(180)
def test_every_front_end_and_the_bare_runtime(bench: Bench, tmp_path: Path) -> None:
    plotted = tmp_path / "plot.svg"
    done = bench("meter-reader", "--concurrency", "1,2", "--json", "--plot", str(plotted))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    found = [(each["front_end"], each["concurrency"]) for each in told["measurements"]]
    assert found == [("bare", 1), *((name, count) for name in ("grpc", "http", "shm") for count in (1, 2))]
    for each in told["measurements"]:
        assert 0 < each["p50_us"] <= each["p95_us"] <= each["p99_us"]
        assert each["cpu_us"] > 0
        assert sum(each["histogram"]["counts"]) == each["requests"]
    assert (told["left_out"], told["model"], bool(told["variant"])) == ({}, "meter-reader", True)
    assert plotted.read_text().startswith("<svg ")
    assert list(Path("/dev/shm").glob("edge-gateway-bench-*")) == []


@pytest.mark.timeout(180)
def test_a_large_image_passes_the_windows_of_http2(bench: Bench, tmp_path: Path) -> None:
    noise, buffer = np.random.default_rng(0).integers(0, 255, (800, 800, 3), np.uint8), io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    (tmp_path / "noise.png").write_bytes(buffer.getvalue())
    assert len(buffer.getvalue()) > 1_500_000
    done = bench(
        "meter-reader", "--image", str(tmp_path / "noise.png"), "--frontends", "grpc", "--concurrency", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["left_out"]) == ["bare"]


@pytest.mark.timeout(180)
def test_arrays_of_a_file(bench: Bench) -> None:
    golden = str(SHIPPED / "activity/1/golden.npz")
    done = bench("activity", "--npz", golden, "--frontends", "http,mqtt", "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert "http ×1" in done.stdout
    assert "not measured: mqtt: it needs a broker" in done.stdout
    assert "note: load and gateway are on one machine" in done.stdout


@pytest.mark.timeout(180)
def test_mqtt_through_a_broker(bench: Bench, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        broker = Mosquitto(tmp_path)
        runner.run(broker.start())
        try:
            where = ("--mqtt", f"mqtt://127.0.0.1:{broker.port}")
            done = bench("activity", "--frontends", "mqtt", "--concurrency", "1,2", "--json", *where)
        finally:
            runner.run(broker.stop())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [each["front_end"] for each in told["measurements"]] == ["bare", "mqtt", "mqtt"]
    assert told["left_out"] == {}


def test_a_running_gateway(bench: Bench, gateway: Daemon) -> None:
    arguments = ("activity", "--address", gateway.http, "--concurrency", "1")
    told = json.loads(bench(*arguments, "--grpc-address", gateway.grpc, "--json").stdout)
    assert [each["front_end"] for each in told["measurements"]] == ["grpc", "http"]
    assert set(told["left_out"]) == {"bare", "shm"}
    assert {each["cpu_us"] for each in told["measurements"]} == {None}
    without = bench(*arguments, "--frontends", "grpc")
    assert (without.returncode, without.stdout) == (1, "")
    assert "--grpc-address" in without.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nothing",), 2, "known are"),
        (("activity", "--frontends", "ftp"), 2, "takes grpc,http,mqtt,shm"),
        (("activity", "--concurrency", "0"), 2, "above 0"),
        (("activity", "--address", "127.0.0.1:1"), 3, "no gateway answers"),
        (("activity", "--address", "https://127.0.0.1:1"), 2, "without TLS"),
    ],
)
def test_errors(bench: Bench, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
