"""The JSON that goes out (contracts.md, "MQTT"). Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferResponse
from gateway.domain.tensor import Datatype
from gateway.frontends.mqtt.feed import Ready
from gateway.frontends.status import error_text


def result(identity: str, ready: Ready, response: InferResponse) -> bytes:
    """A result: the best class of the first output, its score, who served, whose samples, from when to when."""
    label, score = judge(ready, response)
    return msgspec.json.encode(
        {
            "id": identity,
            "label": label,
            "score": score,
            "model": response.model,
            "version": response.version,
            "variant": response.variant,
            "sensor": ready.sensor,
            "started_at": timestamp(ready.started_ns),
            "ended_at": timestamp(ready.ended_ns),
        }
    )


def error(identity: str, topic: str, refused: RequestError) -> bytes:
    """A refusal. `error` repeats `message`, since that is what clients of the inference protocol look for."""
    message = error_text(refused.message)
    return msgspec.json.encode(
        {"id": identity, "topic": topic, "fault": refused.fault.value, "message": message, "error": message}
    )


def judge(ready: Ready, response: InferResponse) -> tuple[str, float | None]:
    """Label and score of the first output's best class; the class's number where it has no label.

    The score is the output's own value: a probability where the manifest declares softmax. None where it is not a
    finite number. A text output is its own label.
    """
    output = next(iter(response.outputs.values()))
    values = output.array.reshape(-1)
    if output.datatype is Datatype.BYTES or not values.size:
        return _text(values[0]) if values.size else "", None
    best = int(np.argmax(values))
    labels = ready.manifest.labels
    score = float(values[best])
    return labels[best] if best < len(labels) else str(best), score if np.isfinite(score) else None


def timestamp(wall_ns: int) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(wall_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
