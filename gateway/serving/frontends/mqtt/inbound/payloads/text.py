"""Plain text: one line with a number or a word (text/plain), and lines of comma-separated values (text/csv)."""

from __future__ import annotations

import csv
import re
from itertools import islice
from typing import Any

from gateway.serving.frontends.mqtt.inbound.payloads.content import ROWS_LIMIT, ContentType, check_rows, invalid

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LENIENT_NUMBER = re.compile(
    r"([+-]?(?!0[xXbB])(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
    r"(?:(?=[^\W\d_]|[%°])[^\s\d.,]{1,10}[0-9]?(?:/[^\s\d.,]{1,10}[0-9]?)?)?"
)
"""Number with a point or a comma, and a unit such as °C, %, kWh, m3/h or m/s2."""
NUMBER_LIMIT_CHARS = 64
"""Longest number in text."""
TEXT_LIMIT_CHARS = 1_024
"""Longest line of text/plain: a number or a word."""
DELIMITERS = {"": ",", "comma": ",", "semicolon": ";", "tab": "\t", "space": " "}
"""Delimiters of text/csv by their name in the content type's parameter `delimiter`."""


def read_text(payload: bytes, _content: ContentType) -> int | float | str:
    """Return the number or the text of a line. Raises RequestError INVALID."""
    text = _decoded(payload, "text/plain").strip()
    if len(text) > TEXT_LIMIT_CHARS or not text.isprintable():
        raise invalid(f"text/plain is one line of at most {TEXT_LIMIT_CHARS} characters, with a number or a word")
    return number_or_text(text)


def read_csv(payload: bytes, content: ContentType) -> list[Any]:
    """Return lines of comma-separated values: arrays, or with header=present objects by the names of the first line.

    Raises RequestError INVALID.
    """
    name = content.parameters.get("delimiter", "")
    if name not in DELIMITERS:
        raise invalid(f"delimiter={name:.32} of the content type must be one of {', '.join(filter(None, DELIMITERS))}")
    lines = _decoded(payload, "text/csv").splitlines()
    try:
        fields = list(islice(filter(None, csv.reader(lines, delimiter=DELIMITERS[name], strict=True)), ROWS_LIMIT + 2))
    except csv.Error as error:
        raise invalid(f"the payload is not text/csv: {error}") from None
    check_rows(len(fields) - 1)  # one of them may be the header
    rows = [[number_or_text(value.strip()) for value in line] for line in fields]
    if content.parameters.get("header") != "present":
        return rows
    header, *values = rows or [[]]
    for row in values:
        if len(row) != len(header):
            raise invalid(f"the header of text/csv names {len(header)} columns, but a line has {len(row)}")
    return [dict(zip(map(str, header), row, strict=True)) for row in values]


def number_or_text(text: str) -> int | float | str:
    """Return the number that `text` is, else the text itself."""
    if len(text) > NUMBER_LIMIT_CHARS or not NUMBER.fullmatch(text):
        return text
    return float(text) if set(text) & set(".eE") else int(text)


def lenient_number(text: str) -> float | None:
    """Return the number of a text with a decimal comma or a unit; None if it is none."""
    found = LENIENT_NUMBER.fullmatch(text.strip()) if len(text) <= NUMBER_LIMIT_CHARS else None
    return float(found[1].replace(",", ".")) if found else None


def _decoded(payload: bytes, media: str) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the payload is not {media} in UTF-8: {error}") from None
