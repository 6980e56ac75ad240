"""Constants of the settings classes with other values: of one instance, or of a program that a test starts.

A test writes them beside the settings, in TOML. `take` moves them out, since a program refuses them in its file.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gateway.common.domain.python310 import tomllib
from gateway.common.domain.settings import constants

S = TypeVar("S")
Constants = Mapping[tuple[str, str, str], Any]
"""Values by module, class and name."""

TABLE = re.compile(r"\[+\s*([\w.]+)\s*\]+")
KEY = re.compile(r"(\w+)\s*=")
START = """\
import importlib, runpy
for (module, kind, name), value in {constants!r}.items():
    setattr(getattr(importlib.import_module(module), kind), name, value)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def settings_with(settings: S, **values: Any) -> S:
    """Return a copy of settings whose constants or settings have these values."""
    kind = type(settings)
    fixed = {name: values.pop(name) for name in constants(kind) if name in values}
    changed = type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **fixed})
    given = {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(typing.cast("Any", kind))}
    return typing.cast("S", changed(**{**given, **values}))


def take(text: str, sections: Mapping[str, type[Any]]) -> tuple[str, Constants]:
    """Return the TOML text without its constants, and the constants. A constant takes one line of the text."""
    document = tomllib.loads(text)
    found = {path: value for name, kind in sections.items() for path, value in _found(kind, document, name)}
    if not found:
        return text, {}
    lines, table = list[str](), ""
    for line in text.splitlines(keepends=True):
        if named := TABLE.match(line):
            table = named[1]
        key = KEY.match(line)
        if key is None or (f"{table}.{key[1]}" if table else key[1]) not in found:
            lines.append(line)
    return "".join(lines), dict(found.values())


def command(words: Sequence[str], given: Constants) -> Sequence[str]:
    """Return a command that ends with `-m MODULE`, with other values of these constants."""
    if not given:
        return words
    return (*words[:-2], "-c", START.format(constants=dict(given), module=words[-1]))


def _found(kind: type[Any], document: Mapping[str, Any], name: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield "table.key" with (module, class, name) and value, of a settings class and of those in it."""
    tables = document if not name else document.get(name, {})
    for table in tables if isinstance(tables, list) else [tables]:
        for key in constants(kind):
            if key in table:
                value = tuple(table[key]) if isinstance(table[key], list) else table[key]
                yield f"{name}.{key}".lstrip("."), ((kind.__module__, kind.__name__, key), value)
        for key, hint in typing.get_type_hints(kind).items():
            inner = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
            if inner and key in table and typing.get_origin(hint) is not typing.ClassVar:
                for path, taken in _found(typing.cast("type[Any]", inner[0]), table, key):
                    yield f"{name}.{path}".lstrip("."), taken
