"""Answers of a daemon for one journey: tensors of the bare model, results of its versions."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from tests.simulators.daemon import Daemon
from tests.world.entry import Tensors
from tests.world.journeys.record import Ask, Journey

READY_S, POLL_S = 180.0, 0.1


class Served:
    """Client of a daemon that serves the bare model and the versions of a journey."""

    def __init__(self, daemon: Daemon, journey: Journey) -> None:
        self._client, self._http, self.journey = triton.InferenceServerClient(daemon.grpc), daemon.http, journey

    def bare(self, asks: Sequence[Ask]) -> Iterator[Tensors]:
        """Yield the outputs of the bare model."""
        name, carried = f"{self.journey.name}-bare", Tensors()
        self._wait(name, "")
        outputs = [each.name for each in self._client.get_model_metadata(name).outputs]
        for ask in asks:
            carried = self._infer(name, "", ask, carried, outputs)
            yield carried

    def results(self, version: str, asks: Sequence[Ask]) -> list[Any]:
        """Return the results of the task for prepared tensors; none if nothing is compared."""
        if self.journey.compare is None:
            return []
        self._wait(self.journey.name, version)
        states = sorted({each for ask in asks for each in ask.carried.values()})
        found, carried = list[Any](), Tensors()
        for ask in asks:
            carried = self._infer(self.journey.name, version, ask, carried, ["result", *states])
            found.append(json.loads(carried["result"].ravel()[0]))
        return found

    def files(self, version: str, asks: Sequence[Ask]) -> list[Any]:
        """Return the results of the task for images that the gateway prepares."""
        connection = http.client.HTTPConnection(self._http, timeout=60)
        path, found = f"/v2/models/{self.journey.name}/versions/{version}/result", []
        for ask in asks:
            if ask.file:
                connection.request("POST", path, ask.file, {"Content-Type": "image/png"})
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status == 200, f"{path}: {answer.status} {content[:300]!r}"
                found.append(json.loads(content))
        connection.close()
        return found

    def _wait(self, name: str, version: str) -> None:
        end_s = time.monotonic() + READY_S
        while not self._client.is_model_ready(name, version):
            assert time.monotonic() < end_s, f"{name} {version} is not ready after {READY_S} s"
            time.sleep(POLL_S)

    def _infer(self, name: str, version: str, ask: Ask, carried: Tensors, outputs: Sequence[str]) -> Tensors:
        tensors = ask.tensors | {into: carried[output] for into, output in ask.carried.items()}
        inputs = []
        for tensor, array in tensors.items():
            inputs.append(triton.InferInput(tensor, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        wanted = [triton.InferRequestedOutput(output) for output in outputs]
        answer = self._client.infer(name, inputs, version, wanted)
        return {output: answer.as_numpy(output) for output in outputs}
