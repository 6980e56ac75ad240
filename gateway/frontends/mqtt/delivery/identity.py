"""Ids of results: a message that a broker repeats after a crash gets a result with the same id. Pure functions."""

from __future__ import annotations

import uuid
from hashlib import blake2b

from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.routes.inputs import Ready
from gateway.frontends.mqtt.windows.rings import Complete

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


def window_id(route: str, ready: Ready, window: Complete, *, timed: bool) -> str:
    """Return the id of the result of a window, from its sensor and samples.

    It derives also from their times, if samples have times of their own (`timed`); else from the window's number,
    which the journal keeps: the times of arrival are others when a broker repeats the samples.
    """
    place = f"{window.started_ns}\0{window.ended_ns}" if timed else str(window.number)
    digest = blake2b(f"{route}\0{ready.sensor}\0{place}\0".encode(), digest_size=ID_BYTES)
    digest.update(window.rows.tobytes())
    return digest.hexdigest()
