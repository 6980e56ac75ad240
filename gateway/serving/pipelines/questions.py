"""Steps that ask a language model: its requests, made of texts, and columns, made of its answers. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.pipeline import TextQuestion
from gateway.common.domain.tensor import Array
from gateway.common.domain.text_model import ADAPTER, RESPONSE
from gateway.serving.pipelines.columns import FLAG_TYPE, NUMBER_TYPE, TEXT_TYPE, ColumnType

TEXT_COLUMN = "text"
"""Column with the whole answer."""
_TYPES: Mapping[str, tuple[str, ColumnType, set[type]]] = {
    "text": ("string", TEXT_TYPE, {str}),
    "number": ("number", NUMBER_TYPE, {int, float}),
    "flag": ("boolean", FLAG_TYPE, {bool}),
}
"""What a field of an answer may be: its type in JSON schema, that of its column, and those of Python."""

_quoted = partial(json.dumps, ensure_ascii=False)
_WORDS = {"text": "a text", "number": "a number", "flag": "true or false"}
"""What an instruction says of a field."""


def asked(question: TextQuestion, texts: Any) -> Any:
    """Return the requests for a column of texts, or for one, a constant: chats in the form of OpenAI's API."""
    if isinstance(texts, bytes):
        return _request(question, texts)
    found = np.empty(len(texts), object)
    found[:] = [_request(question, text) for text in texts]
    return found


def answer_column(question: TextQuestion, name: str) -> tuple[str, ColumnType, Callable[[Array], Array]] | None:
    """Return the output of a column, its type, and how answers become its values, as `column_of` does for models.

    The values raise RequestError INTERNAL for an answer without the field: one that was cut off, mostly.
    """
    if name not in answer_names(question):
        return None
    kind = question.answer.get(name, "text")
    of_type = _TYPES[kind][1] if isinstance(kind, str) else TEXT_TYPE

    def made(rows: Array) -> Array:
        found = np.empty(rows.size, of_type.datatype.dtype)
        for row, response in enumerate(rows.ravel()):
            text = _content(response)
            value = _field(question, text, name) if name in question.answer else text
            found[row] = value.encode(errors="replace") if isinstance(value, str) else value
        return found

    return RESPONSE, of_type, made


def answer_names(question: TextQuestion) -> list[str]:
    """Return the columns of a step that asks."""
    return [*dict.fromkeys((*question.answer, TEXT_COLUMN))]


def _content(response: bytes) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return json.loads(response)["choices"][0]["message"]["content"] or ""
    raise RequestError(Fault.INTERNAL, f"the model's answer is no document of a chat: {response[:100]!r}")


def _field(question: TextQuestion, text: str, name: str) -> Any:
    kind = question.answer[name]
    with suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
        value = json.loads(text)[name]
        is_of_kind = value in kind if isinstance(kind, tuple) else type(value) in _TYPES[kind][2]
        if is_of_kind and (kind != "number" or math.isfinite(value)):
            return float(value) if kind == "number" else value
    words = f"the answer has no field '{name}' of its kind, or ends after {question.max_tokens} tokens, before its JSON"
    raise RequestError(Fault.INTERNAL, f"{words} does; raise max_tokens: {text[:100]!r}")


def _request(question: TextQuestion, text: bytes) -> bytes:
    instruction = question.system
    if question.answer:  # a grammar alone lets a small model write what it did not choose (decision 0120)
        forms = (
            f'"{name}": {_WORDS[kind] if isinstance(kind, str) else " or ".join(map(_quoted, kind))}'
            for name, kind in question.answer.items()
        )
        instruction = f"{instruction} Answer in JSON: {{{', '.join(forms)}}}.".lstrip()
    messages = [{"role": "user", "content": text.decode(errors="replace")}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    document: dict[str, Any] = {"messages": messages, "max_tokens": question.max_tokens, "temperature": 0}
    if question.adapter:
        document[ADAPTER] = question.adapter
    if question.answer:
        fields = {
            name: {"type": _TYPES[kind][0]} if isinstance(kind, str) else {"enum": list(kind)}
            for name, kind in question.answer.items()
        }
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        form = {"name": "answer", "schema": schema, "strict": True}
        document["response_format"] = {"type": "json_schema", "json_schema": form}
    return json.dumps(document, ensure_ascii=False).encode(errors="replace")
