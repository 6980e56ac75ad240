"""A camera: held-out digits as PNG files, one gRPC call a frame, in order, as a camera sends them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from PIL import Image

from gateway.serving.frontends.grpc_v2.codec.protocol import message

RELEASE = Path(__file__).resolve().parents[2] / "models" / "meter-reader" / "1"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
DEADLINE_S = 5.0
UPSCALE = 8
"""Frames are this many times larger than the network's input, so that the gateway has something to resize."""

Tick = Callable[[int, int], None]
"""Progress: done so far, of how many."""


@dataclass(slots=True)
class Played:
    """Results of a run: calls, answers, correct answers, latencies."""

    sent: int = 0
    answered: int = 0
    right: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Share of the sent frames that were answered correctly; a lost answer counts as wrong."""
        return self.right / self.sent if self.sent else 0.0


def play_camera(address: str, tick: Tick) -> Played:
    """Send every held-out digit as a frame and compare the best class with its label."""
    with np.load(RELEASE / "golden.npz", allow_pickle=False) as golden:
        pictures, labels = golden["input.image"], golden["label"]
    played = Played(sent=len(labels))
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=message("inference.ModelInferRequest").SerializeToString,
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )
        for index, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            frame = _frame(_png(picture[0]))
            began = time.perf_counter()
            response = call(frame, timeout=DEADLINE_S)
            played.latencies_ms.append((time.perf_counter() - began) * 1000)
            scores = np.frombuffer(response.raw_output_contents[0], "<f4")
            played.answered += 1
            played.right += int(scores.argmax() == label)
            tick(index + 1, len(labels))
    return played


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
