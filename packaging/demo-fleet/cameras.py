"""Cameras that never stop: digits as PNG over gRPC, one after the other, each answer compared with its label."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from PIL import Image

from gateway.serving.frontends.grpc_v2.codec.protocol import message

RELEASE = Path(__file__).resolve().parents[2] / "models" / "meter-reader" / "1"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
DEADLINE_S, PAUSE_S = 10.0, 0.02
UPSCALE = 8
"""Frames are this many times larger than the network's input, so that the gateway has something to resize."""


@dataclass(slots=True)
class Played:
    """Results of a camera's calls. `versions`: number of answers by the version that gave them."""

    calls: int = 0
    right: int = 0
    failures: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    slowest_ms: float = 0.0


class Camera:
    """Camera that calls one gateway from `start` to `stop`. A failed call is counted and not repeated."""

    def __init__(self, address: str) -> None:
        self.played = Played()
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> None:
        """Start the calls."""
        self._thread.start()

    def stop(self) -> Played:
        """Stop after the call in progress. Return the results."""
        self._stop.set()
        self._thread.join(2 * DEADLINE_S)
        return self.played

    def _play(self) -> None:
        with np.load(RELEASE / "golden.npz", allow_pickle=False) as golden:
            frames = [
                (_frame(_png(picture[0])), int(label))
                for picture, label in zip(golden["input.image"], golden["label"], strict=True)
            ]
        with grpc.insecure_channel(self._address) as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=message("inference.ModelInferRequest").SerializeToString,
                response_deserializer=message("inference.ModelInferResponse").FromString,
            )
            while not self._stop.is_set():
                self._ask(call, *frames[self.played.calls % len(frames)])
                self._stop.wait(PAUSE_S)

    def _ask(self, call: Any, frame: object, label: int) -> None:
        played, began_s = self.played, time.perf_counter()
        played.calls += 1
        try:
            response = call(frame, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            played.failures.append(f"{error.code().name}: {error.details()}")
            return
        played.slowest_ms = max(played.slowest_ms, (time.perf_counter() - began_s) * 1000)
        played.right += int(np.frombuffer(response.raw_output_contents[0], "<f4").argmax() == label)
        played.versions[response.model_version] = played.versions.get(response.model_version, 0) + 1


def _png(picture: np.ndarray) -> bytes:
    pixels = np.kron(np.rint(picture * 255).astype(np.uint8), np.ones((UPSCALE, UPSCALE), np.uint8))
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _frame(encoded: bytes) -> object:
    request = message("inference.ModelInferRequest")(model_name="meter-reader")
    request.inputs.add(name="image", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(encoded).to_bytes(4, "little") + encoded)
    return request
