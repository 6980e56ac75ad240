"""A report answers the offer that its device had when it was made, however late it arrives."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import assignments
from fleet.controller.database.errors import ConflictError
from fleet.controller.rollouts.facts import Aborted, Paused, Resumed, RollbackRequested
from fleet.controller.rollouts.state import DeviceState, Status
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples
from tests.simulators.offered_device import OfferedDevice, director
from tests.simulators.rolled_fleet import RolledFleet, fleet, rolling

__all__ = ["fleet"]
pytestmark = pytest.mark.timeout(300)
ALL = [{"percent": 100}]
LENIENT = {"abort": {"min_sample": 9, "max_failed_percent": 90}}
numbers = st.integers(0, 99)
words = st.sampled_from([Paused("ann"), Resumed("ann"), Aborted("ann"), RollbackRequested("ann")])


@pytest.fixture
def device(fleet: RolledFleet) -> OfferedDevice:
    fleet.enrol(["camera-1"])
    return OfferedDevice(fleet, "camera-1", director(fleet))


def committed(device: OfferedDevice, rollout: str) -> None:
    """Let the device commit what the rollout offers, and the controller learn it."""
    device.poll()
    device.carry_out(passes=True)
    device.report()
    device.deliver(-1, [rollout])
    device.fleet.turn(1)


def test_a_report_on_the_release_before_does_not_fail_the_next_rollout(device: OfferedDevice) -> None:
    """The word on version 1 was under way while version 2 was offered; the attempts of both are the first."""
    fleet = device.fleet
    first = fleet.start(target="acme/meter-reader/1", waves=ALL)
    fleet.turn(1)
    committed(device, first)
    assert fleet.status(first) is Status.FINISHED
    second = fleet.start(target="acme/meter-reader/2", waves=ALL)
    fleet.turn(1)
    assert device.state(second) is DeviceState.OFFERED
    device.deliver(-1, [second])
    assert device.state(second) is DeviceState.OFFERED, "it was made before the device had the offer"
    device.poll()
    device.deliver(-1, [second])
    assert device.state(second) is DeviceState.OFFERED, "nor does it answer it now"
    committed(device, second)
    assert fleet.status(second) is Status.FINISHED


def test_a_report_of_an_agent_that_names_no_assignment_counts_as_before(device: OfferedDevice) -> None:
    fleet = device.fleet
    rollout = fleet.start(target="acme/meter-reader/2", waves=ALL)
    fleet.turn(1)
    device.poll()
    device.carry_out(passes=True)
    device.report()
    del device.network[-1]["assignment"]
    device.deliver(-1, [rollout])
    assert device.state(rollout) is DeviceState.COMMITTED


def digest(device: OfferedDevice, version: int) -> str:
    """Return the digest of the release document."""
    target = device.fleet.repository.published.target(f"models/acme/meter-reader/{version}/release")
    assert target
    return target.hashes["sha256"]


def test_a_report_from_before_an_offer_is_no_word_on_the_return_from_it(device: OfferedDevice) -> None:
    """It says that version 1 is committed, as a report after the return does."""
    fleet = device.fleet
    first = fleet.start(target="acme/meter-reader/1", waves=ALL)
    fleet.turn(1)
    committed(device, first)
    second = fleet.start(target="acme/meter-reader/2", waves=ALL, soak_s=9000)
    fleet.turn(1)
    committed(device, second)
    fleet.say(second, Aborted("ann"))
    fleet.say(second, RollbackRequested("ann"))
    fleet.turn(1)
    device.deliver(0, [second])
    assert device.committed == digest(device, 2)
    assert device.state(second) is DeviceState.COMMITTED, "it has not gone back yet"
    committed(device, second)
    assert device.committed == digest(device, 1)
    assert device.state(second) is DeviceState.ROLLED_BACK


def test_a_report_on_what_a_lost_controller_offered_does_not_fail_the_offer_of_its_backup(
    device: OfferedDevice,
) -> None:
    """The backup holds the offer of version 2; after it the lost controller offered version 1, at its first attempt."""
    fleet = device.fleet
    rollout = fleet.start(target="acme/meter-reader/2", waves=ALL)
    fleet.turn(1)
    device.poll()
    device.report()
    offered = device.network[-1]
    lost, since = digest(device, 1), offered["assignment"] + 1
    said = {"state": "committed", "release": lost, "committed": {"release": lost}, "assignment": since}
    with fleet.database.write() as connection:
        base = assignments.leap(connection, 1_000_000)
    device.network += [
        {**offered, **said},
        {**offered, "state": "downloading"},
        {**offered, **said, "assignment": base + 1},
    ]
    device.deliver(1, [rollout])
    assert device.state(rollout) is DeviceState.OFFERED
    device.deliver(2, [rollout])
    assert device.state(rollout) is DeviceState.DOWNLOADING, "on the offered release it counts as before"
    device.deliver(3, [rollout])
    assert device.state(rollout) is DeviceState.FAILED, "after the restore it speaks of the present offer"


class Offers(RuleBasedStateMachine):
    """Devices, network and controller in any order. No honest device is taken for a liar, and none is overheard."""

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.fleet: RolledFleet = self.stack.enter_context(
            rolling("sqlite", folder, settings_with(SchedulerSettings(), gap_s=5000.0))
        )
        self.fleet.publish("3")
        signing = director(self.fleet)
        self.devices = [OfferedDevice(self.fleet, name, signing) for name in self.fleet.enrol(["d-0", "d-1"])]
        self.rollouts: list[str] = []

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @precondition(lambda self: len(self.rollouts) < 5)
    @rule(version=st.sampled_from("123"), forced=st.booleans(), retries=st.integers(0, 1))
    def start(self, version: str, forced: bool, retries: int) -> None:
        more = {"rollback": "forced" if forced else "offered", "retries": {"limit": retries, "backoff_s": 1}}
        self.rollouts.append(self.fleet.start(target=f"acme/meter-reader/{version}", waves=ALL, **LENIENT, **more))

    @rule(later=st.sampled_from([1, 61, 50_000]))
    def tick(self, later: int) -> None:
        self.fleet.turn(later)

    @precondition(lambda self: self.rollouts)
    @rule(
        which=numbers, word=st.sampled_from([Paused("ann"), Resumed("ann"), Aborted("ann"), RollbackRequested("ann")])
    )
    def say(self, which: int, word: Paused | Resumed | Aborted | RollbackRequested) -> None:
        try:
            self.fleet.say(self.rollouts[which % len(self.rollouts)], word)
        except ConflictError:
            return

    @rule(which=numbers)
    def bring(self, which: int) -> None:
        """Bring the release without a hitch: the device has it, and the controller knows."""
        device = self.devices[which % 2]
        self.fleet.turn(1)
        device.poll()
        device.carry_out(passes=True)
        device.report()
        device.deliver(-1, self.rollouts)
        self.fleet.turn(1)

    @rule(which=numbers)
    def poll(self, which: int) -> None:
        self.devices[which % 2].poll()

    @rule(which=numbers, passes=st.booleans())
    def carry_out(self, which: int, passes: bool) -> None:
        self.devices[which % 2].carry_out(passes=passes)

    @rule(which=numbers)
    def report(self, which: int) -> None:
        self.devices[which % 2].report()

    @rule(which=numbers, number=numbers)
    def deliver(self, which: int, number: int) -> None:
        self.devices[which % 2].deliver(number, self.rollouts)

    @rule(which=numbers)
    def settle(self, which: int) -> None:
        """Check that in the end the rollout whose offer a device carried out knows it."""
        device = self.devices[which % 2]
        device.poll()
        device.carry_out(passes=True)
        device.report()
        device.deliver(-1, self.rollouts)
        wanted = self.fleet.desired([device.name]).get(device.name)
        if wanted and wanted.digest == device.committed and wanted.rollout in self.rollouts:
            member = self.fleet.known(wanted.rollout).state.members[device.name]
            offered = member.state not in {DeviceState.PENDING, DeviceState.ROLLED_BACK} and not member.returned
            assert not offered or member.state is DeviceState.COMMITTED, member

    @invariant()
    def nobody_is_taken_for_a_liar(self) -> None:
        for rollout in getattr(self, "rollouts", []):
            for member in self.fleet.known(rollout).state.members.values():
                assert "runs another release" not in member.reason, (rollout, member)


TestOffers = Offers.TestCase
TestOffers.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
