"""Log lines: one per event, with a priority, unforgeable, and never a flood."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.events import (
    EntryIgnored,
    LeaseRanOut,
    ModelRefused,
    RouteChanged,
    RunFailed,
    ServableChanged,
    TrialFinished,
    VariantChosen,
)
from gateway.common.log_settings import LogSettings
from gateway.common.logs import (
    PRIORITIES,
    RepeatLimit,
    configure_logging,
    describe_event,
    escape,
    get_logger,
    log_event,
)
from tests.simulators.constants import settings_with

JOURNAL = {"JOURNAL_STREAM": "8:1"}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers, logging.root.level = handlers, level


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(environ: dict[str, str] | None = None, **settings: Any) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(settings_with(LogSettings(), **settings), stream=stream, environ=environ or {})
    return stream


def fail(message: str) -> None:
    raise ValueError(message)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object() -> None:
    stream = configured()
    get_logger("engine").info("model loaded", model="m", rows=3)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "model loaded", "level": "info", "component": "engine", "model": "m", "rows": 3}


@pytest.mark.parametrize("level", ["info", "warning", "error", "critical"])
def test_journald_gets_priorities_and_stamps_itself(level: str) -> None:
    stream = configured(JOURNAL)
    getattr(get_logger("x"), level)("said")
    prefix = f"<{PRIORITIES[level]}>"
    assert stream.getvalue().startswith(prefix)
    assert json.loads(stream.getvalue().removeprefix(prefix)) == {"event": "said", "level": level, "component": "x"}


def test_what_is_less_urgent_is_not_written() -> None:
    stream = configured(level="warning")
    get_logger("x").info("no")
    logging.getLogger("y").info("no")
    get_logger("x").warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


@pytest.mark.parametrize("wrong", [{"level": "loud"}, {"format": "xml"}])
def test_unknown_words_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=rf"log\.{next(iter(wrong))}: .*write one of"):
        configured(**wrong)


def test_the_standard_library_goes_the_same_way() -> None:
    stream = configured()
    logging.getLogger("uvicorn.error").warning("Invalid %s", "request")
    logging.getLogger("broken").error("%d", "no number")
    first, second = lines(stream)
    assert (first["event"], first["component"], first["level"]) == ("Invalid request", "uvicorn.error", "warning")
    assert second["event"] == "%d"


def test_an_exception_stays_on_its_line() -> None:
    stream = configured(JOURNAL)
    try:
        fail("bad\x1b[31m\n<0>forged")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "ValueError: bad" in json.loads(stream.getvalue()[3:])["exception"]


def test_a_terminal_shows_tracebacks_but_obeys_nobody() -> None:
    stream = Terminal()
    configure_logging(LogSettings(), stream=stream, environ={})
    try:
        fail("bad\x1b]0;title\x07")
    except ValueError:
        get_logger("x").error("failed\n2026 forged", exc_info=True)
    text = stream.getvalue()
    assert "\x1b]0" not in text
    assert "\n2026" not in text
    assert "Traceback" in text


@given(st.dictionaries(st.text(), st.text() | st.binary() | st.integers() | st.lists(st.text())))
def test_nothing_in_a_line_can_end_it(line: dict[str, Any]) -> None:
    for key, value in escape(dict(line), 100).items():
        assert str(key).isprintable() or "\n" not in str(key)
        if key != "exception":
            assert len(str(value).splitlines()) <= 1
            assert "\x1b" not in str(value)


def test_long_values_are_cut() -> None:
    assert escape({"a": "x" * 50}, 10)["a"] == "xxxxxxxxxx… (50 characters)"


def test_equal_warnings_are_bounded_and_counted() -> None:
    now_s = 0.0
    limit = RepeatLimit(2, 60, lambda: now_s)

    def say(event: str = "same", method: str = "warning") -> dict[str, Any] | None:
        try:
            return dict(limit(None, method, {"event": event}))
        except structlog.DropEvent:
            return None

    assert say() == {"event": "same"}
    assert say() == {"event": "same", "repeats": "left out for 60 s"}
    assert [say() for _ in range(3)] == [None] * 3
    assert say("other") == {"event": "other"}
    assert [say(method="info") for _ in range(5)] == [{"event": "same"}] * 5
    now_s = 60.0
    assert say() == {"event": "same", "left_out": 3}


def test_different_warnings_do_not_fill_memory() -> None:
    limit = RepeatLimit(1, 60, lambda: 0.0)
    for number in range(3 * RepeatLimit.REMEMBERED):
        limit(None, "warning", {"event": str(number)})
    assert len(limit._seen) == RepeatLimit.REMEMBERED


def test_one_exception_again_and_again_is_one_warning() -> None:
    stream = configured(repeats=2)
    for _ in range(5):
        try:
            fail("again")
        except ValueError:
            get_logger("x").error("failed", exc_info=True)
    assert len(lines(stream)) == 2


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (ServableChanged("m", "1", "AVAILABLE"), "info"),
        (ServableChanged("m", "1", "END", "no variant passed"), "warning"),
        (VariantChosen("m", "1", "int8", "cpu", "fastest"), "info"),
        (TrialFinished("m", "1", "int8", "cpu", passed=True, reason=""), "info"),
        (TrialFinished("m", "1", "int8", "cpu", passed=False, reason="crashed"), "warning"),
        (ModelRefused("m", "1", "wrong digest"), "error"),
        (RunFailed("m", "1", "int8", "out of memory"), "error"),
        (RouteChanged("m", {"1": 95, "2": 5}, shadow="2"), "info"),
        (LeaseRanOut("m", {"1": 95, "2": 5}), "warning"),
    ],
)
def test_events_follow_the_law_of_levels(event: Any, level: str) -> None:
    assert describe_event(event)[0] == level
    stream = configured()
    log_event(event)
    (line,) = lines(stream)
    assert (line["level"], line["model"]) == (level, "m")


def test_a_state_that_ends_at_once_is_no_line() -> None:
    assert describe_event(ServableChanged("m", "1", "LOADING"))[0] == "debug"


def test_a_left_over_file_is_no_error() -> None:
    stream = configured()
    log_event(EntryIgnored("notes.txt", "belongs to no model here"))
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["path"]) == ("warning", "entry ignored", "notes.txt")


def test_the_line_of_a_chosen_variant_has_the_level_of_the_model_and_plain_remarks() -> None:
    stream = configured()
    log_event(VariantChosen("m", "1", "onnx", "cpu", "the only one", "exercised", ("first", "second")))
    (line,) = lines(stream)
    assert (line["level"], line["verified"], line["remarks"]) == ("info", "exercised", "first; second")
