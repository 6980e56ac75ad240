"""Paths into documents: JMESPath expressions, compiled once when the configuration is read. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError

PATH_LIMIT_CHARS = 256
"""Longest expression: the parser of JMESPath is recursive, and a path of a route has a few dozen characters."""
Find = Callable[[Any], Any]
"""Function that returns what a path finds in a document, or None."""
Keys = tuple[str | int, ...]
"""Keys of objects and places in arrays."""
_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Path:
    """Compiled path. `searches`: it has operators, and may visit each value of a document."""

    find: Find
    searches: bool


def compile_path(text: str) -> Path:
    """Return the compiled JMESPath expression `text`.

    A chain of keys, which most paths are, is followed without the library: 0.2 µs instead of 1.4 to 2.8 µs (decision
    0045). Raises ValueError that says what is wrong with the expression.
    """
    import jmespath  # 17 ms, only for routes that have paths

    if len(text) > PATH_LIMIT_CHARS:
        raise ValueError(f"it has {len(text)} characters; at most {PATH_LIMIT_CHARS} are taken")
    try:
        compiled = jmespath.compile(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_one_line(error)) from None
    from jmespath.functions import Functions

    known = Functions.FUNCTION_TABLE  # the library itself refuses others with the first message only
    for node in _nodes(compiled.parsed):
        if node["type"] == "function_expression" and node["value"] not in known:
            raise ValueError(f"no function is called {node['value']}(); there are {', '.join(sorted(known))}")
    keys = _keys(compiled.parsed)
    return Path(_searched(compiled, text), True) if keys is None else Path(_walked(keys), False)


def check_path(text: str, key: str, table: str) -> None:
    """Check an expression of a configuration. Raises ConfigurationError that names `table` and `key`."""
    try:
        compile_path(text)
    except ValueError as error:
        problem = f"{text!r:.150} is no JMESPath expression: {error}; a key with other characters than letters, digits "
        raise ConfigurationError(f'{problem}and _ is quoted, as "switch:0"', table=table, key=key) from None


def _walked(keys: Keys) -> Find:
    if len(keys) == 1 and isinstance(keys[0], str):
        only = keys[0]
        return lambda document: document.get(only) if type(document) is dict else None

    def find(document: Any) -> Any:
        for key in keys:
            if type(document) is dict and type(key) is str:
                document = document.get(key)
            elif type(document) is list and type(key) is int:
                document = document[key] if -len(document) <= key < len(document) else None
            else:
                return None
        return document

    return find


def _searched(compiled: Any, text: str) -> Find:
    def find(document: Any) -> Any:
        try:
            return compiled.search(document)
        except _FAILURES as error:
            problem = f"path '{text}' cannot be followed in this payload: {_one_line(error)}"
            raise RequestError(Fault.INVALID, problem) from None

    return find


def _keys(node: Any) -> Keys | None:
    """Return the keys of an expression that is a chain of keys and places, or `@`; None for every other one."""
    if node["type"] in {"field", "index"}:
        return (node["value"],)
    if node["type"] in {"current", "identity"}:
        return ()
    if node["type"] not in {"subexpression", "index_expression"}:
        return None
    parts = [_keys(child) for child in node["children"]]
    return None if None in parts else tuple(key for part in parts if part for key in part)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("children", ()):
        if isinstance(child, dict):
            yield from _nodes(child)


def _one_line(error: Exception) -> str:
    return f"{' '.join(str(error).split()) or type(error).__name__:.300}"
