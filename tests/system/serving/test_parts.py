"""A language model in a worker process of a real daemon, whose text comes in parts."""

from __future__ import annotations

import json
import os
import queue
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.simulators import writer
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, running
from tests.simulators.writer import words
from tests.system.serving.test_isolation import metrics, workers

CONFIG = QUIET + SHORT_TRIALS + '[limits]\nrun_limit_s = 30.0\ndrain_s = 1.0\n[isolation]\nmodels = ["writer"]\n'
WAIT_S = 60.0
ENDLESS = {"text_input": "w", "max_tokens": 10**9, "pause_s": 0.01}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("parts")
    writer.write_release(folder / "models")
    environ = writer.given_to(folder / "site")
    with running(folder / "gateway", models=folder / "models", config=CONFIG, environ=environ) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}/v2/models/writer", timeout=120, trust_env=False) as made:
        yield made


def event(lines: Iterator[str]) -> dict[str, Any]:
    line = next(lines)
    assert next(lines) == ""
    return dict(json.loads(line.removeprefix("data: ")))


def answers(client: httpx.Client) -> bool:
    answer = client.post("/generate", json={"text_input": "w", "max_tokens": 3})
    return bool(answer.status_code == 200 and answer.json()["text_output"] == words(3))


def test_a_killed_worker_ends_its_text_with_an_error_and_the_next_one_is_answered(
    daemon: Daemon, client: httpx.Client
) -> None:
    with client.stream("POST", "/generate_stream", json=ENDLESS) as answer:
        lines = answer.iter_lines()
        assert event(lines)["text_output"] == "w0 "
        for pid in workers(daemon.pid):
            os.kill(pid, signal.SIGKILL)
        last = [json.loads(line.removeprefix("data: ")) for line in lines if line][-1]
    assert "its worker process" in last["error"]
    while not answers(client):  # until the next worker is open
        pass


def test_a_client_that_leaves_frees_the_model(daemon: Daemon, client: httpx.Client) -> None:
    with client.stream("POST", "/generate_stream", json=ENDLESS) as answer:
        event(answer.iter_lines())
    assert answers(client)  # it takes one run at a time, and that one never ends by itself
    assert 'gateway_response_parts_total{model="writer",version="1"}' in metrics(daemon)


def test_tritonclient_gets_parts(daemon: Daemon) -> None:
    found: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(daemon.grpc) as client:
        client.start_stream(callback=lambda result, error: found.put(error or result))
        tensors = [triton.InferInput("text_input", [1], "BYTES"), triton.InferInput("stream", [1], "BOOL")]
        for tensor, value in zip(tensors, (np.array([b"w"], object), np.array([True])), strict=True):
            tensor.set_data_from_numpy(value)
        client.async_stream_infer("writer", tensors, request_id="1", enable_empty_final_response=True)
        results = [found.get(timeout=WAIT_S)]
        while not results[-1].get_response().parameters["triton_final_response"].bool_param:
            results.append(found.get(timeout=WAIT_S))
        client.stop_stream()
    assert [each.as_numpy("text_output")[0] for each in results] == [b"w0 ", b"w1 ", b"w2 ", b""]


def test_a_stop_ends_a_text_that_goes_on(daemon: Daemon, client: httpx.Client) -> None:
    with client.stream("POST", "/generate_stream", json=ENDLESS) as answer:
        lines = answer.iter_lines()
        event(lines)
        daemon.signal(signal.SIGTERM)
        with suppress(httpx.HTTPError):  # it is cut off, or ends with an event
            for _ in lines:
                pass
    assert daemon.ended() == 0
