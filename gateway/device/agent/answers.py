"""Validation of the daemon's answers.

The daemon reads images of cameras and parses models, so it may be compromised. A compromised daemon must not be able to
take over the agent: an answer that does not have the expected form counts as no answer.
"""

from __future__ import annotations

import json
import math
from typing import Any

from gateway.common.domain.errors import UnreachableError

TEXT_LIMIT_CHARS = 1000
"""Characters that are kept of a text of the daemon; such texts go to the journal and to terminals."""
NUMBER = (int, float)
FORMS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("models", "candidates"), list),
    **dict.fromkeys(("version", "state", "instance", "variant", "reason"), str),
    **dict.fromkeys(("weight", "rss_bytes", "requests", "executions", "failed_runs", "rejected_runs"), int),
    **dict.fromkeys(("infer_ns", "compared", "disagreed"), int),
    **dict.fromkeys(("fits", "eligible", "busy"), bool),
    "model": (str, type(None)),  # the served model; in an inventory the board's model, which may be unknown
    "temperatures_c": dict,
    "throttled": (bool, type(None)),
    "measured": (dict, type(None)),
    "p50_us": NUMBER,
}
"""Types by key, the same in every answer. Values of other keys are not checked: the agent does not use them."""


class AnswerObject(dict[str, Any]):
    """JSON object in an answer of the daemon."""

    def __missing__(self, key: str) -> Any:
        """Raise UnreachableError: a key that is missing is handled like a daemon that does not answer."""
        raise UnreachableError(
            f"the daemon's answer has no {key}; is it of another version than this agent?", table="control"
        )


def read_answer(content: bytes) -> AnswerObject:
    """Return the JSON object of an answer. Raise ValueError or RecursionError if there is none."""
    document = json.loads(content, object_pairs_hook=_object, parse_constant=_refuse) if content else AnswerObject()
    if not isinstance(document, AnswerObject):
        raise ValueError(f"the answer is no JSON object: {content[:80]!r}")  # noqa: TRY004  not a caller's type
    return document


def plain(text: object) -> str:
    """Return a text of the daemon as one bounded line without control characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[:TEXT_LIMIT_CHARS])
    return f"{printable}…" if len(str(text)) > TEXT_LIMIT_CHARS else printable


def _object(pairs: list[tuple[str, Any]]) -> AnswerObject:
    return AnswerObject({key: _checked(key, value) for key, value in pairs})


def _checked(key: str, value: Any) -> Any:
    form = FORMS.get(key)
    if form is None:
        return value
    if not isinstance(value, form) or (isinstance(value, bool) and form in {int, NUMBER}):
        raise ValueError(f"{key} of the answer is {value!r:.80}")
    if isinstance(value, str):
        return plain(value)
    numbers: list[Any] = [*value.values()] if isinstance(value, dict) and form is dict else []
    numbers += [value] if form == NUMBER else []
    if not all(type(number) in NUMBER and math.isfinite(number) for number in numbers):
        raise ValueError(f"{key} of the answer is {value!r:.80}")
    if isinstance(value, list) and not all(isinstance(entry, AnswerObject) for entry in value):
        raise ValueError(f"{key} of the answer are no objects: {value!r:.80}")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number that an answer may hold")
