"""Updates step by step: what each step does, what it may fail with, and where the update stands then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.policy import Policy
from gateway.common.domain.probation import ProbationSettings
from gateway.common.domain.update import Step
from gateway.common.logs import configure_logging
from gateway.common.store.settings import StoreSettings
from gateway.common.transfer.source import FetchError
from gateway.device.agent import events
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.settings import AgentSettings
from gateway.device.agent.state.identity import bootstrap, read_identity
from gateway.device.agent.state.storage import Storage, opened
from gateway.device.agent.update import work
from gateway.device.store.journal_rows import Update
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.policy_document import policy_bytes

DEVICE, SLOT = "door-1", "meter"
CONFIG = AgentConfig(
    agent=AgentSettings(drain_s=1.0),
    probation=settings_with(ProbationSettings(duration_s=0.0), snapshot_every_s=0.5, min_requests=5),
    store=StoreSettings(keep_free_bytes=0),
)
ABSENT = UnreachableError("it does not answer", table="control", key="socket")
NO = DaemonRefusedError("INVALID", "the daemon's reason")


FREE = Policy(removal_hold_h=0.0, removal_share_percent_per_hour=100.0, removal_of_last=True)
"""Removals wait for nothing."""


@dataclass
class Device:
    """A device in this process: everything real but the daemon and the clock of its probations."""

    repository: FleetRepository
    storage: Storage
    control: SimulatedControl
    agent: work.Agent
    now_s: float = 0.0

    def assign(self, version: str, **variants: bytes) -> None:
        """Publish and assign a version, by default of one variant; ask, and begin with it."""
        made = variants or {"only": f"version {version}".encode()}
        path = self.repository.add_release(SLOT, version, variants=made)
        self.repository.assign(DEVICE, {SLOT: path})
        assert self.agent.poll().problem == ""

    def order_removal(self) -> None:
        """Install a policy that lets the only model go at once, then order its removal."""
        policy = self.repository.add_file("policy/free.json", policy_bytes(FREE))
        self.repository.assign(DEVICE, {SLOT: self.storage.active().slots[SLOT].target}, [policy])
        assert self.agent.poll().problem == ""
        self.repository.assign(DEVICE, {}, [policy], extra={"removed": [SLOT]})

    def update(self) -> Update:
        """Return the update under way."""
        update = self.storage.journal.update(SLOT)
        assert update
        return update

    def step(self) -> float:
        """Do the step that is recorded."""
        return self.agent._installer.advance(self.update())

    def until(self, step: Step) -> None:
        """Step by step."""
        while self.update().step is not step:
            self.step()

    def run(self) -> Update:
        """Run the update to the end; return how it ended."""
        while self.storage.journal.update(SLOT):
            self.step()
        return self.ended

    @property
    def ended(self) -> Update:
        return self.storage.journal.finished(1)[0]

    @property
    def serves(self) -> str:
        return self.storage.active().slots[SLOT].version

    def again(self) -> None:
        """Go on like another process: what the last one had in memory is gone."""
        self.agent = self.make()

    def make(self) -> work.Agent:
        return work.Agent(self.storage, CONFIG, carried=self.repository.public, monotonic=lambda: self.now_s)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Yield a device that committed version 1."""
    control = SimulatedControl()
    monkeypatch.setattr(work, "DaemonClient", lambda _settings: control)
    repository = FleetRepository(tmp_path / "fleet")
    source = tmp_path / "bootstrap"
    source.mkdir()
    (source / "root.json").write_bytes(repository.root_bytes(1))
    (source / "device.json").write_text(
        f'{{"schema": 1, "device": "{DEVICE}", "repository": "http://h/", "assignment": "http://h/a"}}'
    )
    bootstrap(read_identity(source), tmp_path / "store")
    with opened(tmp_path / "store", CONFIG) as storage:
        made = Device(repository, storage, control, None)  # type: ignore[arg-type]
        made.agent = made.make()
        made.assign("1")
        made.run()
        control.told.clear()
        control.serve(SLOT, "1")
        control.counters = {"1": {}, "2": {}}
        yield made


def told(control: SimulatedControl) -> list[str]:
    """Return the commands, without the questions."""
    return [call[0] for call in control.told if call[0] in {"load", "route", "unload", "commit"}]


def test_the_way_of_an_update(device: Device) -> None:
    device.assign("2")
    steps = []
    while update := device.storage.journal.update(SLOT):
        steps.append(update.step)
        device.step()
    assert steps == [
        Step.FETCH, Step.LOAD, Step.SHIFT, Step.PROBATION, Step.TAKE_OVER, Step.COMMIT, Step.RETIRE,
    ]  # fmt: skip
    assert told(device.control) == ["load", "route", "route", "route", "commit", "commit"]
    assert device.control.named("route")[-1][1] == {"2": 100}
    assert (device.serves, device.ended.step, device.ended.failure) == ("2", Step.DONE, None)
    assert device.storage.active().previous[SLOT].version == "1"


def test_the_old_one_is_committed_until_the_new_one_is(device: Device) -> None:
    device.assign("2")
    device.until(Step.COMMIT)
    assert device.serves == "1"
    device.step()
    assert device.serves == "2"


@pytest.mark.parametrize("step", [Step.LOAD, Step.SHIFT, Step.TAKE_OVER])
def test_a_refusal_rolls_back_with_the_daemons_reason(device: Device, step: Step) -> None:
    device.assign("2")
    device.until(step)
    device.control.always["load" if step is Step.LOAD else "route"] = NO
    device.step()
    device.control.always.clear()
    ended = device.run()
    assert ended.failure
    assert (ended.step, ended.failure.step, NO.detail in ended.failure.reason) == (Step.ROLLED_BACK, step, True)
    assert device.control.named("unload") == [(SLOT, "2", 1.0)]
    assert device.serves == "1"
    assert device.storage.journal.rejected(SLOT, ended.activation.release)


@pytest.mark.parametrize("step", [Step.LOAD, Step.SHIFT, Step.TAKE_OVER, Step.COMMIT, Step.RETIRE])
def test_an_absent_daemon_is_waited_for(device: Device, step: Step) -> None:
    device.assign("2")
    device.until(step)
    methods = ("status", "load", "route", "commit")
    device.control.always = dict.fromkeys(methods, ABSENT)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            device.step()
        assert device.update().step is step
    device.control.always = {}
    assert device.run().step is Step.DONE
    assert device.serves == "2"


def test_a_daemon_that_refuses_what_is_committed_is_no_reason_to_go_back(device: Device) -> None:
    device.assign("2")
    device.until(Step.COMMIT)
    device.control.always["commit"] = NO
    with pytest.raises(UnreachableError, match="does not take over what is committed"):
        device.step()
    assert (device.serves, device.update().step) == ("2", Step.COMMIT)
    device.control.always.clear()
    assert device.run().step is Step.DONE


def test_a_roll_back_needs_no_daemon(device: Device) -> None:
    device.assign("2")
    device.until(Step.LOAD)
    device.control.fail["load"] = NO
    device.step()
    device.control.always["unload"] = ABSENT
    assert device.run().step is Step.ROLLED_BACK


def test_another_assignment_takes_the_place_of_an_update_at_once(device: Device) -> None:
    device.assign("2")
    device.until(Step.PROBATION)
    configure_logging()
    with capture_logs() as logged:
        device.assign("3")
    assert device.update().activation.version == "3"
    told = [line["event"] for line in logged if line["event"].startswith("update")]
    assert told == [events.UPDATE_GIVEN_UP, events.UPDATE_ENDED]
    over = device.ended
    assert over.failure
    assert (over.activation.version, over.step, over.failure.reason) == (
        "2",
        Step.ROLLED_BACK,
        "something else is assigned now",
    )
    assert not device.storage.journal.rejected(SLOT, over.activation.release)
    assert device.control.named("unload") == [(SLOT, "2", 1.0)]
    device.run()
    assert device.serves == "3"


def test_what_a_probation_measured_is_kept_as_evidence(device: Device) -> None:
    device.assign("2")
    device.until(Step.PROBATION)
    slow: Mapping[str, Any] = {"requests": 9, "executions": 9, "failed_runs": 9}
    watch = device.agent._installer._watches[SLOT]
    watch._settings = replace(watch._settings, duration_s=60.0)
    assert device.step() == 0.5  # looked at again after so long
    device.control.counters["2"] = dict(slow)
    ended = device.run()
    assert ended.failure
    assert (ended.failure.evidence["failed_runs"], ended.failure.evidence["requests"]) == (9, 9)


@pytest.mark.parametrize("step", [Step.SHIFT, Step.PROBATION, Step.TAKE_OVER])
def test_another_process_begins_with_the_load_anew(device: Device, step: Step) -> None:
    """Power was cut: the daemon has nothing loaded, which is no fault of the release."""
    device.assign("2")
    device.until(step)
    device.again()
    device.control.always["route"] = NO  # not loaded
    device.step()
    assert device.update().step is Step.LOAD
    device.control.always.clear()
    assert device.run().step is Step.DONE


def test_a_release_document_that_the_disk_lost_is_brought_anew(device: Device) -> None:
    device.assign("2")
    document = device.storage.blobs.path(device.update().activation.release)
    document.write_bytes(document.read_bytes()[::-1])
    device.step()
    assert device.update().step is Step.ROLL_BACK
    device.run()
    assert device.agent.poll().problem == ""
    assert device.run().step is Step.DONE
    assert device.serves == "2"


def test_the_next_best_variant_is_tried_where_one_is_refused(device: Device) -> None:
    device.control.variants = ("best", "second", "third")
    device.assign("2", best=b"best", second=b"second", third=b"third")
    device.until(Step.LOAD)
    assert device.update().activation.variants == ("best",)
    device.control.fail["load"] = NO
    device.step()
    assert (device.update().step, device.update().activation.variants) == (Step.FETCH, ("best", "second"))
    assert device.run().step is Step.DONE
    assert device.storage.active().slots[SLOT].variants == ("best", "second")


def test_only_the_chosen_variant_is_fetched(device: Device) -> None:
    device.control.variants = ("best", "second")
    device.assign("2", best=b"the best", second=b"the second")
    device.run()
    contents = {path.read_bytes() for path in (device.storage.folder / "blobs/sha256").iterdir()}
    assert (b"the best" in contents, b"the second" in contents) == (True, False)


def test_a_release_of_which_no_variant_passed_here(device: Device) -> None:
    device.control.refused = {"only"}
    device.assign("2")
    ended = device.run()
    assert ended.failure
    assert "only was tried" in ended.failure.reason
    assert ended.failure.step is Step.FETCH


def test_a_release_that_is_slower_in_its_trial_than_the_one_before(device: Device) -> None:
    device.control.p50_us = 100.0
    device.assign("2")
    assert device.run().step is Step.DONE
    device.control.p50_us = 250.0
    device.assign("3")
    ended = device.run()
    assert ended.failure
    assert ended.failure.evidence == {"p50_us": 250.0, "old_p50_us": 100.0}
    device.control.p50_us = 150.0
    device.assign("4")  # held against 2, not against 3
    assert device.run().step is Step.DONE


def test_what_was_withdrawn_is_no_measure_of_what_comes_later(device: Device) -> None:
    device.control.p50_us = 100.0
    device.assign("2")
    device.run()
    device.order_removal()
    assert device.agent.poll().problem == ""
    device.control.p50_us = 250.0
    device.assign("3")
    assert device.run().step is Step.DONE


def test_a_version_that_serves_by_hand_already_is_taken_over_at_once(device: Device) -> None:
    device.control.serve(SLOT, "2", 0, signed=False)
    device.assign("2")
    device.until(Step.COMMIT)
    assert device.control.named("route") == []
    assert device.run().step is Step.DONE


def test_a_share_that_a_killed_agent_left_is_no_probation_that_was_passed(device: Device) -> None:
    device.assign("2")
    device.until(Step.PROBATION)
    device.again()
    device.control.serve(SLOT, "2", 5)  # until the lease runs out
    device.until(Step.LOAD)
    device.step()
    assert device.update().step is Step.SHIFT
    assert device.run().step is Step.DONE


def test_a_source_that_fails_leaves_the_update_where_it_is(device: Device) -> None:
    device.assign("2")
    blobs = device.repository.public / "blobs"
    shutil.move(blobs, blobs.with_name("away"))
    with pytest.raises(FetchError):
        device.step()
    shutil.move(blobs.with_name("away"), blobs)
    assert device.run().step is Step.DONE


@pytest.mark.parametrize("retry", [False, True])
def test_what_was_rejected_is_tried_again_only_when_asked_for(device: Device, *, retry: bool) -> None:
    device.assign("2")
    device.control.always["load"] = NO
    device.run()
    device.control.always.clear()
    assert device.agent.poll(retry=retry).problem == ""
    assert (device.storage.journal.update(SLOT) is not None) == retry


def test_nothing_superfluous_stays_on_the_disk(device: Device) -> None:
    for version in "23":
        device.assign(version)
        device.run()
    kept = {
        activation.release
        for activation in (*device.storage.active().slots.values(), *device.storage.active().previous.values())
    }
    assert {path.name for path in device.storage.releases.iterdir()} == kept
    contents = {path.read_bytes() for path in (device.storage.folder / "blobs/sha256").iterdir()}
    assert (b"version 1" in contents, b"version 2" in contents, b"version 3" in contents) == (False, True, True)


def test_a_floor_that_rose_since_the_assignment_was_accepted(device: Device) -> None:
    device.assign("2")
    device.control.always["load"] = NO
    device.run()
    device.control.always.clear()
    device.repository.add_release(SLOT, "9", variants={"only": b"nine"}, floor="9")
    polled = device.agent.poll(retry=True)
    assert (polled.reason, device.storage.journal.update(SLOT)) == ("below-floor", None)


def test_a_daemon_that_could_not_be_told_is_told_with_the_next_question(device: Device) -> None:
    device.order_removal()
    device.control.fail["commit"] = ABSENT
    assert device.agent.poll().reason == "daemon"
    assert SLOT not in device.storage.active().slots
    device.again()
    device.control.told.clear()
    assert device.agent.poll().problem == ""
    assert device.agent.poll().problem == ""
    assert told(device.control) == ["commit"]
    assert list(device.storage.releases.iterdir()) == []


def test_what_nobody_needs_makes_room_where_that_is_lacking(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = device.storage.blobs.put(b"of an assignment that was refused" * 1000)
    full = replace(CONFIG.store, quota_bytes=device.storage.blobs.usage_bytes())
    monkeypatch.setattr(device.storage.blobs, "_settings", full)
    path = device.repository.add_release(SLOT, "2", variants={"only": b"version 2"})
    device.repository.assign(DEVICE, {SLOT: path})
    assert device.agent.poll().reason == "store"
    assert not device.storage.blobs.verify(rest)
    assert device.agent.poll().problem == ""
    assert device.run().step is Step.DONE
