"""The journal against a model of it, whatever is called in which order: floors rise, nothing is lost or made up."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.routing import version_order
from gateway.common.domain.update import REVOCABLE, Failure, Step
from gateway.common.store.errors import StoreError
from gateway.common.store.settings import JournalSettings
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Floors
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
BOUNDED = settings_with(JournalSettings(), finished_limit=2, rejected_limit=100)
slots = st.sampled_from(["a", "b"])
DIGESTS = ("0" * 64, "1" * 64)
digests = st.sampled_from(DIGESTS)
steps = st.sampled_from([step for step in Step if step not in {Step.DONE, Step.ROLLED_BACK, Step.ROLL_BACK}])
versions = st.sampled_from(["1", "1.9", "1.10", "2-rc1", "2", "beta"])
numbers = st.dictionaries(st.sampled_from(["root", "timestamp"]), st.integers(0, 9))
names = st.sampled_from(["acme/meter", "acme/other"])
times = st.none() | st.integers(0, 9).map(lambda days: START + timedelta(days=days))
floors = st.builds(Floors, numbers, st.dictionaries(names, versions), times)
WAY = {Step.COMMIT: {Step.COMMIT, Step.RETIRE}, Step.RETIRE: {Step.RETIRE}, Step.ROLL_BACK: set[Step]()}


class JournalMachine(RuleBasedStateMachine):
    """State machine of a journal; `steps`, `seen` and so on are what the journal must say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.journal = Journal.create(Path(self.folder.name), BOUNDED)
        self.steps: dict[str, Step] = {}
        self.ended: list[Step] = []
        self.tried: dict[str, tuple[str, int]] = {}
        self.rejected: dict[tuple[str, str], int] = {}
        self.seen: list[Floors] = []
        self.assignment_version = 0

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()

    @rule()
    def restart(self) -> None:
        self.journal.close()
        self.journal = Journal.open(Path(self.folder.name), BOUNDED)

    @rule(seen=floors)
    def raise_floors(self, seen: Floors) -> None:
        self.journal.raise_floors(seen)
        self.seen.append(seen)

    @rule(assigned=st.dictionaries(slots, digests), attempts=st.dictionaries(slots, st.integers(1, 3)))
    def accept(self, assigned: dict[str, str], attempts: dict[str, int]) -> None:
        targets = {slot: Target("models/acme/meter/2/release", 1, digest) for slot, digest in assigned.items()}
        extra = {"attempts": attempts}
        assignment = Assignment("door", 1, START, START + timedelta(days=1), targets, extra=extra)
        self.journal.accept(assignment, b"{}", Floors())
        self.rejected = {key: at for key, at in self.rejected.items() if key in assigned.items()}
        for slot, (release, attempt) in self.tried.items():
            if assigned.get(slot) == release:
                self.tried[slot] = release, max(attempt, attempts.get(slot, 0))

    @rule(slot=slots, release=digests, attempt=st.integers(0, 3))
    def begin(self, slot: str, release: str, attempt: int) -> None:
        self.assignment_version += 1
        activation = Activation(slot, "models/acme/meter/2/release", release, (), (), 1)
        try:
            self.journal.begin(activation, self.assignment_version, START, attempt)
        except StoreError:
            assert slot in self.steps
        else:
            assert slot not in self.steps
            self.steps[slot] = Step.FETCH
            self.tried[slot] = release, attempt

    @rule(slot=slots, step=steps)
    def record(self, slot: str, step: Step) -> None:
        allowed = WAY.get(self.steps.get(slot, Step.FETCH), REVOCABLE | {Step.COMMIT})
        try:
            self.journal.record(slot, step, START)
        except (ValueError, StoreError):
            assert slot not in self.steps or step not in allowed
        else:
            assert step in allowed
            self.steps[slot] = step

    @rule(slot=slots, reject=st.booleans())
    def fail(self, slot: str, reject: bool) -> None:
        try:
            failed = self.journal.fail(slot, Failure(Step.LOAD, "why", {}), START, reject=reject)
        except (ValueError, StoreError):
            assert self.steps.get(slot) not in REVOCABLE
        else:
            assert self.steps[slot] in REVOCABLE
            self.steps[slot] = Step.ROLL_BACK
            if reject:
                self.rejected[slot, failed.activation.release] = self.tried[slot][1]

    @rule(slot=slots)
    def finish(self, slot: str) -> None:
        try:
            self.ended.append(self.journal.finish(slot, START).step)
        except (ValueError, StoreError):
            assert self.steps.get(slot) not in {Step.RETIRE, Step.ROLL_BACK}
        else:
            step = self.steps.pop(slot)
            assert self.journal.finished(1)[0].attempt == self.tried.pop(slot)[1]
            assert (step, self.ended[-1]) in {(Step.RETIRE, Step.DONE), (Step.ROLL_BACK, Step.ROLLED_BACK)}

    @invariant()
    def floors_are_the_greatest_ever_seen(self) -> None:
        found = self.journal.floors()
        for name in ("root", "timestamp"):
            values = [seen.numbers[name] for seen in self.seen if name in seen.numbers]
            assert found.numbers.get(name) == max(values, default=None)
        for name in ("acme/meter", "acme/other"):
            texts = [seen.versions[name] for seen in self.seen if name in seen.versions]
            assert found.versions.get(name) == max(texts, key=version_order, default=None)
        assert found.time == max((seen.time for seen in self.seen if seen.time), default=None)

    @invariant()
    def updates_are_where_they_were_left(self) -> None:
        assert {update.slot: update.step for update in self.journal.updates()} == self.steps
        assert [update.step for update in self.journal.finished(9)] == self.ended[-2:][::-1]
        for slot in ("a", "b"):
            for release in DIGESTS:
                at = self.rejected.get((slot, release), -1)
                found = [bool(self.journal.rejected(slot, release, attempt)) for attempt in range(4)]
                assert found == [attempt <= at for attempt in range(4)]
        tried = {update.slot: (update.activation.release, update.attempt) for update in self.journal.updates()}
        assert tried == self.tried


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=examples(48), stateful_step_count=25, deadline=None)
