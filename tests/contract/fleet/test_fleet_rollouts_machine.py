"""Rollouts of one slot under all possible events in any order; what is desired is always what the facts say.

Events are words of operators, reports true and false, devices that come and are revoked, leaders that change, and
clocks that jump.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.controller.audit import Break
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import audit, devices
from fleet.controller.database.errors import ConflictError
from fleet.controller.rollouts.decisions import Offer, Retry
from fleet.controller.rollouts.facts import Aborted, Decided, Event, Paused, Resumed, RollbackRequested
from fleet.controller.rollouts.state import IN_FLIGHT, DeviceState, Member
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples
from tests.simulators.rolled_fleet import V1, V2, V3, RolledFleet, rolling

NAMES = [f"d-{n}" for n in range(6)]
ROLLOUTS = 4
OTHER = "e" * 64
numbers = st.integers(0, 99)
some = st.lists(numbers, min_size=1, max_size=4)
words = st.sampled_from([Paused("ann"), Resumed("ann"), Aborted("ann"), RollbackRequested("ann")])
states = st.sampled_from(["downloading", "probation", "committed", "rolled_back", "failed"])
UNDER_WAY = ("offered", "downloading", "probation")
seconds = st.sampled_from([1, 61, 3700, 90_000, -3600])


class Rollouts(RuleBasedStateMachine):
    """State machine of rollouts; all devices had version 1 by a rollout that stands, `first`."""

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.fleet: RolledFleet = self.stack.enter_context(
            rolling("sqlite", folder, settings_with(SchedulerSettings(), devices_per_tick=2, gap_s=5000.0))
        )
        self.fleet.publish("3")
        self.fleet.enrol(NAMES)
        self.first = self.fleet.start(target="acme/meter-reader/1", waves=[{"percent": 100}], standing=True)
        self.fleet.turn()
        self.fleet.report(self.first, NAMES, "committed")
        self.fleet.turn(1)
        self.leader, self.rollouts = self.fleet.scheduler, list[str]()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @precondition(lambda self: len(self.rollouts) < ROLLOUTS)
    @rule(
        version=st.sampled_from("23"),
        forced=st.booleans(),
        count=st.integers(1, 4),
        retries=st.integers(0, 1),
        standing=st.booleans(),
    )
    def start(self, version: str, forced: bool, count: int, retries: int, standing: bool) -> None:
        self.fleet.now += timedelta(seconds=1)
        more = {"rollback": "forced" if forced else "offered", "retries": {"limit": retries, "backoff_s": 60}}
        more |= {"standing": standing}
        waves = [{"count": count}, {"percent": 100}]
        self.rollouts.append(self.fleet.start(target=f"acme/meter-reader/{version}", waves=waves, **more))

    @rule(later=seconds)
    def turn(self, later: int) -> None:
        self.fleet.turn(later, scheduler=self.leader)

    @precondition(lambda self: self.rollouts)
    @rule(which=numbers, word=words)
    def say(self, which: int, word: Event) -> None:
        try:
            self.fleet.say(self.rollouts[which % len(self.rollouts)], word)
        except ConflictError:
            return

    @precondition(lambda self: self.rollouts)
    @rule(
        which=numbers,
        whose=st.lists(numbers, min_size=1, max_size=4),
        state=states,
        lie=st.booleans(),
        old=st.booleans(),
    )
    def report(self, which: int, whose: list[int], state: str, lie: bool, old: bool) -> None:
        rollout = self.rollouts[which % len(self.rollouts)]
        known = sorted(self.fleet.known(rollout).state.members)
        names = sorted({known[number % len(known)] for number in whose}) if known else []
        changes = ({"release": OTHER} if lie else {}) | ({"attempt": 1} if old else {})
        self.fleet.report(rollout, names, state, **changes)

    @precondition(lambda self: self.rollouts)
    @rule(which=numbers)
    def all_commit(self, which: int) -> None:
        """Let a rollout go on undisturbed for two waves."""
        rollout = self.rollouts[which % len(self.rollouts)]
        for _ in range(2):
            self.fleet.turn(1, scheduler=self.leader)
            going = [name for state in UNDER_WAY for name in self.fleet.members(rollout, state)]
            self.fleet.report(rollout, going, "committed")
        self.fleet.turn(1, scheduler=self.leader)

    @rule(which=st.integers(0, 5))
    def revoke(self, which: int) -> None:
        with self.fleet.database.write() as connection:
            devices.change_state(connection, NAMES[which], "revoke", "lost", self.fleet.now)

    @rule(which=st.integers(0, 5))
    def suspend_or_resume(self, which: int) -> None:
        with self.fleet.database.write() as connection:
            state = devices.get(connection, NAMES[which]).state
            for operation in ("suspend", "resume"):
                if state in devices.TRANSITIONS[operation][0]:
                    devices.change_state(connection, NAMES[which], operation, "", self.fleet.now)

    @rule(which=st.integers(0, 8))
    def come(self, which: int) -> None:
        """Let a device come back, or a new one come."""
        name = f"d-{which}"
        with self.fleet.database.write() as connection:
            if which < len(NAMES) and devices.get(connection, name).state is devices.EnrolmentState.REVOKED:
                devices.change_state(connection, name, "readmit", "", self.fleet.now)
        if which >= len(NAMES):
            self.fleet.enrol([name])

    @rule()
    def lead(self) -> None:
        """Let another replica lead, with no memory."""
        self.fleet.now += timedelta(seconds=40)
        self.leader = self.fleet.replica(f"replica at {self.fleet.now}")

    def _all(self) -> list[str]:
        return [self.first, *self.rollouts] if hasattr(self, "rollouts") else []

    @precondition(lambda self: hasattr(self, "rollouts"))
    @rule(word=words)
    def say_to_the_standing_one(self, word: Event) -> None:
        with suppress(ConflictError):
            self.fleet.say(self.first, word)

    @precondition(lambda self: hasattr(self, "rollouts"))
    @rule(state=states)
    def newcomers_report(self, state: str) -> None:
        """Let devices that the standing one offered something report, true or false."""
        going = [member.device for member in self.fleet.known(self.first).state.members.values() if member.round]
        self.fleet.report(self.first, going, state)

    @invariant()
    def every_decision_follows(self) -> None:
        for rollout in self._all():
            self.fleet.replayed(rollout)

    @invariant()
    def each_attempt_is_offered_once(self) -> None:
        for rollout in self._all():
            decided = [fact.event.decision for fact in self.fleet.facts(rollout) if isinstance(fact.event, Decided)]
            offers = Counter((one.device, one.attempt) for one in decided if isinstance(one, (Offer, Retry)))
            assert not offers or max(offers.values()) == 1

    @invariant()
    def what_is_desired_is_what_the_facts_say(self) -> None:
        if not hasattr(self, "rollouts"):
            return
        names = [f"d-{n}" for n in range(9)]
        wanted, having = self.fleet.desired(names), Counter[str]()
        live = {r: k for r in self.rollouts if (k := self.fleet.known(r)).stored.state in {"running", "paused"}}
        for rollout, known in live.items():
            for member in known.state.members.values():
                if known.state.round and member.state not in IN_FLIGHT:
                    continue  # a younger rollout may have taken it
                if member.belongs and _has_it(member):
                    having[member.device] += 1
                    assert wanted[member.device].rollout == rollout
                    assert wanted[member.device].target == known.spec.target.path
        assert not having or max(having.values()) == 1
        for name in NAMES:
            assert wanted[name].target in {V1, V2, V3}
            assert wanted[name].rollout in {self.first, *self.rollouts}
            assert (wanted[name].target == V1) == (wanted[name].rollout == self.first)

    @invariant()
    def a_later_round_offers_it_no_more_often_than_retries_allow(self) -> None:
        for rollout in self._all():
            known = self.fleet.known(rollout)
            later = [member for member in known.state.members.values() if member.round and member.attempt]
            retries = known.spec.retries.limit
            assert all(member.failures <= retries + 1 for member in later)

    @invariant()
    def the_audit_log_is_whole(self) -> None:
        if hasattr(self, "fleet"):
            with self.fleet.database.read() as connection:
                assert not isinstance(audit.verify(connection, self.fleet.database.settings), Break)


def _has_it(member: Member) -> bool:
    """Return whether it was offered the release, and that was not taken back."""
    return member.attempt > 0 and member.state is not DeviceState.PENDING and not member.returned


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(
    max_examples=examples(24), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
