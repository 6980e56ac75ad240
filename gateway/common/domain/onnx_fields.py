"""Fields of the Protocol Buffers messages in an ONNX file, read from a seekable stream with bounds.

The format is Protocol Buffers (onnx.proto of the ONNX project, IR version 13). Fields that are not wanted are skipped
by their length.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from io import SEEK_END
from typing import BinaryIO

from gateway.common.domain.model_files import COPY_AGAIN

ENTRIES_LIMIT = 20_000_000
"""Most fields that are read of one file. A random forest of 1,000 trees has about 10 million."""
STRING_LIMIT_BYTES = 4096
"""Longest name of an operator, a domain or a file (PATH_MAX on Linux)."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

_WINDOW_BYTES = 16_384
_HEAD_BYTES = 20
"""Bytes of two varints of ten bytes: a field's tag and its length."""
_SHORT = b"|".join(b"\\x%02x[\\s\\S]{%d}" % (length, length) for length in range(32))
_LISTED = re.compile(rb"(?:\x3d[\s\S]{4}|\x40[\x80-\xff]{0,9}[\x00-\x7f]|\x4a(?:" + _SHORT + rb"))+")
"""Runs of AttributeProto's `floats` (7), `ints` (8) and short `strings` (9), which are not packed.

A tree ensemble has millions of them.
"""


def tags(wire: int, *numbers: int) -> tuple[int, ...]:
    """Return the tags of fields by their numbers and their wire type."""
    return tuple(number << 3 | wire for number in numbers)


class OnnxFieldReader:
    """Reader of the fields of messages in a seekable stream. Raises ValueError with the offset of damage in bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._window, self._base, self._entries = b"", 0, 0
        self.size = stream.seek(0, SEEK_END)

    def fields(
        self, wanted: Collection[int], start: int, end: int, *, lists: bool = False
    ) -> Iterator[tuple[int, int, int]]:
        """Yield tag, offset and number of each wanted field: a varint's value, or the length in bytes of a string.

        `lists`: skip an attribute's long lists, which are not wanted, at once.
        """
        at = start
        while at < end:
            if lists:
                window, index = self._at(at, _HEAD_BYTES)
                found = _LISTED.match(window, index, index + end - at)
                at += found.end() - index if found else 0
                if at == end:
                    return
            tag, begin = self._varint(at, end)
            self._entries += 1
            if self._entries > ENTRIES_LIMIT:
                raise damaged(at, f"the file has more than {ENTRIES_LIMIT} fields")
            if tag & 7 not in {VARINT, FIXED64, BYTES, FIXED32} or not 8 <= tag <= 0xFFFF_FFFF:
                raise damaged(at, "there is no Protocol Buffers field")
            wire, number = tag & 7, 0
            if wire in (VARINT, BYTES):
                number, begin = self._varint(begin, end)
            stop = begin + (number if wire == BYTES else {FIXED64: 8, FIXED32: 4}.get(wire, 0))
            if stop > end:
                raise damaged(at, f"a field of {stop - begin} bytes is longer than the message around it")
            if tag in wanted:
                yield tag, begin, number
            at = stop

    def text(self, place: tuple[int, int] | None, limit_bytes: int = STRING_LIMIT_BYTES) -> str:
        """Return the text at an offset with a length in bytes; None is an absent field, which is empty."""
        at, length = place or (0, 0)
        if length > limit_bytes:
            raise damaged(at, f"a name has {length} bytes, at most {limit_bytes} are read")
        try:
            return self.raw(at, length).decode()
        except UnicodeDecodeError:
            raise damaged(at, "a name is not UTF-8") from None

    def raw(self, at: int, length: int) -> bytes:
        """Return the bytes at an offset."""
        window, index = self._at(at, length)
        return window[index : index + length]

    def packed(self, at: int, length: int) -> Iterator[int]:
        """Yield the varints of a packed field."""
        end = at + length
        while at < end:
            number, at = self._varint(at, end)
            yield number

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        window, index = self._at(at, _HEAD_BYTES)
        value = 0
        for place, byte in enumerate(window[index : min(index + 10, index + end - at)]):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
        raise damaged(at, "a number does not end")

    def _at(self, at: int, length: int) -> tuple[bytes, int]:
        """Return a window with `length` bytes from `at`, unless the stream ends, and the index of `at` in it."""
        index = at - self._base
        if not 0 <= index <= len(self._window) - length:
            self._stream.seek(at)
            self._window, self._base, index = self._stream.read(max(_WINDOW_BYTES, length)), at, 0
        return self._window, index


def damaged(at: int, problem: str) -> ValueError:
    """Return the error of damage at an offset in bytes."""
    return ValueError(f"not an ONNX file, or a damaged one: at byte {at}, {problem}; {COPY_AGAIN} (EG-312)")
