"""Strict reader of JSON documents."""

from __future__ import annotations

import json
from typing import Any

from gateway.common.domain.errors import ConfigurationError


def read_json(text: str, file: str) -> dict[str, Any]:
    """Return a document that is an object. Raises ConfigurationError with the line."""
    value = json_value(text, file)
    if not isinstance(value, dict):
        raise ConfigurationError("must be a JSON object", file=file)
    return value


def json_value(text: str, file: str) -> Any:
    """Return the value of a JSON text. Raises ConfigurationError with the line, also for a key that is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"not valid JSON: {error.msg}", file=file, line=error.lineno) from None
    except RecursionError:
        raise ConfigurationError("not valid JSON here: nested too deeply", file=file) from None
    except ValueError as error:  # a key that is given twice, NaN, a number of too many digits
        raise ConfigurationError(f"not valid JSON here: {error!s:.200}", file=file) from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.80} is given twice; keep one")
    return found


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON; correct it")
