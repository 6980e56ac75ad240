"""The spool against a model of it, whatever is called in which order.

Every number is a record, in a gap, or acknowledged, and what is dropped is the least important and oldest there is.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.common.store.settings import SpoolSettings
from gateway.device.store.spool import Spool
from gateway.device.store.spool_rows import OVERHEAD_BYTES, Gap, Priority, SpooledRecord, SpoolRecord
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples

START = datetime(2027, 1, 1, tzinfo=UTC)
BOUNDED = settings_with(SpoolSettings(bytes_limit=4_000, age_limit_d=3.0), gaps_at_once=10_000, epochs_limit=10_000)
streams = st.sampled_from(["a", "b"])
Source = tuple[str, int]


@dataclass
class Known:
    """A record as the model sees it."""

    source: Source
    seq: int
    priority: Priority
    at: datetime
    size_bytes: int


class SpoolMachine(RuleBasedStateMachine):
    """State machine of a spool, which must say `records` in order of arrival, and `lost` and `last` by source."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now, self.boot = START, 0
        self.records: list[Known] = []
        self.lost: dict[Source, dict[int, Priority]] = {}
        self.last: Counter[Source] = Counter()
        self.acknowledged: dict[Source, set[int]] = {}
        self.spool = self.opened()

    def opened(self) -> Spool:
        return Spool.open(Path(self.folder.name), f"boot-{self.boot}", self.now, BOUNDED)

    def teardown(self) -> None:
        self.spool.close()
        self.folder.cleanup()

    @rule(boots=st.booleans())
    def restart(self, boots: bool) -> None:
        before = self.spool.epoch
        self.spool.close()
        self.boot += boots
        self.spool = self.opened()
        assert self.spool.renewed == ""
        assert (self.spool.epoch > before) == boots

    @rule(days=st.integers(0, 2))
    def time_passes(self, days: int) -> None:
        self.now += timedelta(days=days)

    @rule(
        made=st.lists(st.tuples(streams, st.sampled_from(Priority), st.integers(0, 900), st.integers(0, 4)), max_size=6)
    )
    def append(self, made: list[tuple[str, Priority, int, int]]) -> None:
        batch = [
            SpoolRecord(stream, priority, "k", self.now - timedelta(days=age), {"x": "y" * size})
            for stream, priority, size, age in made
        ]
        for record, (stream, priority, size, _) in zip(batch, made, strict=True):
            source = (stream, self.spool.epoch)
            self.last[source] += 1
            size_bytes = OVERHEAD_BYTES + len('{"x":""}') + size
            self.records.append(Known(source, self.last[source], priority, record.at, size_bytes))
        assert self.spool.append(batch, self.now) == self.expire() + self.make_room()

    @rule(stream=streams, back=st.integers(0, 3), beyond=st.integers(-8, 3))
    def acknowledge(self, stream: str, back: int, beyond: int) -> None:
        epochs = sorted({epoch for name, epoch in self.last if name == stream})
        source = (stream, epochs[-1 - back] if back < len(epochs) else 1)
        seq = self.last[source] + beyond
        had = [one for one in self.records if one.source == source and one.seq <= seq]
        gone = [run for run in self.runs(source) if run[-1] <= seq]
        assert self.spool.acknowledged(*source, seq) == len(had) + len(gone)
        self.records = [one for one in self.records if one not in had]
        taken = self.acknowledged.setdefault(source, set())
        taken.update(one.seq for one in had)
        for run in gone:
            taken.update(run)
            for number in run:
                del self.lost[source][number]

    @rule()
    def give_up(self) -> None:
        batch = self.spool.batch(1, 1)
        if batch and isinstance(entry := batch[0], SpooledRecord):
            self.spool.give_up(entry)
            self.drop(
                next(
                    one
                    for one in self.records
                    if one.source == (entry.stream, entry.boot_epoch) and one.seq == entry.seq
                )
            )

    @invariant()
    def every_number_is_accounted_for(self) -> None:
        entries = self.spool.batch(10_000, 10**9)
        kept = {
            (one.stream, one.boot_epoch, one.seq): one.priority for one in entries if isinstance(one, SpooledRecord)
        }
        assert kept == {(*one.source, one.seq): one.priority for one in self.records}
        gaps = [one for one in entries if isinstance(one, Gap)]
        assert len(kept) + len(gaps) == len(entries)
        for source, last in self.last.items():
            runs = {(run[0], run[-1]): Counter(self.lost[source][n] for n in run) for run in self.runs(source)}
            assert {(g.seq, g.last): g.dropped for g in gaps if (g.stream, g.boot_epoch) == source} == runs
            covered = [seq for name, epoch, seq in kept if (name, epoch) == source]
            covered += [number for first, end in runs for number in range(first, end + 1)]
            covered += self.acknowledged.get(source, set())
            assert sorted(covered) == list(range(1, last + 1))

    @invariant()
    def it_is_bounded(self) -> None:
        usage = self.spool.usage()
        gaps = sum(len(self.runs(source)) for source in self.lost)
        assert (usage.records, usage.gaps) == (len(self.records), gaps)
        assert usage.size_bytes == self.size()
        assert usage.size_bytes <= BOUNDED.bytes_limit or not self.records

    @invariant()
    def each_stream_is_sent_in_its_order(self) -> None:
        batch = self.spool.batch(7, 2_000)
        for source in self.last:
            mine = [entry.seq for entry in batch if (entry.stream, entry.boot_epoch) == source]
            whole = [e.seq for e in self.spool.batch(10_000, 10**9) if (e.stream, e.boot_epoch) == source]
            assert mine == whole[: len(mine)]

    # ---- the model ---------------------------------------------------------------------------------------------------
    def runs(self, source: Source) -> list[list[int]]:
        found: list[list[int]] = []
        for number in sorted(self.lost.get(source, {})):
            if found and found[-1][-1] == number - 1:
                found[-1].append(number)
            else:
                found.append([number])
        return found

    def size(self) -> int:
        gaps = sum(len(self.runs(source)) for source in self.lost)
        return sum(one.size_bytes for one in self.records) + gaps * OVERHEAD_BYTES

    def drop(self, one: Known) -> None:
        self.records.remove(one)
        self.lost.setdefault(one.source, {})[one.seq] = one.priority

    def expire(self) -> int:
        old = [one for one in self.records if one.at < self.now - timedelta(days=BOUNDED.age_limit_d)]
        for one in old:
            self.drop(one)
        return len(old)

    def make_room(self) -> int:
        dropped = 0
        while self.records and self.size() > BOUNDED.bytes_limit:
            self.drop(min(self.records, key=lambda one: one.priority))
            dropped += 1
        return dropped


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=examples(48), stateful_step_count=25, deadline=None)
