"""Inputs of a model that messages complete, and the ids of their results.

A message that a broker repeats after a crash gets a result with the same id.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from hashlib import blake2b

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Tensor
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.windows.rings import Complete


@dataclass(slots=True)
class Ready:
    """Input for the model, complete.

    `sensor` measured it, its first and last sample have the times `started_ns` and `ended_ns` (since the epoch). `plan`
    is the content of results of the version that `manifest` describes. `window` is the sensor's window, if the input is
    one.
    """

    sensor: str
    manifest: ModelManifest
    plan: ResultPlan
    tensor: Tensor
    started_ns: int
    ended_ns: int
    window: Complete | None = None
    gap_limit_ns: int = 0
    """Time between two samples of the window above which results tell it."""
    padded_rows: int | None = None
    """Rows that were added to a session; None: the window has a fixed number of rows."""


ID_BYTES = 16
_START, _count = uuid.uuid4().hex[:16], itertools.count()
"""Parts of ids that derive from nothing: one of this process, and a number."""


def message_id(message: Message, session: str, *, timed: bool) -> str:
    """Return the id of the result of one message.

    It derives from route, topic, name and payload, if the message has a name, or the payload a time or a sequence
    number (`timed`); else at QoS 1 from the packet id, which a broker keeps when it repeats a message in its `session`.
    At QoS 0 nothing is repeated.
    """
    timed = timed or bool(message.name)
    if not message.qos and not timed:
        return f"{_START}{next(_count):016x}"
    digest = blake2b(f"{message.route}\0{message.topic}\0".encode(errors="replace"), digest_size=ID_BYTES)
    own = str(message.name).encode(errors="replace") if timed else message.mid.to_bytes(2, "big") + session.encode()
    digest.update(own)
    digest.update(message.payload)
    return digest.hexdigest()


def window_id(route: str, ready: Ready, window: Complete, *, timed: bool) -> str:
    """Return the id of the result of a window, from its sensor, its samples and their place.

    The place is their times if the payload holds them (`timed`). The times of their arrival change if the broker
    repeats one, so that the place is then the number of the window.
    """
    place = f"{ready.started_ns}\0{ready.ended_ns}" if timed else f"{window.number}"
    digest = blake2b(f"{route}\0{ready.sensor}\0{place}".encode(errors="replace"), digest_size=ID_BYTES)
    digest.update(ready.tensor.array.tobytes())
    return digest.hexdigest()
