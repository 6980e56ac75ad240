"""RFC 9110 on values: what is sent of a file, and when nothing is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.blobs.answer import FileMetadata, answer

THEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTENT = FileMetadata('"a"', 1000, THEN, "application/json", "no-cache")


def date(shift_s: int = 0) -> str:
    return format_datetime(THEN + timedelta(seconds=shift_s), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"if-none-match": '"a"'}, 304),
        ({"if-none-match": 'W/"a"'}, 304),
        ({"if-none-match": '"b", "a"'}, 304),
        ({"if-none-match": "*"}, 304),
        ({"if-none-match": '"b"'}, 200),
        ({"if-none-match": "a"}, 200),
        ({"if-none-match": '"b"', "if-modified-since": date()}, 200),
        ({"if-modified-since": date()}, 304),
        ({"if-modified-since": date(-1)}, 200),
        ({"if-modified-since": "yesterday"}, 200),
        ({"if-match": '"a"'}, 200),
        ({"if-match": '"b"'}, 412),
        ({"if-match": 'W/"a"'}, 412),
        ({"if-match": "*"}, 200),
        ({"if-unmodified-since": date()}, 200),
        ({"if-unmodified-since": date(-1)}, 412),
        ({"if-match": '"a"', "if-unmodified-since": date(-1)}, 200),
        ({"if-none-match": '"a"', "range": "bytes=0-1"}, 304),
    ],
)
def test_conditions(headers: dict[str, str], status: int) -> None:
    for method in ("GET", "HEAD"):
        told = answer(method, headers, CONTENT)
        assert told.status == status
        assert dict(told.headers)["etag"] == '"a"'
        assert (told.count_bytes > 0) == (status == 200 and method == "GET")


@pytest.mark.parametrize(
    ("span", "wanted"),
    [
        ("bytes=0-0", (206, 0, 1)),
        ("bytes=0-", (206, 0, 1000)),
        ("bytes=10-19", (206, 10, 10)),
        ("BYTES=10-19", (206, 10, 10)),
        ("bytes=999-5000", (206, 999, 1)),
        ("bytes=-1", (206, 999, 1)),
        ("bytes=-5000", (206, 0, 1000)),
        ("bytes=1000-", (416, 0, 0)),
        ("bytes=-0", (416, 0, 0)),
        ("bytes=5-4", (200, 0, 1000)),
        ("bytes=0-1,5-6", (200, 0, 1000)),
        ("bytes=-", (200, 0, 1000)),
        ("lines=0-1", (200, 0, 1000)),
        ("bytes=" + "9" * 30 + "-", (200, 0, 1000)),
        ("bytes=a-b", (200, 0, 1000)),
    ],
)
def test_ranges(span: str, wanted: tuple[int, int, int]) -> None:
    told = answer("GET", {"range": span}, CONTENT)
    assert (told.status, told.offset_bytes, told.count_bytes) == wanted
    said = dict(told.headers)
    assert said["content-length"] == str(told.count_bytes)
    if told.status == 416:
        assert said["content-range"] == "bytes */1000"
    assert answer("HEAD", {"range": span}, CONTENT).status == 200


@pytest.mark.parametrize(
    ("if_range", "status"),
    [('"a"', 206), ('"b"', 200), ('W/"a"', 200), (date(), 206), (date(1), 200), (date(-1), 200), ("junk", 200)],
)
def test_a_part_of_something_else_is_not_sent(if_range: str, status: int) -> None:
    assert answer("GET", {"range": "bytes=5-9", "if-range": if_range}, CONTENT).status == status


@given(st.integers(0, 50), st.text("0123456789-,= bytes", max_size=20) | st.from_regex(r"\Abytes=\d{0,2}-\d{0,2}\Z"))
def test_no_range_leads_out_of_the_file(size: int, span: str) -> None:
    told = answer("GET", {"range": span}, FileMetadata('"a"', size))
    assert told.status in {200, 206, 416}
    assert 0 <= told.offset_bytes <= told.offset_bytes + told.count_bytes <= size
    assert dict(told.headers)["content-length"] == str(told.count_bytes)
    if told.status == 206:
        first, last = dict(told.headers)["content-range"].removeprefix("bytes ").partition("/")[0].split("-")
        assert int(last) - int(first) + 1 == told.count_bytes > 0


@given(
    st.dictionaries(st.sampled_from(["if-match", "if-none-match", "if-range", "if-modified-since", "range"]), st.text())
)
def test_nothing_a_stranger_writes_breaks_it(headers: dict[str, str]) -> None:
    assert answer("GET", headers, CONTENT).status in {200, 206, 304, 412, 416}
