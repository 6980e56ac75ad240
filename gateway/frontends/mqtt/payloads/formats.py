"""Formats of documents by media type: the one table. The content is never guessed.

A reader turns bytes into a document: a tree of values. It bounds its nesting, allocates nothing by a length that the
payload only claims, and raises RequestError INVALID for anything that it cannot read. Raw numbers, images and Sparkplug
messages are no documents by themselves: `raw`, `images`, `sparkplug`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.frontends.mqtt.payloads.cbor import read_cbor
from gateway.frontends.mqtt.payloads.content_type import ContentType
from gateway.frontends.mqtt.payloads.json_text import read_json, read_lines
from gateway.frontends.mqtt.payloads.msgpack import read_msgpack
from gateway.frontends.mqtt.payloads.protobuf import protobuf_reader, read_unconfigured
from gateway.frontends.mqtt.payloads.senml import read_senml_cbor, read_senml_json
from gateway.frontends.mqtt.payloads.text import read_csv, read_text
from gateway.frontends.mqtt.route_settings import PROTOBUF, MqttRoute

Reader = Callable[[bytes, ContentType], Any]
FORMATS: Mapping[str, Reader] = {
    "application/json": read_json,
    "application/x-ndjson": read_lines,
    "text/plain": read_text,
    "text/csv": read_csv,
    "application/cbor": read_cbor,
    "application/x-msgpack": read_msgpack,
    "application/msgpack": read_msgpack,
    "application/senml+json": read_senml_json,
    "application/senml+cbor": read_senml_cbor,
    **dict.fromkeys(PROTOBUF, read_unconfigured),
}
"""Reader of each media type; a route with descriptors has its own reader of protobuf."""


def readers_of(route: MqttRoute) -> Mapping[str, Reader]:
    """Return the readers of a route. Raises ConfigurationError if its descriptors cannot be used."""
    if not route.descriptor:
        return FORMATS
    return {**FORMATS, **dict.fromkeys(PROTOBUF, protobuf_reader(route.descriptor, route.message, route.table))}
