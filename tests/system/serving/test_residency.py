"""A daemon whose budget has room for a part of its models: real sessions, real memory, files that break."""

import asyncio
import http.client
import json
import re
import select
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.models_made import numbered_layer, save

SIDE = 1024
BUDGET = QUIET + SHORT_TRIALS + "[residency]\nmemory_mib = {}\n"
ONE, TWO = 8, 12
"""MiB for one, and for two models of 4 MiB of weights."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    for number in range(6):
        (folder / f"m{number}").mkdir()
        save(numbered_layer(number, SIDE), folder / f"m{number}" / "model.onnx")
    return folder


@contextmanager
def serving(folder, models, mib):
    """Run a daemon with this budget, once it has tried all models."""
    with running(folder, models=models, config=BUDGET.format(mib)) as daemon:
        daemon.wait_logged("models in step")
        poll(lambda: set(states(daemon)) == {"READY"})  # loads that measured each other are repeated
        yield daemon


def exchange(daemon, method, path, body=None):
    connection = http.client.HTTPConnection(*daemon.http.split(":"), timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def states(daemon):
    _, content = exchange(daemon, "POST", "/v2/repository/index")
    return [line["state"] for line in json.loads(content)]


def ask(daemon, number):
    """Return the status, and the number of the model that answered or the refusal."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, SIDE], "data": [0.0] * SIDE}
    status, content = exchange(daemon, "POST", f"/v2/models/m{number}/infer", json.dumps({"inputs": [tensor]}))
    answer = json.loads(content)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def samples(daemon, name):
    """Return the samples of a metric, by their labels."""
    _, page = exchange(daemon, "GET", "/metrics")
    lines = (line.rpartition(" ") for line in page.splitlines() if line.startswith(f"edge_gateway_{name}"))
    return {head.removeprefix(f"edge_gateway_{name}"): float(value) for head, _, value in lines}


def resident_mib(daemon):
    with open(f"/proc/{daemon.pid}/statm") as file:  # noqa: PTH123  no file of a folder
        return int(file.read().split()[1]) * 4096 / 2**20


def poll(question, tries=3000):
    for _ in range(tries):
        if found := question():
            return found
        select.select([], [], [], 0.02)  # nothing tells of these changes
    raise AssertionError(f"{question} was never true")


def test_six_models_answer_in_a_budget_for_two(library, tmp_path):
    with serving(tmp_path / "daemon", library, TWO) as daemon:
        assert states(daemon) == ["READY"] * 6
        assert exchange(daemon, "GET", "/v2/health/ready")[0] == 200
        assert len(samples(daemon, "model_resident_bytes")) in (1, 2), "the others are closed from the start"
        for number in (*range(6), *range(6)):
            assert ask(daemon, number) == (200, number)
        used, budget = samples(daemon, "residency_used_bytes"), samples(daemon, "residency_budget_bytes")
        assert used['{kind="cpu"}'] <= budget['{kind="cpu"}'] == TWO * 2**20
        assert samples(daemon, "evictions_total")['{reason="memory"}'] >= 8
        assert samples(daemon, "wakes_total").keys() == {'{outcome="opened"}'}
        (line,) = [value for key, value in samples(daemon, "wake_wait_seconds_count").items() if 'model="m0"' in key]
        assert line >= 1
        asked = [*COMMAND, "models", "--json", "--url", f"http://{daemon.http}"]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
        memory = sorted(one["memory"] for one in json.loads(done.stdout)["models"])
        assert [bool(re.fullmatch(r"(cold, )?\d+ MiB", each)) for each in memory] == [True] * 6, memory
        assert sum(each.startswith("cold, ") for each in memory) in {4, 5}  # one may be larger


def test_a_hundred_callers_of_all_models_at_once_are_all_answered(library, tmp_path):
    async def together(address):
        async with triton.InferenceServerClient(address) as client:
            given = triton.InferInput("x", [1, SIDE], "FP32")
            given.set_data_from_numpy(np.zeros((1, SIDE), np.float32))
            asking = (client.infer(f"m{number % 6}", [given], client_timeout=100) for number in range(100))
            return [float(answer.as_numpy("y")[0, 0]) for answer in await asyncio.gather(*asking)]

    with serving(tmp_path / "daemon", library, ONE) as daemon:
        assert asyncio.run(together(daemon.grpc)) == [number % 6 for number in range(100)]


def test_a_file_that_is_gone_or_broken_is_said_and_the_others_answer(library, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for number in range(3):
        (models / f"m{number}").mkdir()
        (models / f"m{number}" / "model.onnx").write_bytes((library / f"m{number}" / "model.onnx").read_bytes())
    with serving(tmp_path / "daemon", models, ONE) as daemon:
        whole = (models / "m2" / "model.onnx").read_bytes()
        ask(daemon, 0)  # so that m2 is closed
        with (models / "m2" / "model.onnx").open("r+b") as file:
            file.write(b"broken")
        _, words = poll(lambda: (found := ask(daemon, 2))[0] == 503 and "EG-316" in found[1] and found)
        assert "was closed to save memory and cannot be opened again" in words
        assert ask(daemon, 1) == (200, 1)
        (models / "m2" / "model.onnx").write_bytes(whole)
        poll(lambda: ask(daemon, 2) == (200, 2))


def cycles(daemon, count):
    """Open and close two models by turns."""
    for number in range(count):
        assert ask(daemon, number % 2) == (200, number % 2)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=(pytest.mark.long, pytest.mark.timeout(1200)))])
def test_what_is_closed_gives_its_memory_back(library, tmp_path, count):
    with serving(tmp_path / "daemon", library, ONE) as daemon:
        cycles(daemon, 20)
        before = resident_mib(daemon)
        cycles(daemon, count)
        assert resident_mib(daemon) <= before * 1.05
        assert samples(daemon, "wakes_total")['{outcome="opened"}'] >= count


def test_a_reload_and_a_stop_while_models_wake(library, tmp_path):
    with serving(tmp_path / "daemon", library, ONE) as daemon:
        connections = [http.client.HTTPConnection(*daemon.http.split(":"), timeout=60) for _ in range(6)]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, SIDE], "data": [0.0] * SIDE}
        for number, connection in enumerate(connections):
            connection.request("POST", f"/v2/models/m{number}/infer", json.dumps({"inputs": [tensor]}))
        daemon.reload()
        answers = [connection.getresponse() for connection in connections]
        assert [(answer.status, bool(answer.read())) for answer in answers] == [(200, True)] * 6
        for number, connection in enumerate(connections):
            connection.request("POST", f"/v2/models/m{number}/infer", json.dumps({"inputs": [tensor]}))
        assert daemon.stop() == 0
        for connection in connections:
            connection.close()
