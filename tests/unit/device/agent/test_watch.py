"""A version on probation: the share that is kept up, and what the looks at it come to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.probation import ProbationSettings
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.update.watch import ALONE, LEASE_SNAPSHOTS, ProbationWatch
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.constants import settings_with

SLOT = "meter"
NEW = Activation(SLOT, "models/acme/meter/2/release", "a" * 64, ("only",), (), 1)
SETTINGS = settings_with(
    ProbationSettings(duration_s=10.0), snapshot_every_s=1.0, min_requests=5, hang_s=4.0, leak_bytes=500
)
ABSENT = UnreachableError("it does not answer", table="control", key="socket")


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


class Probation:
    """A watch, its daemon and its clock."""

    def __init__(self, *, old: str = "1", settings: ProbationSettings = SETTINGS) -> None:
        self.control, self.clock = SimulatedControl(), Clock()
        if old:
            self.control.serve(SLOT, old)
        self.control.serve(SLOT, "2", 0)
        self.control.serve("other", "9")
        self.control.counters = {version: counters() for version in (*[old][: bool(old)], "2")}
        self.watch = ProbationWatch(as_control(self.control), NEW, settings, self.clock)

    def look(self, after_s: float = 1.0, **new: object) -> tuple[bool | None, str]:
        """Evaluate once more, the new version having counted so much more."""
        self.clock.now_s += after_s
        self.control.counters["2"] |= new
        judged = self.watch.evaluate()
        return judged.passed, judged.reason


def as_control(control: SimulatedControl) -> DaemonClient:
    return control  # type: ignore[return-value]


def counters(**changes: object) -> dict[str, object]:
    zero = dict.fromkeys(("requests", "executions", "failed_runs", "infer_ns", "compared", "disagreed"), 0)
    return {**zero, "busy": False, **changes}


def test_the_share_is_a_lease_beside_the_version_that_serves() -> None:
    probation = Probation()
    probation.watch.renew()
    (told,) = probation.control.named("route")
    assert told == (SLOT, {"1": 95, "2": 5}, "2", LEASE_SNAPSHOTS * SETTINGS.snapshot_every_s)


def test_where_nothing_served_before_it_gets_everything() -> None:
    probation = Probation(old="")
    probation.watch.renew()
    assert probation.control.named("route")[0][1:3] == ({"2": 100}, "")


def test_the_first_release_of_a_slot_does_not_wait_for_the_end_of_a_probation() -> None:
    assert Probation(old="").look() == (True, ALONE)


def test_every_look_renews_and_the_last_one_passes() -> None:
    probation = Probation()
    assert probation.look() == (None, "still on probation")
    assert probation.look(5.0, requests=10, executions=10)[0] is None
    passed, reason = probation.look(5.0, requests=30, executions=30)
    assert (passed, reason) == (True, "30 requests answered as they should be")
    assert len(probation.control.named("route")) == 3


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"failed_runs": 3, "executions": 10}, "3 of 13 runs failed"),
        ({"compared": 10, "disagreed": 5}, "differs from the old version"),
    ],
)
def test_what_its_counters_say_against_it(found: dict[str, object], reason: str) -> None:
    probation = Probation()
    probation.look()
    passed, told = probation.look(**found)
    assert (passed, reason in told) == (False, True), told


def test_without_requests_its_golden_set_is_replayed_with_each_look() -> None:
    probation = Probation()
    probation.control.replayed = {"rows": 8, "passed": True, "reason": "it answers its golden set"}
    assert probation.look()[0] is None
    assert probation.look(5.0)[0] is None
    assert probation.control.named("replay") == [(SLOT, "2")]
    assert probation.look(1.0, requests=1, executions=1)[0] is None
    assert len(probation.control.named("replay")) == 1, "a request came"
    passed, reason = probation.look(9.0)
    assert (passed, reason) == (True, "only 1 requests came, too few to judge; 16 golden rows were answered meanwhile")


def test_a_version_that_fails_its_golden_set_in_the_middle_fails() -> None:
    probation = Probation()
    probation.look()
    probation.control.replayed = {"rows": 8, "passed": False, "reason": "it fails its golden set: agreement 0.1"}
    assert probation.look() == (False, "it fails its golden set: agreement 0.1")


def test_a_version_that_is_slower_than_the_old_one() -> None:
    probation = Probation()
    probation.look()
    for looks in range(1, SETTINGS.min_snapshots + 1):
        probation.control.counters["1"] |= {"executions": 10 * looks, "infer_ns": 10_000 * looks}
        passed, reason = probation.look(0.1, executions=10 * looks, infer_ns=100_000 * looks)
        assert passed is (None if looks < SETTINGS.min_snapshots else False)
    assert "a run takes 10 µs, the old version's 1: more than 2 times as long" in reason


def test_a_daemon_that_grows_gets_hot_or_begins_anew() -> None:
    for change, reason in (
        ({"rss_bytes": 2000}, "the daemon grew"),
        ({"temperatures": {"cpu": 120.0}}, "120 °C hot"),
        ({"instance": "second"}, "the daemon restarted"),
    ):
        probation = Probation()
        probation.look()
        for name, value in change.items():
            setattr(probation.control, name, value)
        passed, told = probation.look()
        assert (passed, reason in told) == (False, True), told


def test_a_run_that_never_ends() -> None:
    probation = Probation()
    assert probation.look(busy=True, executions=1)[0] is None
    assert probation.look(2.0)[0] is None
    assert probation.look(1.0, executions=2)[0] is None  # one ended: the timeout begins again
    assert probation.look(3.0)[0] is None
    passed, reason = probation.look(1.5)
    assert (passed, "no run ended" in reason) == (False, True), reason


def test_a_daemon_that_does_not_answer_is_waited_for_a_while() -> None:
    probation = Probation()
    probation.look()
    probation.control.always["route"] = ABSENT
    assert probation.look() == (None, "the daemon does not answer")
    assert probation.look(3.0)[0] is None
    passed, reason = probation.look(1.0)
    assert (passed, "has not answered for 4 s" in reason) == (False, True), reason


def test_a_daemon_that_answers_again_in_time_is_forgiven() -> None:
    probation = Probation()
    probation.look()
    probation.control.always["status"] = ABSENT
    assert probation.look(3.9)[0] is None
    del probation.control.always["status"]
    assert probation.look(0.1)[0] is None
    probation.control.always["vitals"] = ABSENT
    assert probation.look(3.9) == (None, "the daemon does not answer")


def test_a_daemon_that_has_no_such_version_any_more() -> None:
    probation = Probation()
    probation.control.fail["route"] = DaemonRefusedError("NOT_FOUND", "2 is not loaded")
    assert probation.look() == (False, "the daemon does not keep it up: 2 is not loaded")


def test_with_several_versions_it_is_held_against_the_one_that_answers_most() -> None:
    control = SimulatedControl()
    control.serve(SLOT, "0", 10)
    control.serve(SLOT, "1", 90)
    watch = ProbationWatch(as_control(control), NEW, replace(SETTINGS, share_percent=20), Clock())
    watch.renew()
    assert control.named("route")[0][1] == {"1": 80, "2": 20}


def test_without_a_daemon_there_is_no_watch() -> None:
    control = SimulatedControl()
    control.fail["status"] = ABSENT
    with pytest.raises(UnreachableError):
        ProbationWatch(as_control(control), NEW, SETTINGS, Clock())
