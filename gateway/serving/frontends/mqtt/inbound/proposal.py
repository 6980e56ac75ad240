"""Proposal of a route from one message: preset, format, rows and channels. Pure functions.

Formats are guessed here, for an operator who reads the result; the gateway itself never guesses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gateway.common.domain.errors import RequestError
from gateway.serving.frontends.mqtt.inbound.payloads.channels import WORDS
from gateway.serving.frontends.mqtt.inbound.payloads.content import invalid, read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.formats import FORMATS
from gateway.serving.frontends.mqtt.inbound.payloads.raw import ENCODED, RAW
from gateway.serving.frontends.mqtt.inbound.payloads.rows import RowSource, packed_bytes
from gateway.serving.frontends.mqtt.inbound.payloads.text import number_or_text
from gateway.serving.frontends.mqtt.settings.paths import compile_path
from gateway.serving.frontends.mqtt.settings.presets import JSON, PRESETS, SPARKPLUG, TEXT
from gateway.serving.frontends.mqtt.settings.route import CONTENT_TYPES, MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter

DEPTH_LIMIT = 6
"""Deepest level of a document at which values are looked for."""
VALUES_SHOWN = 64
"""Most channels that are proposed."""
NO_SIGNALS = frozenset({"timestamp", "time", "ts", "t", "id", "seq", "fcnt", "f_cnt", "fport", "f_port"})
"""Names of numbers that are no measurements, in lower case: their channels are proposed as comments."""
_SIGNATURES = ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG", "image/png"), (b"RIFF", "audio/wav"))
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ProposedChannel:
    """Path of a value, and the value that was found. `is_signal`: it may be a measurement."""

    path: str
    found: Any
    is_signal: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings of a route: `settings` in the order of the file, with their comments."""

    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    channels: tuple[ProposedChannel, ...] = ()


def propose(payload: bytes, topic: str, content_type: str, model: str) -> Proposal:
    """Return the proposal for a message; "" for what is not known.

    Raises RequestError INVALID if no format fits or no number is found.
    """
    for preset, filter_ in (*_presets(topic, content_type).items(), ("", "")):
        media = content_type or (PRESETS[preset].content_type if preset else guess_format(payload))
        settings = _with_preset(preset, filter_, model) if preset else _without_preset(topic, media, model)
        if read_content_type(media).media in {*ENCODED, RAW, SPARKPLUG}:
            return Proposal(settings)
        with suppress(_NothingFoundError, RequestError if preset else _NothingFoundError):
            return _proposed(payload, topic, preset, media, settings)
    raise invalid("no numbers, booleans or state words are in the payload; name its format with --content-type")


class _NothingFoundError(Exception):
    """No value of a message may be a channel."""


def _proposed(payload: bytes, topic: str, preset: str, media: str, settings: dict[str, tuple[str, str]]) -> Proposal:
    """Return the proposal with a preset, or without one (""). Raises _NothingFoundError."""
    content = read_content_type(media)
    if content.media not in FORMATS:
        raise invalid(f"content type '{content.media:.80}' is not known; known are {', '.join(CONTENT_TYPES)}")
    document = FORMATS[content.media](payload, content)
    route = MqttRoute("proposal", ("t",), "m", preset=preset, content_type=media)
    if not preset and (rows := _rows_path(document)):
        settings["rows"] = (rows, "path of the array of rows")
        route = replace(route, rows=rows)
    found = RowSource(route).rows(document, topic)[0]
    if found is None and route.struct_path:
        route = _packed(route, document, settings)
        found = RowSource(route).rows(document, topic)[0]
    channels = tuple(islice(_channels(found, "", 0), VALUES_SHOWN))
    if not channels:
        raise _NothingFoundError
    return Proposal(settings, channels)


def _packed(route: MqttRoute, document: Any, settings: dict[str, tuple[str, str]]) -> MqttRoute:
    """Return a route that unpacks single bytes: an example of a layout. Raises _NothingFoundError."""
    value = compile_path(route.struct_path).find(document)
    if value is None:
        raise _NothingFoundError
    size = len(packed_bytes(value, route.struct_encoding, route.struct_path))
    settings["struct"] = (
        f"<{size}B",
        f"single bytes of '{route.struct_path}'; replace it by the layout, such as <hhHf",
    )
    return replace(route, struct=settings["struct"][0], rows="", channel=(MqttChannel("[0]"),))


def write_toml(proposal: Proposal) -> str:
    """Return the route as TOML with comments."""
    lines = ["[[mqtt.route]]"]
    for name, (value, comment) in proposal.settings.items():
        written = f"[{_quoted(value)}]" if name == "topics" else _quoted(value)
        lines.append(f"{name} = {written}" + (f"  # {comment}" if comment else ""))
    for channel in proposal.channels:
        mark = "" if channel.is_signal else "#"
        lines += ["", f"{mark}[[mqtt.route.channel]]"]
        found = json.dumps(channel.found, default=str)
        lines.append(f"{mark}path = {_quoted(channel.path)}  # found {found:.60}")
    return "\n".join(lines)


def guess_format(payload: bytes) -> str:
    """Return the content type that fits a payload. Raises RequestError INVALID if none does."""
    signed = next((media for signature, media in _SIGNATURES if payload.startswith(signature)), "")
    if signed:
        return signed
    plausible: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("application/senml+json", bool),
        (JSON, lambda found: isinstance(found, list | dict)),
        ("application/x-ndjson", lambda found: len(found) > 1 and isinstance(found[0], list | dict)),
        (TEXT, _is_number),
        ("text/csv", lambda found: len(found) > 1 or (bool(found) and len(found[0]) > 1)),
        ("application/cbor", lambda found: isinstance(found, list | dict)),
        ("application/x-msgpack", lambda found: isinstance(found, list | dict)),
    )
    for media, fits in plausible:
        try:
            if fits(FORMATS[media](payload, read_content_type(media))):
                return media
        except RequestError:
            continue
    raise invalid("no format fits the payload; name it with --content-type")


def _presets(topic: str, content_type: str) -> dict[str, str]:
    """Return the filter that takes `topic` by preset, those with the fewest wildcards first."""
    found = list[tuple[int, str, str]]()
    for name, preset in PRESETS.items():
        if not topic or content_type not in {"", preset.content_type}:
            continue
        for filter_ in preset.topics:
            if read_filter(filter_).takes(topic.split("/")):
                found.append((sum(level in {"+", "#"} for level in filter_.split("/")), name, filter_))
    return {name: filter_ for _, name, filter_ in sorted(found, key=lambda each: each[0])}


def _with_preset(preset: str, filter_: str, model: str) -> dict[str, tuple[str, str]]:
    known = PRESETS[preset]
    comment = f"{known.title}; sensor: {known.sensor}, format: {known.content_type}"
    return {**_head(preset, filter_, model), "preset": (preset, comment)}


def _without_preset(topic: str, media: str, model: str) -> dict[str, tuple[str, str]]:
    """Return settings for topics like `topic`: the sensor is its second level, or its only one."""
    levels = topic.split("/") if topic else ["sensors", "+"]
    place = min(1, len(levels) - 1)
    filter_ = "/".join("+" if place and index == place else level for index, level in enumerate(levels))
    sensor = (f"topic[{place}]", f"level {place} of the topic, from 0")
    return {**_head(levels[0], filter_, model), "sensor": sensor, "content_type": (media, "format of the payload")}


def _head(name: str, filter_: str, model: str) -> dict[str, tuple[str, str]]:
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64] or "route"
    return {
        "name": (plain, "level of the result topic"),
        "topics": (filter_, "topic filters: + stands for any level"),
        "model": (model or "MODEL", "the model that takes the rows" if model else "replace it by the model's name"),
    }


def _rows_path(document: Any) -> str:
    """Return the path of the only array of objects in an object, "" if there is none."""
    if not isinstance(document, dict):
        return ""
    arrays = [
        key
        for key, value in document.items()
        if isinstance(key, str) and isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    return _key(arrays[0]) if len(arrays) == 1 else ""


def _channels(value: Any, path: str, depth: int) -> Iterator[ProposedChannel]:
    """Yield the channels of a row, in its order."""
    if isinstance(value, dict) and depth < DEPTH_LIMIT:
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _channels(inner, f"{path}.{_key(key)}".lstrip("."), depth + 1)
    elif isinstance(value, list) and depth < DEPTH_LIMIT and not path:
        for index, inner in enumerate(value):
            yield from _channels(inner, f"[{index}]", depth + 1)
    elif _is_number(value) or (isinstance(value, list) and value and all(map(_is_number, value))):
        last = path.rpartition(".")[2].strip('"').lower()
        yield ProposedChannel(path or "@", value, last not in NO_SIGNALS)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in WORDS or not isinstance(number_or_text(value.strip()), str)
    return isinstance(value, bool | int | float)


def _key(key: str) -> str:
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key)


def _quoted(text: str) -> str:
    """Return a TOML string: literal if it holds quotes, as paths with quoted keys do."""
    return f"'{text}'" if '"' in text and "'" not in text and text.isprintable() else json.dumps(text)
