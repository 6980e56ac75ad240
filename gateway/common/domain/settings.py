"""Settings: frozen dataclasses that packages declare, built from the tables of a TOML file. Unknown keys are errors.

A `ClassVar` of such a class is a constant. A file that sets it is refused with the name of the constant.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.common.domain.document import Table, read_document
from gateway.common.domain.errors import ConfigurationError

INTEGER_LIMIT = 2**32
"""Largest integer: it exceeds every limit of ours, and a buffer of that size still fits."""
VAST: Mapping[str, int] = types.MappingProxyType({"high": 2**53})
"""`metadata` of a field without a buffer, such as a disk quota: up to integers that JSON keeps exact (RFC 8259, 6)."""
NUMBER_LIMIT = 1e12
SIGNED: Mapping[str, float] = types.MappingProxyType({"low": -NUMBER_LIMIT})
"""`metadata` of a float field that may be negative."""

S = TypeVar("S")
TablesWith = Callable[[str], Sequence[str]]


def sections(config: type[Any]) -> dict[str, type[Any]]:
    """Return settings dataclasses by the name of their table: the fields of `config` that declare one."""
    found = {spec.name: spec.default_factory for spec in dataclasses.fields(config)}
    return {name: typing.cast("type[Any]", kind) for name, kind in found.items() if kind is not dataclasses.MISSING}


def read_tables(text: str, file: str, names: Mapping[str, type[Any]]) -> dict[str, Table]:
    """Return the tables of a configuration file by name, empty if one is absent; any other table is refused.

    Raises ConfigurationError with file and line.
    """
    return only_tables(read_document(text, file), names)


def only_tables(top: Table, names: Mapping[str, type[Any]], elsewhere: TablesWith | None = None) -> dict[str, Table]:
    """Take the tables of a document by name, as `read_tables` does. Raises ConfigurationError."""
    tables = take_tables(top, names)
    top.finish(elsewhere=elsewhere or partial(_tables_with, names))
    return tables


def take_tables(top: Table, names: Iterable[str]) -> dict[str, Table]:
    """Take the same tables of a document that contains others, which the caller takes."""
    return {name: top.table(name) or Table({}, file=top.file, name=name) for name in names}


def read_settings(settings: type[S], table: Table, elsewhere: TablesWith = lambda _key: ()) -> S:
    """Return one settings dataclass from one table, each field by its declared type; unknown keys are refused.

    `elsewhere` returns the tables that have an unknown key. Raises ConfigurationError with file, table and key, also if
    the dataclass itself refuses a value.
    """
    hints = typing.get_type_hints(settings)
    values = {
        spec.name: _value(hints[spec.name], spec.name, table, spec.metadata)
        for spec in dataclasses.fields(typing.cast("Any", settings))
        if spec.name in table or spec.default is dataclasses.MISSING is spec.default_factory
    }
    left = table.remaining()
    for name in filter(left.__contains__, constants(settings) if left else ()):
        what = f"the constant {settings.__module__}.{settings.__name__}.{name} ({getattr(settings, name)!r:.80})"
        table.refuse(name, f"is not a setting but {what}; take this key out")
    table.finish(_fields(settings), elsewhere)
    try:
        return settings(**values)
    except ConfigurationError as error:
        table.refuse(error.key, error.problem)


def _fields(settings: type[Any]) -> set[str]:
    return {spec.name for spec in dataclasses.fields(settings)}


def _tables_with(tables: Mapping[str, type[Any]], key: str) -> list[str]:
    return [name for name, kind in tables.items() if key in _fields(kind)]


def constants(settings: type[Any]) -> Iterator[str]:
    """Yield the names of the constants of a settings dataclass: keys that a file cannot set."""
    for name, hint in typing.get_type_hints(settings).items():
        if typing.get_origin(hint) is typing.ClassVar:
            yield name


def check_above_zero(settings: object, table: str, *names: str, high: float = NUMBER_LIMIT) -> None:
    """Check for a `__post_init__` that these fields are above 0 and at most `high`. Raises ConfigurationError."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value <= high:
            limit = f" and at most {high:.15g}" if high < NUMBER_LIMIT else ""
            raise ConfigurationError(f"must be above 0{limit}, not {value:g}", table=table, key=name)


def _value(kind: Any, key: str, table: Table, bounds: Mapping[Any, Any]) -> Any:
    if isinstance(kind, types.UnionType):
        value = _value(next(part for part in typing.get_args(kind) if part is not types.NoneType), key, table, bounds)
        return None if value == "" else value  # "" may be written for a text that is not set
    if kind is bool:
        return table.flag(key)
    if kind is int:
        return table.integer(key, low=0, high=bounds.get("high", INTEGER_LIMIT))
    if kind is float:
        return float(table.number(key, low=bounds.get("low", 0.0), high=NUMBER_LIMIT))
    if kind is str:
        return table.text(key)
    if dataclasses.is_dataclass(kind):
        inner = table.table(key)
        return read_settings(typing.cast("type[Any]", kind), inner or Table({}, file=table.file, name=key))
    return _values(typing.get_args(kind)[0], key, table)


def _values(kind: Any, key: str, table: Table) -> tuple[Any, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(read_settings(typing.cast("type[Any]", kind), inner) for inner in table.tables(key))
    if kind is int:
        return table.integers(key)
    if kind is float:
        return table.numbers(key)
    if typing.get_origin(kind) is tuple:
        return table.number_arrays(key)
    return table.texts(key)
