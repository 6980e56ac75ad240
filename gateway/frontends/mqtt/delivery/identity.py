"""Ids of results: a message that a broker repeats after a crash gets a result with the same id. Pure functions."""

from __future__ import annotations

import uuid
from hashlib import blake2b

from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.routes.inputs import Ready

ID_BYTES = 16


def message_id(message: Message, *, timed: bool) -> str:
    """Return the id of the result of one message.

    It derives from topic and payload, if the payload holds a time or a sequence number (`timed`); else at QoS 1 also
    from the packet id, which a broker keeps when it repeats a message. At QoS 0 nothing is repeated.
    """
    if not message.qos and not timed:
        return uuid.uuid4().hex
    digest = blake2b(message.topic.encode(errors="replace"), digest_size=ID_BYTES)
    digest.update(b"\0" + (b"" if timed else message.mid.to_bytes(2, "big")))
    digest.update(message.payload)
    return digest.hexdigest()


def window_id(route: str, ready: Ready) -> str:
    """Return the id of the result of a window, from its sensor, its times and its samples."""
    digest = blake2b(f"{route}\0{ready.sensor}\0{ready.started_ns}\0{ready.ended_ns}".encode(), digest_size=ID_BYTES)
    digest.update(ready.tensor.array.tobytes())
    return digest.hexdigest()
