"""Any devices, any reports, any clock, any operator: what never happens whatever happens.

Each rule is one batch of facts as the controller would record them; after it the scheduler may have its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import (
    PART_LOW,
    Abort,
    Decision,
    Finish,
    MarkSilent,
    Offer,
    OpenWave,
    Pause,
    Retry,
    RollBack,
)
from fleet.controller.rollouts.facts import (
    Aborted,
    ClockSetBack,
    Decided,
    Joined,
    Left,
    Paused,
    Reported,
    Resumed,
    RollbackRequested,
    Superseded,
    Unattended,
    WaveApproved,
)
from fleet.controller.rollouts.facts_form import REPORTED_STATES, event_document, read_event
from fleet.controller.rollouts.fold import set_back
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.schedule import may_offer
from fleet.controller.rollouts.state import IN_FLIGHT, DeviceState, Status
from tests.simulators.examples import examples
from tests.simulators.rollouts import DIGEST, OTHER, Record, spec_of

ZONES = ("", "Europe/Berlin", "Asia/Tokyo", "America/New_York")
ODD = tuple(f"{number:03}{'x' * 125}" for number in range(4))
"""Accelerators with the longest names that a device can say."""
KINDS = ((), ("hailo-8",), ODD)
WINDOW = {"start": "20:00", "end": "09:00", "zone": "site", "days": ["mon", "tue", "wed", "sat"]}
BLACKOUT = {"start": "2027-03-01T18:00:00Z", "end": "2027-03-03T02:00:00Z"}
PLANS = (
    {"waves": [{"percent": 10}, {"count": 30}, {"percent": 60}, {"percent": 100}]},
    {"waves": [{"percent": 5}, {"percent": 100, "needs_approval": True}], "windows": [WINDOW]},
    {"waves": [{"percent": 100}], "blackouts": [BLACKOUT], "soak_s": 1800, "rollback": "forced"},
    {"waves": [{"count": 7}, {"percent": 100}], "windows": [WINDOW], "blackouts": [BLACKOUT], "dynamic": False},
    {"waves": [{"percent": 10}, {"percent": 100}], "standing": True},
    {"waves": [{"count": 3}, {"percent": 100, "needs_approval": True}], "standing": True, "rollback": "forced"},
)
TOUGH = {"min_sample": 5, "max_failed_percent": 10}
LAX = {"min_sample": 50, "max_failed_percent": 90}
GAP = timedelta(seconds=120)
"""A leader whose last evaluation is so long ago records that there was none."""


class RolloutMachine(RuleBasedStateMachine):
    """State machine of one rollout.

    `offers`: devices that hold an offer now. `end`: how the rollout ended, once it did. `looked`: when the leader last
    evaluated the rollout, by its clock. `served`: devices that committed in earlier rounds of a standing rollout.
    `attended`: for how long the leader evaluated it in all, by a clock that is never set; `offered`, `heard`: that time
    at each device's last offer and last report.
    """

    def __init__(self) -> None:
        super().__init__()
        self.record = Record(spec_of())
        self.offers: set[str] = set()
        self.joined = 0
        self.end: Status | None = None
        self.served: set[str] = set()
        self.looked = self.record.now
        self.attended = timedelta()
        self.offered: dict[str, timedelta] = {}
        self.heard: dict[str, timedelta] = {}

    @initialize(
        plan=st.sampled_from(PLANS),
        canary=st.sampled_from([{}, {"per_accelerator": 2, "soak_s": 600}]),
        limit=st.sampled_from([TOUGH, LAX]),
        retries=st.sampled_from([{}, {"limit": 2, "backoff_s": 600}]),
        devices=st.sampled_from([1, 40, 300, 2000]),
    )
    def begin(self, plan, canary, limit, retries, devices) -> None:
        spec = spec_of(
            **plan, canary=canary, abort=limit, retries=retries, success={"min_sample": 5, "min_percent": 80}
        )
        self.record = Record(spec).start(self.newcomers(devices))
        if spec.standing and devices < 100:  # its later rounds are of interest
            self.record.add(WaveApproved(2, "ann"))
            self.some_good_days(1)

    def newcomers(self, number: int) -> list[Joined]:
        numbers = range(self.joined, self.joined + number)
        self.joined += number
        return [Joined(f"d-{n}", KINDS[n % 3], ZONES[n % 4]) for n in numbers]

    # ---- the scheduler

    @rule(part=st.sampled_from([1000, PART_LOW]))
    def tick(self, part: int = PART_LOW) -> None:
        """Decide and record, part by part, until there is nothing left."""
        self.look()
        whole = decide(self.record.spec, self.record.state, self.record.now)
        assert [*self.parts(part)] == [*whole]
        assert decide(self.record.spec, self.record.state, self.record.now) == ()

    @rule()
    def tick_of_a_leader_that_dies(self) -> None:
        """Record only the first part of a tick."""
        self.look()
        next(self.parts(PART_LOW), None)

    def look(self) -> None:
        """Record the facts about the clock that come before any decision."""
        state, now = self.record.state, self.record.now
        since = max(self.looked, state.attended_at)
        self.record.add(*([ClockSetBack()] if set_back(state, now) else []))
        self.record.add(*([Unattended(since)] if now - since > GAP else []))
        self.looked = now

    def attend(self, hours: float) -> None:
        """Let so much time go by, with nothing to decide."""
        passed = timedelta(hours=hours)
        self.record.now += passed
        self.looked += passed
        self.attended += passed

    def parts(self, part: int) -> Iterator[Decision]:
        """Yield decisions, each checked against the state that it is decided on."""
        while decisions := decide(self.record.spec, self.record.state, self.record.now, part):
            before = self.record.state
            for decision in decisions:
                self.hold(decision)
                self.record.add(Decided(decision))
            assert self.record.state.ignored == before.ignored, "a decision had no effect"
            if any(isinstance(decision, Offer) for decision in decisions):
                self.hold_share()
            yield from decisions

    def hold(self, decision: Decision) -> None:
        state = self.record.state
        if isinstance(decision, (Offer, Retry)):
            self.hold_offer(decision)
        elif isinstance(decision, OpenWave):
            assert decision.wave == max(state.wave + 1, self.record.spec.first_wave)
            assert not self.record.spec.needs_approval(decision.wave) or decision.wave in state.approved_waves
        elif isinstance(decision, MarkSilent):
            self.hold_silence(decision.device)
        elif isinstance(decision, RollBack):
            assert state.status is Status.ABORTED or state.halted
            assert decision.device not in self.served, "an earlier round brought it, and that is over"
            self.offers.discard(decision.device)
        elif isinstance(decision, (Pause, Abort, Finish)):
            assert state.status is Status.RUNNING
            if isinstance(decision, Finish):
                self.served = {m.device for m in state.members.values() if m.state is DeviceState.COMMITTED}
            assert read_event(event_document(Decided(decision))) == Decided(decision), "it could never be read again"

    def hold_offer(self, decision: Offer | Retry) -> None:
        record, member = self.record, self.record.member(decision.device)
        assert record.state.status is Status.RUNNING
        assert decision.device not in self.offers | self.served, "offered twice"
        assert member.present
        assert member.round == record.state.round
        assert may_offer(record.spec, member.zone, record.now), "outside its windows"
        assert decision.attempt == member.attempt + 1
        self.offers.add(decision.device)
        self.offered[decision.device] = self.heard[decision.device] = self.attended

    def hold_silence(self, device: str) -> None:
        """Check that no device counts as silent because a clock jumped."""
        spec = self.record.spec
        silent_s = (self.attended - self.heard[device]).total_seconds()
        under_way_s = (self.attended - self.offered[device]).total_seconds()
        assert silent_s >= spec.silence_s or under_way_s >= spec.deadline_s

    def hold_share(self) -> None:
        """Check that after new offers the newest wave has no more devices than its share, whichever came and went."""
        state, spec = self.record.state, self.record.spec
        members = [member for member in state.members.values() if member.round == state.round]
        taken = [member for member in members if member.counts]
        here = [member for member in taken if member.wave == state.wave]
        if state.wave == 0 and spec.canary:
            kinds = Counter(member.stratum for member in here)
            assert max(kinds.values()) <= spec.canary.per_accelerator
            return
        wave, waiting = spec.waves[state.wave - 1], sum(member.waiting for member in members)
        if wave.count is not None:
            assert len(here) <= wave.count
        else:
            assert (len(taken) - 1) * 100 < (len(taken) + waiting) * wave.percent

    # ---- devices

    @rule(
        share_of=st.integers(1, 3),
        state=st.sampled_from(REPORTED_STATES),
        release=st.sampled_from([DIGEST] * 6 + [OTHER]),
        attempt=st.sampled_from([None, None, None, 0, 1, 2]),
    )
    def some_report(self, share_of, state, release, attempt) -> None:
        """Report for one in `share_of` of all devices that ever got an offer, under way or not.

        Reports are late, doubled, false or true.
        """
        members = [m for m in self.record.state.members.values() if m.attempt][::share_of]
        self.hear(*(Reported(m.device, state, release, m.attempt if attempt is None else attempt) for m in members))

    @rule(one_fails_in=st.sampled_from([3, 20, 10**6]), outcome=st.sampled_from(["failed", "rolled_back"]))
    def all_under_way_end(self, one_fails_in, outcome) -> None:
        under_way = [m for m in self.record.state.members.values() if m.state in IN_FLIGHT]
        ends = [(m, "committed" if n % one_fails_in else outcome) for n, m in enumerate(under_way, 1)]
        self.hear(*(Reported(m.device, end, DIGEST, m.attempt) for m, end in ends))
        self.tick()

    @rule(hours=st.sampled_from([0.2, 1, 5]))
    def some_good_days(self, hours) -> None:
        """Let each device that is offered the release commit it by the next tick of the scheduler."""
        for _ in range(8):
            self.attend(hours)
            self.all_under_way_end(10**6, "failed")

    @rule(device=st.integers(0, 2000), state=st.sampled_from(REPORTED_STATES))
    def a_stranger_reports(self, device, state) -> None:
        self.hear(Reported(f"stranger-{device}", state, DIGEST))

    def hear(self, *reports: Reported) -> None:
        before = self.record.state.members
        self.record.add(*reports)
        after = self.record.state.members
        self.heard |= {r.device: self.attended for r in reports if before.get(r.device) != after.get(r.device)}
        standing = IN_FLIGHT | {DeviceState.SILENT}
        self.offers -= {m.device for m in self.record.state.members.values() if m.state not in standing}

    @rule(number=st.sampled_from([1, 20]))
    def some_join(self, number) -> None:
        self.record.add(*self.newcomers(number))

    @precondition(lambda self: self.joined)
    @rule(data=st.data(), suspended=st.booleans())
    def some_leave_or_return(self, data, suspended) -> None:
        chosen = data.draw(st.lists(st.integers(0, self.joined - 1), max_size=5))
        left = "it is suspended" if suspended else "it is revoked"
        returned = {f"d-{n}" for n in chosen if n % 2 == 0 and self.left(f"d-{n}")}
        self.record.add(
            *(
                Left(f"d-{n}", left, suspended) if n % 2 else Joined(f"d-{n}", KINDS[n % 3], ZONES[n % 4])
                for n in chosen
            )
        )
        if self.record.state.round and self.end is None:  # a new device under that name
            self.offers -= returned
            self.served -= returned

    def left(self, device: str) -> bool:
        member = self.record.state.members.get(device)
        return member is not None and not member.belongs

    @precondition(lambda self: self.record.state.round)
    @rule(number=st.sampled_from([1, 7, 40]), hours=st.sampled_from([0.2, 3]))
    def a_standing_rollout_serves_newcomers(self, number, hours) -> None:
        self.record.add(*self.newcomers(number))
        for _ in range(3):
            self.attend(hours)
            self.all_under_way_end(10**6, "failed")

    # ---- time and people

    @rule(hours=st.sampled_from([0.01, 0.2, 0.5, 1, 7, 24]))
    def time_passes(self, hours) -> None:
        self.attend(hours)
        self.tick()

    @rule(hours=st.sampled_from([-200, -5, -0.1, 300, 300]), at_once=st.booleans())
    def the_clock_jumps(self, hours, at_once) -> None:
        """Set the clock. Between two jumps the leader evaluates; other events may come before it does."""
        self.look()
        self.record.now += timedelta(hours=hours)
        if at_once:
            self.tick()

    @rule(
        event=st.sampled_from([Paused("ann"), Resumed("ann"), Resumed("ann"), WaveApproved(2, "ann")]),
    )
    def an_operator_acts(self, event) -> None:
        self.record.add(event)

    @precondition(lambda self: self.record.state.wave > 0)
    @rule(event=st.sampled_from([Aborted("ann"), RollbackRequested("ann"), Superseded("r-2")]))
    def an_operator_ends_it(self, event) -> None:
        self.record.add(event)

    # ---- what never happens

    @invariant()
    def an_end_is_an_end(self) -> None:
        status = self.record.state.status
        if self.end is not None:
            assert status is self.end
        if status in {Status.FINISHED, Status.ABORTED}:
            self.end = status
        assert status is not Status.STANDING or self.record.state.between_rounds

    @invariant()
    def who_is_under_way_holds_an_offer(self) -> None:
        assert {m.device for m in self.record.state.members.values() if m.state in IN_FLIGHT} <= self.offers

    def teardown(self) -> None:
        found = replay(self.record.spec, self.record.facts)
        assert found.difference is None
        assert found.state == self.record.state


TestRollout = RolloutMachine.TestCase
TestRollout.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
