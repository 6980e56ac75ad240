"""TOML of values and tables, and of the parts that every manifest has. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.common.domain.manifest import Artifact, Binding

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a TOML value; tables become inline tables, and an array of tables gets a line for each.

    JSON writes strings, finite numbers and booleans as TOML does, except the delete character. Raises ValueError for
    other numbers.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"    {toml_value(each)},\n" for each in value) + "]"
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """Return a key, quoted if it has to be."""
    return key if _BARE.fullmatch(key) else toml_value(key)


def toml_lines(values: Mapping[str, Any], notes: Mapping[str, str] | None = None, prefix: str = "") -> Iterator[str]:
    """Yield a line for each key; before it the comment that `notes` has for `prefix` and the key."""
    for key, value in values.items():
        if note := (notes or {}).get(f"{prefix}{key}"):
            yield toml_comment(note)
        yield f"{toml_key(key)} = {toml_value(value)}\n"


def toml_table(header: str, values: Mapping[str, Any], notes: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """Return a table with its header; `notes` and `prefix` as in `toml_lines`."""
    return f"{header}\n{''.join(toml_lines(values, notes, prefix))}"


def toml_comment(text: str) -> str:
    """Return lines of a comment. Characters that would end it, or that TOML forbids there, are escaped."""
    lines = text.split("\n")
    plain = ("".join(each if each.isprintable() else ascii(each)[1:-1] for each in line) for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in plain)


def artifact_values(artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Return the value of `artifacts` of a variant."""
    return [{"path": each.path, "sha256": each.sha256, "bytes": each.size_bytes} for each in artifacts]


def with_bindings(variant: str, bind: Mapping[str, Binding]) -> str:
    """Return the text of a variant with its table of bindings, if there are any."""
    values = {name: _binding(own) for name, own in bind.items()}
    return f"{variant}\n{toml_table('[variant.bind]', values)}" if bind else variant


def _binding(own: Binding) -> dict[str, Any]:
    given = {"layout": own.layout or None, "shape": own.shape}
    return {"name": own.name, **{key: value for key, value in given.items() if value is not None}}
