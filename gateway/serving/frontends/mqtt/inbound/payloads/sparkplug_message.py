"""Sparkplug B payloads (specification 3.0, chapter 6): protobuf messages of metrics. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gateway.serving.frontends.mqtt.inbound.payloads.content import invalid

PAYLOAD_LIMIT_BYTES = 2**20
"""Largest payload: two bytes are an empty metric, which takes 0.1 KiB of memory."""
PAYLOAD_METRICS_LIMIT = 32_768
"""Most metrics of a payload."""
REBIRTH = "Node Control/Rebirth"
BOOLEAN = 11
"""Datatype of the rebirth command."""
_BITS = {1: 8, 2: 16, 3: 32, 4: 64}
"""Bits of signed integers by datatype: they are sent in unsigned fields."""
_ARRAYS = {22: "b", 23: "h", 24: "i", 25: "q", 26: "B", 27: "H", 28: "I", 29: "Q", 30: "f", 31: "d"}
"""Elements of packed arrays by datatype, little-endian in bytes_value."""
_SCALARS = ("int_value", "long_value", "float_value", "double_value", "boolean_value", "string_value", "bytes_value")
_METRIC = (
    *(("name", 1, "STRING"), ("alias", 2, "UINT64"), ("timestamp", 3, "UINT64"), ("datatype", 4, "UINT32")),
    *(("is_historical", 5, "BOOL"), ("is_null", 7, "BOOL"), ("int_value", 10, "UINT32"), ("long_value", 11, "UINT64")),
    *(("float_value", 12, "FLOAT"), ("double_value", 13, "DOUBLE"), ("boolean_value", 14, "BOOL")),
    *(("string_value", 15, "STRING"), ("bytes_value", 16, "BYTES")),
)
_PAYLOAD = (("timestamp", 1, "UINT64"), ("seq", 3, "UINT64"))
"""Fields that are read; protobuf skips all others."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric of a payload. `datatype` 0: not stated; `value` None: null; `timestamp_ms` None: not stated."""

    name: str
    alias: int | None
    datatype: int
    value: Any
    timestamp_ms: int | None = None
    is_historical: bool = False


@dataclass(frozen=True, slots=True)
class SparkplugPayload:
    """Metrics of a payload, with its time (ms since the epoch) and its sequence number (None: not stated)."""

    timestamp_ms: int | None
    seq: int | None
    metrics: tuple[Metric, ...]


def read_payload(payload: bytes) -> SparkplugPayload:
    """Parse a payload. Integers are unsigned until `typed` knows their datatype. Raises RequestError INVALID."""
    from google.protobuf.message import DecodeError

    if len(payload) > PAYLOAD_LIMIT_BYTES:
        raise invalid(f"the payload has {len(payload)} bytes; Sparkplug payloads have at most {PAYLOAD_LIMIT_BYTES}")
    try:
        parsed = _classes()["Payload"].FromString(payload)
    except (DecodeError, RecursionError) as error:
        raise invalid(f"the payload is no Sparkplug B payload: {error}") from None
    if len(parsed.metrics) > PAYLOAD_METRICS_LIMIT:
        raise invalid(f"the payload has {len(parsed.metrics)} metrics; at most {PAYLOAD_METRICS_LIMIT} are taken")
    metrics = list[Metric]()
    for metric in parsed.metrics:
        held = None if metric.is_null else next((name for name in _SCALARS if metric.HasField(name)), None)
        value = None if held is None else getattr(metric, held)
        alias, timestamp_ms = _stated(metric, "alias"), _stated(metric, "timestamp")
        metrics.append(Metric(metric.name, alias, metric.datatype, value, timestamp_ms, metric.is_historical))
    return SparkplugPayload(_stated(parsed, "timestamp"), _stated(parsed, "seq"), tuple(metrics))


def typed(value: Any, datatype: int) -> Any:
    """Return the value of a metric by its datatype: signed integers, and arrays as lists.

    Raises RequestError INVALID for an array whose size does not match.
    """
    if type(value) is int and datatype in _BITS:
        bits = _BITS[datatype]
        low = value & ((1 << bits) - 1)
        return low - (1 << bits) if low >> (bits - 1) else low
    if type(value) is bytes and datatype in _ARRAYS:
        code = _ARRAYS[datatype]
        size = struct.calcsize(f"<{code}")
        if len(value) % size:
            raise invalid(f"an array metric has {len(value)} bytes, no multiple of {size}")
        return list(struct.unpack(f"<{len(value) // size}{code}", value))
    return value


def rebirth_command(timestamp_ms: int) -> bytes:
    """Return the payload of the NCMD that asks a node for its births."""
    message = _classes()["Payload"](timestamp=timestamp_ms)
    message.metrics.add(name=REBIRTH, timestamp=timestamp_ms, datatype=BOOLEAN, boolean_value=True)
    return bytes(message.SerializeToString())


def _stated(message: Any, field: str) -> int | None:
    return int(getattr(message, field)) if message.HasField(field) else None


@cache
def _classes() -> Mapping[str, Any]:
    """Return the message classes, from a description in code: the wire format is the contract, not a file."""
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="sparkplug_b.proto", package="sparkplug", syntax="proto2")
    for name, fields in (("Metric", _METRIC), ("Payload", _PAYLOAD)):
        message = DescriptorProto(name=name)
        for label, number, kind in fields:
            message.field.add(name=label, number=number, type=f"TYPE_{kind}", label=FieldDescriptorProto.LABEL_OPTIONAL)
        file.message_type.append(message)
    metrics = file.message_type[1].field.add(name="metrics", number=2, type_name=".sparkplug.Metric")
    metrics.type, metrics.label = FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Metric", "Payload")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sparkplug.{name}")) for name in names}
