"""Changes of the fleet, read page by page from a position that the reader names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from fleet.controller.control.device_query import selected
from fleet.controller.control.rollouts import covers
from fleet.controller.database import alerts, changes, device_filter, events, rollouts
from fleet.controller.database.alerts import Alert
from fleet.controller.database.changes import ChangeKind, StoredChange
from fleet.controller.database.columns import LARGEST
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.events import StoredEvent
from fleet.controller.database.rollouts import StoredFact
from fleet.controller.rollouts.query_parser import parse

POSITION_PATTERN = r"^([0-9]{1,18}(\.[0-9]{1,18})?)?$"
POSITION_CHARACTERS = 37


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Place between two changes: behind all of change `number`, or behind its fact number `fact`."""

    number: int
    fact: int = LARGEST

    def __str__(self) -> str:
        """Return the position as text, as programs store it."""
        return str(self.number) if self.fact == LARGEST else f"{self.number}.{self.fact}"


def read_position(text: str) -> Position:
    """Read a position. Raise RefusedError."""
    if not (text and re.fullmatch(POSITION_PATTERN, text)):
        raise RefusedError(f"no change has the id {text!r:.80}; send the id of the last message, or none")
    return Position(*map(int, text.split(".")))


@dataclass(frozen=True, slots=True)
class Change:
    """One message. `position` is behind it; `about`: what was recorded, None if that is no longer known."""

    position: Position
    kind: ChangeKind
    device: str = ""
    rollout: str = ""
    about: StoredEvent | Alert | StoredFact | None = None

    @property
    def is_lost(self) -> bool:
        """Return whether only its place is known."""
        return self.about is None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes in their order. `reached`: where the next page begins; `more`: it is there already."""

    changes: Sequence[Change]
    reached: Position
    more: bool


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Filter of a reader, by permission and request.

    `scope`: tags, one of which a device must have; `query`: selects devices. Empty fields select everything.
    """

    kinds: frozenset[ChangeKind] = frozenset()
    device: str = ""
    rollout: str = ""
    query: str = ""
    scope: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Return whether the change alone decides, without the database."""
        return not (self.query or self.scope)

    def names(self, change: Change) -> bool:
        """Return whether a change passes, apart from `query` and `scope`. A lost change is selected by its kind."""
        if self.kinds and change.kind not in {ChangeKind.GAP, *self.kinds}:
            return False
        matches = self.device in {"", change.device} and self.rollout in {"", change.rollout}
        return change.is_lost or matches


@dataclass(frozen=True, slots=True)
class _Span:
    """Facts `first` to `last` of a change; both are 0 for other kinds."""

    change: StoredChange
    first: int
    last: int

    @property
    def position(self) -> Position:
        return Position(self.change.number) if self.last == self.change.last else self.fact(self.last)

    def fact(self, number: int) -> Position:
        """Return the position behind one fact."""
        return Position(self.change.number, LARGEST if number == self.change.last else number)


class ChangeReader:
    """Reader of changes. Any thread may use it."""

    def __init__(self, database: Database, page_changes: int) -> None:
        self._database, self._page_changes = database, page_changes

    def now(self) -> Position:
        """Return the position after all changes. Raise AwayError."""
        with self._database.glance() as connection:
            until = changes.settled(connection)
        with self._database.read() as connection:
            return Position(changes.newest(connection, until))

    def read(self, after: Position) -> ChangePage:
        """Return the page after `after`, with a gap first if `after` is no longer known. Raise AwayError."""
        with self._database.glance() as connection:
            until = changes.settled(connection)
        with self._database.read() as connection:
            begin = _begin(connection, after, until)
            gap = [Change(begin, ChangeKind.GAP)] if begin != after else []
            found = changes.after(connection, begin.number, until, self._page_changes + 2)  # `begin`, and one beyond
            spans = _spans(found, begin, self._page_changes)
            # One gap replaces several consecutive ones of a kind.
            pairs = pairwise([*[*gap, *_loaded(connection, spans)], None])
            loaded = [
                one
                for one, then in pairs
                if one and not (then and one.is_lost and then.is_lost and one.kind is then.kind)
            ]
        reached = spans[-1].position if spans else begin
        return ChangePage(loaded, reached, more=bool(found) and reached < Position(found[-1].number))

    def visible(self, found: Iterable[Change], wanted: ChangeFilter) -> Sequence[Change]:
        """Return those of these changes that a reader gets. Raise AwayError, RefusedError for its query."""
        named = [change for change in found if wanted.names(change)]
        if wanted.is_plain or not named:
            return named
        devices = {change.device for change in named if change.device}
        with self._database.read() as connection:
            if (chosen := selected(connection, wanted.query)) is not None:
                passing = device_filter.passing(connection, devices, chosen)
                named = [change for change in named if change.is_lost or change.device in passing]
            if wanted.scope:
                concerned = {change.device for change in named if change.device}
                tagged = device_filter.tagged(connection, concerned, wanted.scope)
                facts = {change.rollout for change in named if isinstance(change.about, StoredFact)}
                covered = {
                    name: covers(wanted.scope, parse(str(rollouts.get(connection, name).spec["query"])))
                    for name in facts
                }
                return [change for change in named if _is_within(change, tagged, covered)]
            return named

    def check(self, query: str) -> None:
        """Raise RefusedError for an invalid query, AwayError."""
        with self._database.read() as connection:
            selected(connection, query)


def _begin(connection: Connection, after: Position, until: int) -> Position:
    """Return `after`, or where to continue if it was swept, or never reached in this database."""
    swept = changes.swept(connection)
    if after > Position(max(changes.newest(connection), swept)):
        return Position(max(changes.newest(connection, until), swept))
    return max(after, Position(swept))


def _spans(found: Iterable[StoredChange], begin: Position, limit: int) -> list[_Span]:
    """Return at most `limit` changes and facts behind `begin`. Pure."""
    spans: list[_Span] = []
    for change in found:
        if limit <= 0 or Position(change.number) <= begin:
            continue
        first = max(change.first, begin.fact + 1) if change.number == begin.number else change.first
        last = min(change.last, first + limit - 1)
        spans.append(_Span(change, first, last))
        limit -= max(1, last - first + 1)
    return spans


def _loaded(connection: Connection, spans: Sequence[_Span]) -> Iterator[Change]:
    """Read what changes refer to."""
    subjects: dict[ChangeKind, list[str]] = {}
    for span in spans:
        subjects.setdefault(span.change.kind, []).append(span.change.subject)
    happened = events.of_ids(connection, map(int, subjects.get(ChangeKind.DEVICE_EVENT, ())))
    keys = {*subjects.get(ChangeKind.ALERT_OPENED, ()), *subjects.get(ChangeKind.ALERT_CLOSED, ())}
    alerts_now = alerts.of_keys(connection, sorted(keys))
    for span in spans:
        kind, subject = span.change.kind, span.change.subject
        if kind is ChangeKind.ROLLOUT_FACT:
            for fact in rollouts.facts_between(connection, subject, span.first, span.last):
                about = ChangeKind.ROLLOUT_DEVICE_FACT if fact.device else ChangeKind.ROLLOUT_FACT
                yield Change(span.fact(fact.sequence), about, fact.device, subject, fact)
        elif kind is ChangeKind.DEVICE_EVENT and (stored := happened.get(int(subject))):
            yield Change(span.position, kind, stored.event.device, stored.event.rollout, stored)
        elif alert := alerts_now.get(subject):
            yield Change(span.position, kind, alert.device, about=alert)
        else:
            yield Change(span.position, kind)


def _is_within(change: Change, tagged: Mapping[str, datetime], covered: Mapping[str, bool]) -> bool:
    if isinstance(change.about, StoredFact):
        return covered[change.rollout]
    if isinstance(change.about, Alert):  # the same rule as in fleet.controller.database.alerts.page
        return change.device in tagged and tagged[change.device] <= change.about.since
    return change.is_lost or change.device in tagged
