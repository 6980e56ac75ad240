"""Request bodies of devices, as values: bounded gzip, a JSON document, lines of telemetry. Pure.

The sender may be malicious: sizes are checked before anything is parsed, and an error names the line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import msgspec

from fleet.controller.database.columns import EPOCH, document_text
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.problems import ProblemError
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.python310 import from_iso

GZIP = 31
"""zlib's `wbits` for gzip with its header and checksum."""
MEMBERS_LIMIT = 16
"""Members of a gzip body: zlib copies what follows each of them, and an empty one takes only 20 bytes."""
PIECE_BYTES = 65_536
UNSUPPORTED_MEDIA = 415
LATEST = datetime(9999, 1, 1, tzinfo=timezone.utc)
NUMBER_LIMIT = 2**63
NESTING_LIMIT = 64
"""Depth of nested objects and lists. Near Python's recursion limit a document can be stored, not read."""
ESCAPED = 3
"""Largest ratio of a text as ASCII in JSON to the same in UTF-8: é is two bytes, and six when escaped."""


class IntakeLine(msgspec.Struct, frozen=True):
    """A record, or a gap (with `last`): numbers that the device dropped. Other fields are ignored."""

    stream: str
    boot_epoch: int
    seq: int
    at: str = ""
    kind: str = ""
    document: dict[str, Any] | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bounds of one request (lines; streams and boots), and of one row's document."""

    lines: int
    sources: int
    row_bytes: int


@dataclass(slots=True)
class _Source:
    rows: list[Row] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)


_DECODER = msgspec.json.Decoder(IntakeLine)


def plain_body(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return a request's body, decompressed.

    Raise RequestError TOO_LARGE before more than `limit_bytes` are decompressed, INVALID for a body that is not gzip;
    ProblemError 415 for another encoding.
    """
    if encoding in {"", "identity"}:
        return _bounded(body, limit_bytes)
    if encoding != "gzip":
        raise ProblemError(UNSUPPORTED_MEDIA, f"the encoding {encoding!r:.40} is not understood; send gzip, or none")
    try:
        return _unpacked(body, limit_bytes)
    except zlib.error as error:
        raise RequestError(Fault.INVALID, f"the body is not gzip: {error!s:.200}") from None


def document_of(content: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raise RequestError INVALID."""
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise RequestError(Fault.INVALID, f"the body is not a JSON object: {error!s:.200}") from None
    if is_deep(content, document):
        raise RequestError(Fault.INVALID, f"the body is nested deeper than {NESTING_LIMIT} levels")
    return document


def is_deep(text: bytes, document: Any) -> bool:
    """Return whether objects and lists are nested more than `NESTING_LIMIT` deep.

    `text`: the document as it was read. Most texts have fewer brackets than that altogether, which is quick to check.
    """
    if text.count(b"{") + text.count(b"[") <= NESTING_LIMIT:
        return False
    level: list[Any] = [document]
    for _ in range(NESTING_LIMIT):
        found = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for values in found for inner in values if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def batches(content: bytes, limits: IntakeLimits) -> list[Batch]:
    """Parse lines into batches by stream and boot, in the order of their first lines.

    Raise RequestError INVALID that names the line, TOO_LARGE.
    """
    found: dict[tuple[str, int], _Source] = {}
    for number, text in _lines(content, limits.lines):
        line = _read(number, text)
        source = found.setdefault((line.stream, line.boot_epoch), _Source())
        if len(found) > limits.sources:
            problem = f"more than {limits.sources} streams and boots at once; send fewer lines"
            raise RequestError(Fault.TOO_LARGE, problem)
        if line.last is not None:
            source.lost.append((line.seq, line.last))
            continue
        if is_deep(text, line.document or {}):
            raise _odd(number, f"its document is nested deeper than {NESTING_LIMIT} levels")
        if len(text) * ESCAPED > limits.row_bytes:
            try:
                document_text(line.document, limits.row_bytes)
            except RefusedError as error:
                raise _odd(number, str(error)) from None
        at = _time(number, line.at)
        if line.document is None:
            raise _odd(number, "it has neither a document nor the last number of a gap")
        source.rows.append(Row(line.seq, at, line.kind, line.document))
    return [Batch(stream, epoch, source.rows, source.lost) for (stream, epoch), source in found.items()]


def _unpacked(body: bytes, limit_bytes: int) -> bytes:
    """Decompress one or several gzip members (RFC 1952, 2.2). A bomb is refused as soon as it exceeds the limit."""
    plain = bytearray()
    for _ in range(MEMBERS_LIMIT):
        if not body:
            break
        inflating = zlib.decompressobj(GZIP)
        while body and not inflating.eof:
            plain += inflating.decompress(body, min(PIECE_BYTES, limit_bytes + 1 - len(plain)))
            if len(plain) > limit_bytes:
                raise _too_large(limit_bytes)
            body = inflating.unconsumed_tail
        plain += inflating.flush()  # the rest that zlib still holds: some kilobytes
        if not inflating.eof:
            raise zlib.error("it is truncated")
        body = inflating.unused_data
    if body:
        raise zlib.error(f"it has more than {MEMBERS_LIMIT} members")
    return _bounded(bytes(plain), limit_bytes)


def _bounded(content: bytes, limit_bytes: int) -> bytes:
    if len(content) > limit_bytes:
        raise _too_large(limit_bytes)
    return content


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(Fault.TOO_LARGE, f"the body has more than {limit_bytes} bytes unpacked; send less at once")


def _lines(content: bytes, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers from 1."""
    if content.count(b"\n") > limit:
        raise RequestError(Fault.TOO_LARGE, f"more than {limit} lines at once; send fewer")
    for number, text in enumerate(content.split(b"\n"), 1):
        if text.strip():
            yield number, text


def _read(number: int, text: bytes) -> IntakeLine:
    try:
        line = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _odd(number, f"{error!s:.200}") from None
    numbers = (line.boot_epoch, line.seq, line.seq if line.last is None else line.last)
    if not all(0 <= value < NUMBER_LIMIT for value in numbers) or line.seq < 1:
        raise _odd(number, "numbers must be from 1, and the boot epoch from 0, to 2**63 - 1")
    if not NAME_PATTERN.fullmatch(line.stream):
        raise _odd(number, f"its stream {line.stream!r:.80} is not a name")
    if line.last is None and not NAME_PATTERN.fullmatch(line.kind):
        raise _odd(number, f"its kind {line.kind!r:.80} is not a name")
    return line


def _time(number: int, text: str) -> datetime:
    try:
        found = from_iso(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not EPOCH <= found < LATEST:
        raise _odd(number, f"its time {text!r:.80} is not a time with a time zone, from 1970 on")
    return found


def _odd(number: int, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"line {number}: {problem}; see gateway/device/agent/README.md")
