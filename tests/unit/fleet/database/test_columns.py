"""Values on their way into columns: exact, or refused with a reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from fleet.controller.database.columns import BinaryColumn, JsonColumn, Moment, Whole, Words
from fleet.controller.database.errors import RefusedError
from gateway.common.domain.errors import Fault

DIALECT = sqlite.dialect()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=45)))))
def test_times_keep_every_microsecond(moment: datetime) -> None:
    column = Moment()
    kept = column.process_result_value(column.process_bind_param(moment, DIALECT), DIALECT)
    assert kept == moment
    assert kept.tzinfo is UTC


@given(JSON)
def test_documents_come_back_as_they_went_in(value: object) -> None:
    column = JsonColumn(10_000)
    text = column.process_bind_param(value, DIALECT)
    if value is None:
        assert text is None
    else:
        assert text.isascii()
        assert column.process_result_value(text, DIALECT) == value


def test_one_document_has_one_text() -> None:
    assert JsonColumn(99).process_bind_param({"b": (1,), "a": {2, 1}}, DIALECT) == '{"a":[1,2],"b":[1]}'


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (Words(4), "a\0b", "NUL"),
        (Words(4), "\ud800", "surrogate"),
        (Words(4), "ééé", "6 bytes, at most 4"),
        (Moment(), datetime(2026, 3, 1), "no time zone"),  # noqa: DTZ001
        (Whole(), -1, "not a number from 0"),
        (Whole(), 2**63, "not a number from 0"),
        (Whole(), True, "not a number from 0"),
        (Whole(), "1", "not a number from 0"),
        (JsonColumn(4), {"a": 1}, "7 bytes, at most 4"),
        (JsonColumn(99), float("nan"), "not a JSON"),
        (JsonColumn(99), {"a": b"x"}, "not a JSON"),
        (BinaryColumn(1), b"ab", "2 bytes are too many"),
    ],
)
def test_what_cannot_be_kept_is_refused(column, value: object, said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        column.process_bind_param(value, DIALECT)
    assert refused.value.fault is Fault.INVALID


def test_a_document_without_an_end_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(RefusedError, match="not a JSON"):
        JsonColumn(99).process_bind_param(endless, DIALECT)


@given(st.text())
def test_words_keep_text_or_refuse_it(text: str) -> None:
    try:
        assert Words(20).process_bind_param(text, DIALECT) == text
    except RefusedError:
        assert "\0" in text or len(text.encode(errors="surrogatepass")) > 20 or not _encodes(text)


def _encodes(text: str) -> bool:
    return json.loads(json.dumps(text)).isascii() or text == text.encode(errors="ignore").decode()
