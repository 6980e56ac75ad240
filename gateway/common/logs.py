"""Logs: structured events, one line each, including those of the standard library's loggers.

Levels: WARNING means a problem with recovery. ERROR means that data were lost, or an operator must act.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO, cast

from gateway.common.domain.events import (
    AcceleratorChanged,
    BreakerRetried,
    CandidateFailed,
    CandidateRecovered,
    EntryIgnored,
    Event,
    FailedOver,
    JoiningStopped,
    LeaseRanOut,
    LoopLeft,
    ModelEvicted,
    ModelRefused,
    ModelUndecided,
    ModelWoken,
    PriorityRefused,
    ProofContradicted,
    RouteChanged,
    RunFailed,
    RunHung,
    RunOverlong,
    ServableChanged,
    TrialFinished,
    VariantChosen,
)
from gateway.common.log_settings import LogSettings

EventDict = MutableMapping[str, Any]
Processor = Callable[[Any, str, EventDict], Any]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Priorities of sd-daemon(3): journald reads them from a "<n>" before the line."""

EVENTS: Mapping[type[Event], tuple[str, str]] = {
    ServableChanged: ("info", "servable changed"),
    VariantChosen: ("info", "variant chosen"),
    TrialFinished: ("info", "trial finished"),
    ModelRefused: ("error", "model refused"),
    ModelUndecided: ("warning", "model undecided"),
    EntryIgnored: ("warning", "entry ignored"),
    RunFailed: ("error", "run failed"),
    LoopLeft: ("warning", "model left the event loop"),
    BreakerRetried: ("info", "tried again"),
    RunOverlong: ("warning", "run overlong"),
    RunHung: ("error", "run hung"),
    CandidateFailed: ("error", "variant failed in service (EG-314)"),
    FailedOver: ("warning", "failed over"),
    CandidateRecovered: ("info", "variant serves again"),
    AcceleratorChanged: ("warning", "accelerator changed"),
    JoiningStopped: ("warning", "joining stopped"),
    ProofContradicted: ("error", "proof of independent rows contradicted; please report it"),
    PriorityRefused: ("warning", "worker keeps its priority"),
    RouteChanged: ("info", "route changed"),
    ModelEvicted: ("info", "model evicted"),
    ModelWoken: ("info", "model woken"),
    LeaseRanOut: ("warning", "the route's lease ran out; what is committed answers"),
}
"""Level and title of each domain event."""

QUIET = dict.fromkeys(("asyncio", "multipart", "tuf", "urllib3"), logging.WARNING)
"""Libraries whose INFO lines are written at DEBUG only."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CONTROL_BUT_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def configure_logging(
    settings: LogSettings | None = None, *, stream: TextIO | None = None, environ: Mapping[str, str] | None = None
) -> None:
    """Send every log line of the process to `stream` (default: standard error).

    `format = "auto"` means readable lines on a terminal, else one JSON object per line. Under systemd (JOURNAL_STREAM)
    each line begins with its priority.
    """
    structlog = _structlog()
    settings, out = settings or LogSettings(), stream or sys.stderr
    level = LEVELS[settings.level]
    console = settings.format == "console" or (settings.format == "auto" and out.isatty())
    journal = "JOURNAL_STREAM" in (os.environ if environ is None else environ)
    structlog.configure(
        processors=_processors(settings, console=console, journal=journal, color=out.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    logging.root.handlers = [_Bridge()]
    logging.root.setLevel(level)
    for name, at_least in QUIET.items():
        logging.getLogger(name).setLevel(max(level, at_least))


def get_logger(name: str) -> Any:
    """Return a logger whose lines contain `component=name`. It may be made before `configure_logging`."""
    return _structlog().get_logger(component=name)


@functools.cache
def _structlog() -> Any:
    """Return structlog, imported without rich. Tracebacks are then written as plain text.

    structlog imports rich if that is installed: 27 of 39 ms and 5 of 6 MiB at every start.
    """
    kept, none = sys.modules.get("rich"), cast("Any", None)
    sys.modules["rich"] = none  # None makes the import system report that the module does not exist
    try:
        import structlog
    finally:
        del sys.modules["rich"]
        if kept is not None:
            sys.modules["rich"] = kept
    return structlog


def log_event(event: Event) -> None:
    """Write a domain event as a log line."""
    level, title, facts = describe_event(event)
    getattr(get_logger("engine"), level)(title, **facts)


def describe_event(event: Event) -> tuple[str, str, dict[str, Any]]:
    """Return level, title and facts of an event; the levels follow the rule of this module."""
    facts = {key: value for key in event.__slots__ if (value := getattr(event, key)) not in ("", ())}
    if isinstance(event, VariantChosen):
        facts |= {"verified": facts.pop("level", ""), "remarks": "; ".join(event.remarks)}  # a line has its own `level`
        facts = {key: value for key, value in facts.items() if value}
    level, title = EVENTS[type(event)]
    if isinstance(event, ServableChanged) and (event.reason or event.state == "LOADING"):
        level = "warning" if event.reason else "debug"  # AVAILABLE follows LOADING at once
    if isinstance(event, ModelWoken) and event.problem:
        level = "warning"
    if isinstance(event, TrialFinished) and not event.passed:  # another variant serves, or ModelRefused follows
        level = "warning"
    return level, title, facts


class RepeatLimit:
    """Limit of repeated log lines: `repeats` equal warnings or errors per period are written.

    The last one announces the omission, and the first one of the next period contains the number of omitted lines. At
    most `REMEMBERED` different lines are remembered: beyond that the oldest are forgotten, and written again.
    """

    REMEMBERED = 1024

    def __init__(self, repeats: int, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._repeats, self._period_s, self._clock = repeats, period_s, clock
        self._seen: dict[str, tuple[float, int]] = {}

    def __call__(self, _: Any, method: str, line: EventDict) -> EventDict:
        """Process a line, as structlog requires. Raises DropEvent to omit it."""
        from structlog import DropEvent

        if method not in {"warning", "error"}:
            return line
        # exc_info holds a new traceback object each time, although the line is the same.
        same = sorted((str(key), repr(value)) for key, value in line.items() if key != "exc_info")
        key, now_s = f"{method} {same}", self._clock()
        began_s, count = self._seen.pop(key, (now_s, 0))
        left_out = 0
        if now_s - began_s >= self._period_s:
            began_s, left_out, count = now_s, max(0, count - self._repeats), 0
        self._seen[key] = (began_s, count + 1)
        if len(self._seen) > self.REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if count >= self._repeats:
            raise DropEvent
        if left_out:
            line["left_out"] = left_out
        if count + 1 == self._repeats:
            line["repeats"] = f"left out for {self._period_s:g} s"
        return line


def escape(line: EventDict, limit_chars: int) -> EventDict:
    """Remove control characters from all keys and values, and cut long text: a peer cannot forge a log line."""
    return {_plain(str(key), limit_chars): _value(key, value, limit_chars) for key, value in line.items()}


def _processors(settings: LogSettings, *, console: bool, journal: bool, color: bool) -> list[Processor]:
    import structlog

    def escaped(_: Any, __: str, line: EventDict) -> EventDict:
        return escape(line, settings.max_value_chars)

    chain: list[Processor] = [
        RepeatLimit(settings.repeats, settings.repeat_period_s),
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        escaped,
    ]
    if not journal:  # journald adds the time itself
        chain.insert(2, structlog.processors.TimeStamper(fmt="iso", utc=True))
    if console:
        traceback = structlog.dev.plain_traceback
        return [*chain, structlog.dev.ConsoleRenderer(colors=color, exception_formatter=traceback)]
    return [*chain, _render_json, _journal_prefix] if journal else [*chain, _render_json]


def _render_json(_: Any, __: str, line: EventDict) -> str:
    return json.dumps({"event": line.pop("event", ""), **line}, default=str)


def _journal_prefix(_: Any, method: str, text: Any) -> str:
    return f"<{PRIORITIES.get(method, 6)}>{text}"


def _value(key: object, value: object, limit_chars: int) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if key == "exception":
        # A terminal shows tracebacks in lines; JSON writes \n.
        return _CONTROL_BUT_LINES.sub(_escaped, str(value))
    return _plain(str(value), limit_chars)


def _plain(text: str, limit_chars: int) -> str:
    cut = text if len(text) <= limit_chars else f"{text[:limit_chars]}… ({len(text)} characters)"
    return cut if cut.isprintable() else _CONTROL.sub(_escaped, cut)


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


class _Bridge(logging.Handler):
    """Handler that passes lines of the standard library's loggers (grpc, uvicorn, litestar) to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record to structlog."""
        name = record.levelname.lower()
        method = name if name in PRIORITIES else "info"
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)  # the format string of a library does not fit its arguments
        cause = {"exc_info": record.exc_info} if record.exc_info and record.exc_info[0] else {}
        getattr(get_logger(record.name), method)(message, **cause)
