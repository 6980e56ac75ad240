"""Templates of topics and payloads: placeholders `{name}` of a fixed set, without expressions. Pure functions.

Any other brace is text, so that a template of JSON needs no escapes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from gateway.common.domain.errors import ConfigurationError

Value = str | float | bool | None
Values = Mapping[str, Value]
"""Values of the placeholders of one message. None: the model did not give it."""
TEMPLATE_LIMIT_CHARS = 4_096
TOPIC_LIMIT_CHARS = 1_024
"""Longest topic that a template makes: 4 KiB at most in UTF-8, where MQTT allows 64."""
PAYLOAD_FORMS = ("json", "text", "value")
NAMES = (
    *("gateway", "route", "sensor", "model", "version", "variant", "id", "started_at", "ended_at"),
    *("label", "score", "value"),
)
"""Placeholders of every template."""
RULE_NAMES = (*NAMES, "rule", "state")
"""Placeholders of the templates of rules."""
RESULT_NAMES = frozenset(RULE_NAMES) - {"gateway", "route", "sensor", "rule"}
"""Placeholders whose values differ between results of one sensor."""
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_UNFIT = (
    *(*range(32), *range(127, 160), *range(0xD800, 0xE000), *range(0xFDD0, 0xFDF0)),
    *(plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)),
)
"""Characters that no topic may hold (MQTT 5, 1.5.4): mosquitto disconnects a client that publishes one."""
VALUE_LIMIT_CHARS = 256
"""Longest value in a topic."""


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """Parsed template. `parts` are texts, and at odd positions names of placeholders."""

    parts: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Return the names of its placeholders."""
        return frozenset(self.parts[1::2])

    def render(self, values: Values, write: Callable[[Value], str]) -> str:
        """Return the text with `write` of each value in the place of its placeholder."""
        return "".join(write(values[part]) if index % 2 else part for index, part in enumerate(self.parts))


def read_template(text: str, names: tuple[str, ...]) -> MessageTemplate:
    """Parse a template. Raises ValueError with the problem for a placeholder that is not among `names`."""
    if len(text) > TEMPLATE_LIMIT_CHARS:
        raise ValueError(f"must have at most {TEMPLATE_LIMIT_CHARS} characters, not {len(text)}")
    template = MessageTemplate(tuple(_PLACEHOLDER.split(text)))
    unknown = sorted(template.names - set(names))
    if unknown:
        raise ValueError(f"has no placeholder {{{unknown[0]:.40}}}; known ones are {', '.join(names)}")
    return template


def is_topic(text: str) -> bool:
    """Return True if a client may publish on `text` (MQTT 5, 4.7.3 and 1.5.4)."""
    return bool(text) and _no_topic().isdisjoint(text)


def topic_level(name: str) -> str:
    """Return `name` as one level of a topic: % and what a level may not hold become %XX (RFC 3986): names differ."""
    return name.translate(_escapes())


def render_topic(template: MessageTemplate, values: Values) -> str:
    """Return a topic of at most TOPIC_LIMIT_CHARS. A value is a level, or a part of one; "_" if there is none."""
    return template.render(values, _write_level)[:TOPIC_LIMIT_CHARS]


def _write_level(value: Value) -> str:
    return topic_level(write_text(value)[:VALUE_LIMIT_CHARS])[:VALUE_LIMIT_CHARS] or "_"


def write_text(value: Value) -> str:
    """Return a value as text: "" for None, on and off for booleans."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else repr(value)


def write_json(value: Value) -> str:
    """Return a value as JSON: null for None and for numbers that JSON lacks, on and off for booleans."""
    if isinstance(value, bool):
        value = write_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    return json.dumps(value, ensure_ascii=False)


def check_topic(text: str, names: tuple[str, ...], *, table: str) -> None:
    """Refuse a template that makes no topic. Raises ConfigurationError (key topic)."""
    problem = "must be a topic without +, # and control characters, that does not begin with $"
    try:
        literal = "".join(read_template(text, names).parts[::2])
    except ValueError as error:
        literal, problem = "#", str(error)
    if not text or text.startswith("$") or not is_topic(literal or "_"):
        raise ConfigurationError(f"{text!r:.150} {problem}", table=table, key="topic")


def check_payload(form: str, text: str, names: tuple[str, ...], *, table: str) -> None:
    """Refuse a form of payload or a template that does not fit. Raises ConfigurationError (payload, template)."""
    if form not in PAYLOAD_FORMS:
        problem = f"must be one of {', '.join(PAYLOAD_FORMS)}, not {form!r:.80}"
        raise ConfigurationError(problem, table=table, key="payload")
    if (form == "text") > bool(text) or (form == "value" and text):
        problem = 'goes with payload = "text", which needs it, or "json"; "value" has none'
        raise ConfigurationError(problem, table=table, key="template")
    try:
        template = read_template(text, names)
    except ValueError as error:
        raise ConfigurationError(f"{text!r:.150} {error}", table=table, key="template") from None
    if form == "json" and text and not all(_is_json(template, value) for value in ("x", None)):
        problem = f"{text!r:.150} makes no JSON; write each placeholder as a value, without quotes: {{label}}"
        raise ConfigurationError(problem, table=table, key="template")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _is_json(template: MessageTemplate, value: Value) -> bool:
    """Return True if the template is JSON with `value` in the place of every placeholder."""
    try:
        json.loads(template.render(dict.fromkeys(template.names, value), write_json), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


@cache
def _no_topic() -> frozenset[str]:
    """Return the characters that no topic of a publication holds."""
    return frozenset(map(chr, (*map(ord, "+#"), *_UNFIT)))


@cache
def _escapes() -> dict[int, str]:
    """Return the texts in place of characters that would change a topic's levels, or that it may not hold."""
    codes = (*map(ord, "+#/%"), *_UNFIT)
    return {code: "".join(f"%{byte:02X}" for byte in chr(code).encode(errors="surrogatepass")) for code in codes}
