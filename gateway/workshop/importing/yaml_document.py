"""Strict reader of YAML documents that tools write: mappings, lists and plain values, no references, no tags.

PyYAML splits the text into events; this module makes values of them. An alias could make a small file endless, and
tags name types of Python; exporters write neither, so both are refused with their line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from gateway.common.domain.errors import ConfigurationError

NESTING_LIMIT = 16
"""Most collections inside each other. MLmodel has 4."""
VALUES_LIMIT = 100_000
"""Most values of one document."""
DIGITS_LIMIT = 20
"""Most characters of a number; longer ones stay text."""
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def read_yaml(text: str, file: str) -> dict[str, Any]:
    """Return a document that is a mapping; keys are text. Raises ConfigurationError with the line."""
    try:
        value = _YamlReader(text, file).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigurationError(f"not valid YAML: {error.problem}", file=file, line=line) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"not valid YAML: {error}", file=file) from None
    if not isinstance(value, dict):
        raise ConfigurationError("must be a mapping of keys to values", file=file)
    return value


class _YamlReader:
    """Reader of the events of one text."""

    def __init__(self, text: str, file: str) -> None:
        self._file, self._values = file, 0
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)

    def document(self) -> Any:
        """Return the value of the first document, which must be the only one."""
        next(self._events)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), 1)
        next(self._events)
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            self._fail(event, "a second document follows; keep one")
        return value

    def _value(self, event: yaml.Event, depth: int) -> Any:
        self._values += 1
        if depth > NESTING_LIMIT or self._values > VALUES_LIMIT:
            self._fail(event, f"has more than {NESTING_LIMIT} levels or {VALUES_LIMIT} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._fail(event, "anchors and aliases (& and *) are not read; write the value itself")
        if getattr(event, "tag", None):
            self._fail(event, f"the tag {event.tag!r:.80} is not read; remove it")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        return _plain(event.value) if event.implicit[0] else event.value

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor:
                self._fail(event, "a key must be plain text")
            if event.value in found:
                self._fail(event, f"the key {event.value!r:.80} is given twice; keep one")
            found[event.value] = self._value(next(self._events), depth + 1)
        return found

    def _sequence(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, depth + 1))
        return found

    def _fail(self, event: yaml.Event, problem: str) -> NoReturn:
        raise ConfigurationError(problem, file=self._file, line=event.start_mark.line + 1)


def _plain(text: str) -> Any:
    """Return the value of text without quotes, by the core schema of YAML 1.2; dates and octals stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > DIGITS_LIMIT:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
