"""Formats of documents by media type: the one table. The content is never guessed.

A reader turns bytes into a document: a tree of values. It bounds its nesting, allocates nothing by a length that the
payload only claims, and raises RequestError INVALID for anything that it cannot read. Raw numbers, images and Sparkplug
messages are no documents by themselves: `raw`, `sparkplug`.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType
from gateway.serving.frontends.mqtt.inbound.payloads.documents import read_cbor, read_json, read_lines, read_msgpack
from gateway.serving.frontends.mqtt.inbound.payloads.protobuf import protobuf_reader, read_unconfigured
from gateway.serving.frontends.mqtt.inbound.payloads.senml import read_senml_cbor, read_senml_json
from gateway.serving.frontends.mqtt.inbound.payloads.text import lenient_number, read_csv, read_text
from gateway.serving.frontends.mqtt.settings.route import PROTOBUF, MqttRoute

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


TEXTS = ("application/json", "application/x-ndjson", "text/plain", "text/csv", "application/senml+json")
"""Formats that a lenient route reads with a byte order mark before them and NUL behind them."""


def readers_of(route: MqttRoute) -> Mapping[str, Reader]:
    """Return the readers of a route. Raises ConfigurationError if its descriptors cannot be used."""
    readers = dict(FORMATS)
    if route.descriptor:
        readers |= dict.fromkeys(PROTOBUF, protobuf_reader(route.descriptor, route.message, route.table))
    if route.lenient:
        readers |= {media: partial(_read_leniently, FORMATS[media]) for media in TEXTS}
    return readers


def _read_leniently(read: Reader, payload: bytes, content: ContentType) -> Any:
    found = read(payload.removeprefix(BOM_UTF8).rstrip(b"\0"), content)
    number = lenient_number(found) if isinstance(found, str) else None
    return found if number is None else number
