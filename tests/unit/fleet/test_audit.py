"""The audit log's chain: whatever is changed shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.audit import FIRST, Break, Deed, Head, LogEntry, chained, follow, head_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TEXT = st.text(max_size=10)
DEEDS = st.builds(Deed, TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT | st.integers() | st.none(), max_size=3))
LOGS = st.lists(DEEDS, min_size=1, max_size=8)


def written(deeds: list[Deed]) -> list[LogEntry]:
    """Return a log of these."""
    log: list[LogEntry] = []
    for number, deed in enumerate(deeds):
        log.append(chained(head_of(log[-1]) if log else Head(), deed, NOW + timedelta(microseconds=number)))
    return log


@given(LOGS)
def test_what_was_written_holds(deeds: list[Deed]) -> None:
    log = written(deeds)
    assert follow(Head(), log) == Head(len(log), log[-1].digest)
    middle = len(log) // 2
    assert follow(Head(), log[:middle] + log[middle:]) == follow(follow(Head(), log[:middle]), log[middle:])


@given(LOGS, st.data())
def test_the_first_changed_entry_is_found(deeds: list[Deed], data: st.DataObject) -> None:
    log = written(deeds)
    place = data.draw(st.integers(0, len(log) - 1))
    entry = log[place]
    deed = data.draw(DEEDS.filter(lambda other: other != entry.deed))
    changes = [
        replace(entry, deed=deed),
        replace(entry, at=entry.at + timedelta(microseconds=1)),
        replace(entry, digest=FIRST),
        replace(entry, previous="1" * 64),
        chained(Head(entry.sequence - 1, "1" * 64), deed, entry.at),
    ]
    for changed in changes:
        assert follow(Head(), [*log[:place], changed, *log[place + 1 :]]) == Break(entry.sequence, ANY_PROBLEM)


@given(LOGS.filter(lambda deeds: len(deeds) > 1), st.data())
def test_an_entry_that_is_taken_out_or_moved_is_missed(deeds: list[Deed], data: st.DataObject) -> None:
    log = written(deeds)
    place = data.draw(st.integers(0, len(log) - 2))
    assert follow(Head(), log[:place] + log[place + 1 :]) == Break(place + 1, ANY_PROBLEM)
    swapped = [*log[:place], log[place + 1], log[place], *log[place + 2 :]]
    assert follow(Head(), swapped) == Break(place + 1, ANY_PROBLEM)


@given(LOGS, DEEDS, st.data())
def test_an_entry_computed_anew_breaks_the_next_one(deeds: list[Deed], deed: Deed, data: st.DataObject) -> None:
    log = written([*deeds, deed])
    place = data.draw(st.integers(0, len(log) - 2))
    other = chained(Head(place, log[place].previous), Deed("eve", "other", "thing"), NOW)
    assert follow(Head(), [*log[:place], other, *log[place + 1 :]]) == Break(place + 2, ANY_PROBLEM)


def test_fields_do_not_run_into_each_other() -> None:
    one, other = (chained(Head(), Deed(*fields), NOW) for fields in (("a", "bc", "d"), ("ab", "c", "d")))
    assert one.digest != other.digest


class _Any:
    """Equal to every text that says something."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(other)

    __hash__ = None  # type: ignore[assignment]


ANY_PROBLEM: str = _Any()  # type: ignore[assignment]
