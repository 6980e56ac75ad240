"""Callers without pauses over gRPC and HTTP, each on a thread, until they are stopped."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from tests.simulators.daemon import WAIT_S, Daemon, golden

Ask = Callable[[], tuple[str, np.ndarray[Any, Any]]]
"""Send one request. Return the version that answered and its scores. Raise the client's exceptions."""


class Hammer:
    """Caller that repeats one request.

    `versions`: the version of each correct result, in order; `failures`: errors and wrong results. Each request has
    `rows` rows and is followed by `pause_s`.
    """

    def __init__(self, model: str, rows: int = 1, pause_s: float = 0.0) -> None:
        self.model, self._pause_s = model, pause_s
        self.failures: list[str] = []
        self.versions: list[str] = []
        self._wanted = golden(model, rows)
        self._changed = threading.Condition()
        self._stopped = False

    def wait(self, accepts: Callable[[Hammer], bool]) -> None:
        """Wait until `accepts`, which is called after each result and failure."""
        with self._changed:
            assert self._changed.wait_for(lambda: accepts(self), WAIT_S), (self.failures[:3], len(self.versions))

    def wait_answers(self, more: int = 20) -> None:
        """Wait until this many more requests have results."""
        wanted = len(self.versions) + more
        self.wait(lambda hammer: len(hammer.versions) >= wanted)

    def stop(self) -> None:
        """Send no more requests."""
        self._stopped = True

    def over_grpc(self, address: str) -> None:
        tensor = triton.InferInput(self._wanted.name, list(self._wanted.rows.shape), "FP32")
        tensor.set_data_from_numpy(self._wanted.rows)
        with triton.InferenceServerClient(address) as client:

            def ask() -> tuple[str, np.ndarray[Any, Any]]:
                answer = client.infer(self.model, [tensor])
                return answer.get_response().model_version, answer.as_numpy("scores")

            self._turns(ask)

    def over_http(self, address: str) -> None:
        rows = self._wanted.rows
        tensor = {"name": self._wanted.name, "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()}
        body = json.dumps({"inputs": [tensor]}).encode()
        connection = http.client.HTTPConnection(address, timeout=WAIT_S)

        def ask() -> tuple[str, np.ndarray[Any, Any]]:
            connection.request("POST", f"/v2/models/{self.model}/infer", body)
            response = connection.getresponse()
            said = json.loads(response.read())
            if response.status != http.client.OK:
                raise RuntimeError(f"HTTP {response.status}: {said}")
            return said["model_version"], np.array(said["outputs"][0]["data"])

        self._turns(ask)
        connection.close()

    def _turns(self, ask: Ask) -> None:
        while not self._stopped:
            if self._pause_s:
                time.sleep(self._pause_s)
            try:
                version, scores = ask()
                right = np.array_equal(
                    scores.reshape(self._wanted.scores.shape).argmax(-1), self._wanted.scores.argmax(-1)
                )
                self._note(self.versions if right else self.failures, version if right else f"wrong answer {scores}")
            except Exception as error:  # noqa: BLE001  the test checks for any exception of the client
                self._note(self.failures, f"{type(error).__name__}: {error}")
                return

    def _note(self, where: list[str], what: str) -> None:
        with self._changed:
            where.append(what)
            self._changed.notify_all()


@contextmanager
def hammering(daemon: Daemon, model: str) -> Iterator[Hammer]:
    """Run callers of both protocols on `model`. They are stopped at the end."""
    hammer = Hammer(model)
    threads = [
        threading.Thread(target=hammer.over_grpc, args=(daemon.grpc,)),
        threading.Thread(target=hammer.over_http, args=(daemon.http,)),
    ]
    for thread in threads:
        thread.start()
    try:
        hammer.wait_answers()
        yield hammer
    finally:
        hammer.stop()
        for thread in threads:
            thread.join(WAIT_S)
