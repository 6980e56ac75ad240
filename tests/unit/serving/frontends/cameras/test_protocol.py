"""Messages of a camera's process: what ours sends is read, all else is refused; the states of a camera."""

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.cameras.protocol import (
    COUNT_LIMIT,
    REPORT_BYTES,
    SIDE_LIMIT,
    STATES,
    STREAMS,
    TRANSITIONS,
    CameraProtocolError,
    CameraReport,
    next_state,
    plain_reason,
    read_report,
)

KINDS = typing.get_args(typing.get_type_hints(CameraReport)["kind"])
SIDES, COUNTS = st.integers(0, SIDE_LIMIT), st.integers(0, COUNT_LIMIT - 1)
REPORTS = st.builds(
    CameraReport,
    kind=st.sampled_from(KINDS),
    id=COUNTS,
    reason=st.text(st.sampled_from("abcXYZ089é:"), max_size=500),
    codec=st.from_regex(r"[a-z0-9_]{0,38}[a-z0-9]", fullmatch=True),
    width=SIDES,
    height=SIDES,
    at_ns=COUNTS,
    byte_size=COUNTS,
    read=COUNTS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
NAMES = st.sampled_from([*CameraReport.__struct_fields__, "other"])


@given(REPORTS)
def test_what_a_process_sends_is_read(report):
    message = report.encode()
    assert len(message) <= REPORT_BYTES
    assert read_report(message) == report


@given(st.binary(max_size=200) | st.dictionaries(NAMES, JSON).map(lambda value: json.dumps(value).encode()))
def test_hostile_bytes_are_refused_or_within_bounds(message):
    try:
        report = read_report(message)
    except CameraProtocolError:
        return
    assert report.kind in KINDS
    for name in ("width", "height"):
        assert 0 <= getattr(report, name) <= SIDE_LIMIT
    for name in ("id", "at_ns", "byte_size", "read", "left_out", "skipped", "broken"):
        assert 0 <= getattr(report, name) < COUNT_LIMIT
    assert plain_reason(report.reason).isprintable()
    assert len(report.reason) <= 500


@pytest.mark.parametrize("message", [b"[" * 8000, b'{"kind":"alive","id":' + b"9" * 5000 + b"}", b"", b"null", b'"x"'])
def test_messages_that_are_hard_to_read_are_refused(message):
    with pytest.raises(CameraProtocolError):
        read_report(message)


def test_control_characters_of_a_reason_reach_no_terminal():
    assert plain_reason("a\x1b[2J\nb\u202e") == "a [2J b"


def test_the_longest_reason_of_wide_characters_fits_a_message():
    assert len(CameraReport("lost", reason=plain_reason("\U0001f3a5" * 900)).encode()) <= REPORT_BYTES


def test_every_state_can_be_lost_and_be_reached_again():
    for state in STATES:
        assert next_state(state, "lost") == "lost"
    reached, seen = {"lost"}, set()
    while reached != seen:
        seen = set(reached)
        reached |= {after for state in seen for after in TRANSITIONS[state].values()}
    assert reached == set(STATES)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("connecting", "connecting"),
        ("streaming", "connecting"),
        ("lost", "opened"),
        ("lost", "model_away"),
        ("x", "lost"),
    ],
)
def test_an_event_that_cannot_be_is_refused(state, event):
    with pytest.raises(CameraProtocolError):
        next_state(state, event)


def test_frames_arrive_also_while_the_model_is_away():
    assert next_state("streaming", "model_away") in STREAMS
    assert next_state("no_model", "opened") == "no_model"
