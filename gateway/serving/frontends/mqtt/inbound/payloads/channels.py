"""Rows of a document as numbers: one path for each channel, with scale, words and a policy for missing values.

Timestamps and sequence numbers of rows are columns after the channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone, tzinfo
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.common.domain.errors import RequestError
from gateway.common.domain.python310 import from_iso
from gateway.common.domain.tensor import Steps
from gateway.serving.frontends.mqtt.inbound.payloads.content import ROWS_LIMIT, VALUES_LIMIT, invalid
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import FLOAT32_MAX
from gateway.serving.frontends.mqtt.inbound.payloads.text import NUMBER, NUMBER_LIMIT_CHARS, lenient_number
from gateway.serving.frontends.mqtt.settings.paths import Path, compile_path
from gateway.serving.frontends.mqtt.settings.route import MqttChannel
from gateway.serving.frontends.mqtt.settings.samples import UNITS_NS, MqttTime, zone_of

Values = npt.NDArray[np.float64]
STEP_VALUES = 512
"""Values that one step reads: 0.1 ms of numbers at simple paths, 1.8 ms of texts at other paths (decision 0045)."""
NOTHING = frozenset({"", "unavailable", "unknown", "none", "null", "nan", "n/a"})
"""Texts that stand for no value, in lower case: Home Assistant's states, and what firmware prints."""
WORDS: Mapping[str, int] = {
    **dict.fromkeys(("off", "false", "no", "closed", "close", "clear", "not_home", "offline", "inactive", "locked"), 0),
    **dict.fromkeys(("on", "true", "yes", "open", "opened", "detected", "home", "online", "active", "unlocked"), 1),
}
"""Numbers of state words, in lower case."""
_NUMBERS = {int, float}


@dataclass(frozen=True, slots=True)
class Channel:
    """Channel of a route, compiled: its settings, its path, and its words in lower case."""

    settings: MqttChannel
    path: Path
    words: Mapping[str, int]
    lenient: bool = False
    """Texts may be numbers with a decimal comma or a unit."""

    def number(self, value: Any) -> float | None:
        """Return the number that `value` stands for, with scale and offset; None if it stands for no value.

        Raises RequestError INVALID for anything else.
        """
        found = self._plain(value)
        if found is None:
            return None
        if not math.isfinite(found):
            raise self._unfit(value, "expected a finite number")
        number = float(found != 0) if self.settings.type == "flag" else found
        return number * self.settings.scale + self.settings.offset

    def absent(self, value: Any) -> RequestError:
        """Return the refusal of a row that lacks this channel."""
        remedy = 'correct the path, or set missing = "skip", "last" or "zero" for this channel'
        return invalid(f"path '{self.settings.path}' finds {_printed(value)} in the payload; {remedy}")

    def _plain(self, value: Any) -> float | None:
        kind = type(value)
        if kind is str:
            return self._from_text(value)
        if value is None:
            return None
        if kind is bool or kind is int or kind is float:
            try:
                number = float(value)
            except OverflowError:
                raise self._unfit(value, "expected a number that FP32 can hold") from None
            return None if math.isnan(number) else number
        raise self._unfit(value, "expected a number, a boolean or a state word")

    def _from_text(self, text: str) -> float | None:
        word = text.strip().lower()
        if word in self.words:
            return float(self.words[word])
        if word in NOTHING:
            return None
        if len(word) <= NUMBER_LIMIT_CHARS and NUMBER.fullmatch(word):
            return float(word)
        if self.lenient and (number := lenient_number(text)) is not None:
            return number
        known = ", ".join(self.settings.words) or "ON, OFF, open, closed, true, false and the like"
        raise self._unfit(text, f"expected a number or a word ({known}); list other words in words")

    def _unfit(self, value: Any, expected: str) -> RequestError:
        return invalid(f"path '{self.settings.path}' finds {_printed(value)}; {expected}")


class ChannelReader:
    """Reader of the channels of one route. It keeps no state: what `last` needs is marked with NaN.

    `stamps` follow the channels in each row: time, sequence number.
    """

    def __init__(
        self, channels: Sequence[MqttChannel], stamps: Sequence[Channel] = (), *, lenient: bool = False
    ) -> None:
        words = [{word.strip().lower(): place for place, word in enumerate(each.words)} or WORDS for each in channels]
        found = tuple(
            Channel(each, compile_path(each.path), own, lenient) for each, own in zip(channels, words, strict=True)
        )
        self.count = len(found)
        self.channels = (*found, *stamps)
        self._finds = tuple(channel.path.find for channel in self.channels)
        self.searches = any(channel.path.searches for channel in self.channels)
        self._plain = all(each.settings.type == "number" for each in self.channels)
        every = [channel.settings for channel in self.channels]
        scale, offset = (np.array([getattr(each, name) for each in every]) for name in ("scale", "offset"))
        self._scale = None if (scale == 1).all() and not offset.any() else (scale, offset)
        self._may_skip = all(each.missing != "refuse" for each in channels)
        self._limit = min(ROWS_LIMIT, VALUES_LIMIT // len(self.channels))
        self._step_rows = max(1, STEP_VALUES // len(self.channels))

    def steps(self, rows: Sequence[Any]) -> Steps[Values]:
        """Return the values [n, channels] of rows. NaN stands for the last value of the sensor.

        Rows that the policies leave out are absent. Raises RequestError INVALID that names path, value and remedy.
        """
        parts, count = list[Values](), 0
        for begin in range(0, len(rows), self._step_rows):
            if begin:
                yield
            part = rows[begin : begin + self._step_rows]
            found: list[Sequence[Any]] = [[find(row) for find in self._finds] for row in part]
            if len(rows) == 1 and list not in map(type, found[0]):
                return self._numbers(found)
            for at, lines in enumerate(self._lines(found)):
                if at:
                    yield
                count += len(lines)
                if count > self._limit:
                    raise self._too_many()
                parts.append(self._numbers(lines))
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else self._numbers([])

    def _lines(self, found: list[Sequence[Any]]) -> Iterable[list[Sequence[Any]]]:
        """Return what the paths find in rows as lines of single values, in lists of one step."""
        if not any(list in map(type, line) for line in found):
            return (found,)
        lines = chain.from_iterable(self._columns(line) if list in map(type, line) else (line,) for line in found)
        return iter(lambda: list(islice(lines, self._step_rows)), [])

    def _numbers(self, lines: list[Sequence[Any]]) -> Values:
        if self._plain and all(_NUMBERS.issuperset(map(type, line)) for line in lines):
            values = self._quick(lines)
            if values is not None:
                return values
        kept = [line for line in map(self._line, lines) if line is not None]
        values = np.array(kept, np.float64).reshape(len(kept), len(self.channels))
        if (np.abs(values) > FLOAT32_MAX).any():
            raise invalid("a channel holds a number outside the range of FP32; correct its scale")
        return values

    def _quick(self, lines: list[Sequence[Any]]) -> Values | None:
        """Return the values of lines that hold nothing but numbers; None if one of them is not finite."""
        try:
            values = np.array(lines, np.float64).reshape(len(lines), len(self.channels))
        except OverflowError:
            return None
        if self._scale is not None:
            values = values * self._scale[0] + self._scale[1]
        return values if (np.abs(values) <= FLOAT32_MAX).all() else None

    def _columns(self, line: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Return the rows of an object of arrays; a single value holds for every row. Raises RequestError INVALID."""
        lengths = {len(value) for value in line if type(value) is list}
        if len(lengths) != 1:
            paths = ", ".join(f"'{each.settings.path}'" for each in self.channels)
            raise invalid(
                f"paths {paths:.200} find arrays of {sorted(lengths)!s:.80} values; their lengths must be equal"
            )
        (length,) = lengths
        if length > self._limit:
            raise self._too_many()
        return zip(*(value if type(value) is list else repeat(value, length) for value in line), strict=True)

    def _too_many(self) -> RequestError:
        return invalid(f"the payload has more than {self._limit} rows; send fewer in one message")

    def _line(self, line: Sequence[Any]) -> list[float] | None:
        """Return the numbers of a row by the policies for missing values; None if the row is left out."""
        numbers = [channel.number(value) for channel, value in zip(self.channels, line, strict=True)]
        if None not in numbers:
            return numbers  # type: ignore[return-value]
        if self._may_skip and not any(number is not None for number in numbers[: self.count]):
            return None
        completed = list[float]()
        for channel, value, number in zip(self.channels, line, numbers, strict=True):
            policy = channel.settings.missing
            if number is None and policy == "refuse":
                raise channel.absent(value)
            if number is None and policy == "skip":
                return None
            completed.append(number if number is not None else math.nan if policy == "last" else 0.0)
        return completed


def _printed(value: Any) -> str:
    """Return a value for a message: short, with its type."""
    if value is None:
        return "nothing"
    names = {dict: "an object", list: "an array", str: "the text ", bytes: "bytes", bool: "", int: "", float: ""}
    name = names.get(type(value), f"a {type(value).__name__}")
    if type(value) in {dict, list, bytes} or type(value) not in names:
        return name
    is_long = type(value) is int and value.bit_length() > 256
    return "an integer of more than 256 bits" if is_long else f"{name}{value!r:.60}"


TIME_LIMIT_CHARS = 40
"""Longest text of a timestamp: ISO 8601 with nanoseconds has 35 characters."""
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimeChannel(Channel):
    """Timestamp of a row, in nanoseconds since the Unix epoch; a float is exact to 256 ns today."""

    zone: tzinfo = timezone.utc

    def number(self, value: Any) -> float | None:
        """Return the time of a number, or of a text in ISO 8601. Raises RequestError INVALID for anything else."""
        word = value.strip() if isinstance(value, str) else ""
        is_number = len(word) <= NUMBER_LIMIT_CHARS and NUMBER.fullmatch(word)
        if not isinstance(value, str) or is_number:
            return Channel.number(self, value)
        try:
            found = from_iso(value.strip()) if len(value) <= TIME_LIMIT_CHARS else None
        except ValueError:
            found = None
        if found is None:
            problem = f"path '{self.settings.path}' finds {value!r:.60}; expected a number since 1970 or ISO 8601"
            raise invalid(problem)
        return (found if found.tzinfo else found.replace(tzinfo=self.zone)).timestamp() * SECOND_NS


def stamps_of(time: MqttTime) -> tuple[Channel, ...]:
    """Return the columns for the time and the sequence number of a row, as far as the route names them."""
    stamps: list[Channel] = []
    if time.path:
        settings = MqttChannel(time.path, scale=float(UNITS_NS[time.unit]), missing="refuse")
        stamps.append(TimeChannel(settings, compile_path(time.path), {}, zone=zone_of(time.zone)))
    if time.sequence:
        stamps.append(Channel(MqttChannel(time.sequence, missing="refuse"), compile_path(time.sequence), {}))
    return tuple(stamps)
