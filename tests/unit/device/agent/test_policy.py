"""The signed policy enforced by the device itself, whatever the controller assigns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.common.domain.policy import Blackout, Policy, earliest
from gateway.device.agent.report.report import document, read_standing
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state import policy as agent_policy
from gateway.device.agent.state.first_seen import INSTALL, SIGHT_LASTS_H
from gateway.device.agent.state.identity import bootstrap, read_identity
from gateway.device.agent.state.policy import HELD, SIGHTS, hold
from gateway.device.agent.state.storage import Storage, opened
from gateway.device.agent.update import work
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.enrolled_device import CONFIG
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.policy_document import policy_bytes

DEVICE, SLOT, PATH = "door-1", "meter", "policy/night.json"
HOUR = timedelta(hours=1)
DAY = timedelta(hours=SIGHT_LASTS_H)


@dataclass
class Device:
    """A device and its publisher. `now` is its system's clock, `kept` whether the kernel vouches for that."""

    repository: FleetRepository
    storage: Storage
    agent: work.Agent
    control: SimulatedControl
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    kept: bool = True

    def publish(self, version: str) -> str:
        return self.repository.add_release(SLOT, version)

    def policy(self, policy: Policy | bytes, path: str = PATH) -> str:
        content = policy if isinstance(policy, bytes) else policy_bytes(policy)
        return self.repository.add_file(path, content)

    def ask(self, target: str | None, *files: str) -> str:
        """Assign (None: order the removal), poll and work. Return the version that is committed then."""
        extra = {} if target else {"removed": [SLOT]}
        self.repository.assign(DEVICE, {SLOT: target} if target else {}, files, extra=extra)
        return self.again()

    def again(self) -> str:
        polled = self.agent.poll()
        assert not polled.problem, polled.problem
        assert not self.agent.work(Alarm())
        committed = self.storage.active().slots.get(SLOT)
        return committed.version if committed else ""

    @property
    def held(self) -> dict[str, str]:
        found = json.loads(self.storage.journal.fact(HELD) or "{}")
        return dict(found.get(SLOT, {}))


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    repository, control = FleetRepository(tmp_path / "fleet"), SimulatedControl()
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "root.json").write_bytes(repository.root_bytes(1))
    document = {"schema": 1, "device": DEVICE, "repository": f"file://{repository.public}", "assignment": ""}
    document["assignment"] = f"file://{repository.public}/assignments/{DEVICE}.json"
    (tmp_path / "given" / "device.json").write_text(json.dumps(document))
    bootstrap(read_identity(tmp_path / "given"), tmp_path / "store")
    monkeypatch.setattr(work, "DaemonClient", lambda _settings: control)
    with opened(tmp_path / "store", CONFIG) as storage:
        made = Device(repository, storage, work.Agent(storage, CONFIG), control)
        monkeypatch.setattr(agent_policy, "system_now", lambda: made.now)
        monkeypatch.setattr(agent_policy, "synchronised", lambda: made.kept)
        yield made


def hours_of(policy: Policy, storage: Storage) -> timedelta:
    """Return how long this device waits for what is held."""
    (key,) = [key for key in json.loads(storage.journal.fact(SIGHTS) or "{}") if key.startswith(INSTALL)][-1:]
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return earliest(policy, DEVICE, key.split()[-1], at, at, "") - at


FREE = Policy(removal_hold_h=0.0, removal_share_percent_per_hour=100.0, removal_of_last=True)
"""Removals wait no longer than installs."""
SLOW = replace(FREE, share_percent_per_hour=0.1, profiles=("another",), profile_delay_h=2.0)
"""Whatever this device's place by hash is, it waits for two hours and more."""


def test_a_device_without_a_policy_has_no_bound(device: Device) -> None:
    assert device.ask(device.publish("1")) == "1"
    assert device.held == {}


def test_an_install_waits_for_its_turn_and_then_goes(device: Device) -> None:
    policy = device.policy(SLOW)
    assert device.ask(device.publish("1"), policy) == ""
    wait = hours_of(SLOW, device.storage)
    assert wait > HOUR
    assert device.held["until"] == (device.now + wait).isoformat()
    told = document(read_standing(device.storage, device.agent.identity))
    assert (told["state"], told["slots"][SLOT]["held"]["change"]) == ("held", "install")
    assert told["why"].startswith("the install of meter is held: policy/night.json spreads changes over the fleet")
    device.now += wait - timedelta(seconds=1)
    assert device.again() == ""
    device.now += timedelta(seconds=1)
    assert device.again() == "1"
    assert device.held == {}


def test_a_withdrawal_waits_too_and_anew_when_it_is_announced_again(device: Device) -> None:
    first = device.publish("1")
    assert device.ask(first) == "1"
    policy = device.policy(SLOW)
    assert device.ask(None, policy) == "1"
    assert device.held["change"] == "withdraw"
    until = device.held["until"]
    assert device.ask(first, policy) == "1"
    assert device.held == {}
    device.now += 5 * HOUR
    assert device.ask(None, policy) == "1"
    assert device.held["until"] == (datetime.fromisoformat(until) + 5 * HOUR).isoformat()
    device.now = datetime.fromisoformat(device.held["until"])
    assert device.again() == ""


def test_what_ran_until_yesterday_comes_back_at_once_and_what_ran_last_week_waits(device: Device) -> None:
    first = device.publish("1")
    assert device.ask(first) == "1"  # there is no policy yet, and nothing is noted
    second, policy = device.publish("2"), device.policy(SLOW)
    assert device.ask(second, policy) == "1"
    device.now = datetime.fromisoformat(device.held["until"])
    assert device.again() == "2"
    device.now += DAY - timedelta(seconds=1)
    assert device.ask(first, policy) == "1"
    assert device.ask(second, policy) == "2"
    device.now += 7 * DAY
    for _ in range(2):
        assert device.ask(first, policy) == "2"
        assert device.held["until"] == (device.now + hours_of(SLOW, device.storage)).isoformat()
        assert device.ask(second, policy) == "2"
        device.now += 2 * DAY


def test_what_ran_before_the_policy_came_comes_back_at_once(device: Device) -> None:
    first = device.publish("1")
    device.ask(first)
    assert device.ask(device.publish("2")) == "2"
    assert device.ask(first, device.policy(SLOW)) == "1"


def test_what_failed_here_need_not_wait_again_however_late_it_is_tried(device: Device) -> None:
    policy = device.policy(SLOW)
    assert device.ask(device.publish("1"), policy) == ""
    device.now = datetime.fromisoformat(device.held["until"])
    device.control.refused = {"only"}
    assert device.again() == ""
    assert device.again() == ""
    device.now += 3 * DAY
    assert device.again() == ""
    device.control.refused = set()
    assert not device.agent.poll(retry=True).problem
    assert device.held == {}
    assert device.again() == "1"


def test_a_question_that_changes_nothing_writes_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = device.policy(SLOW)
    first = device.publish("1")
    device.ask(first)
    device.ask(device.publish("2"), policy)
    device.now += HOUR
    written: list[str] = []
    keep = device.storage.journal.keep_facts
    monkeypatch.setattr(device.storage.journal, "keep_facts", lambda facts: (written.extend(facts), keep(facts)))
    assert device.again() == "1"
    assert SIGHTS not in written
    device.ask(first, policy)
    assert SIGHTS in written


def test_who_steals_the_controller_cannot_take_the_policy_away(device: Device) -> None:
    policy = device.policy(SLOW)
    device.ask(None, policy)
    lax = device.policy(Policy(), "policy/lax.json")
    for files in ((), (lax,)):
        assert device.ask(device.publish(f"1.{len(files)}"), *files) == ""
        assert device.held["until"]
        assert PATH in {file.target.path for file in device.storage.active().files}


def test_what_its_signers_change_counts_also_where_it_is_not_assigned_any_more(device: Device) -> None:
    device.ask(None, device.policy(SLOW))
    assert device.ask(device.publish("1")) == ""
    device.policy(Policy())
    assert device.again() == "1"


def test_a_policy_that_is_no_policy_holds_all_while_what_runs_serves_on(device: Device) -> None:
    assert device.ask(device.publish("1")) == "1"
    policy = device.policy(b'{"schema": 1, "share": 5}')
    assert device.ask(device.publish("2"), policy) == "1"
    assert device.held["until"] is None
    assert "policy/night.json" in device.held["why"]
    assert device.ask(None, policy) == "1"
    mended = device.policy(Policy())
    assert device.ask(device.publish("3"), mended) == "3"


def test_a_policy_that_the_disk_lost_is_fetched_again(device: Device) -> None:
    policy = device.policy(SLOW)
    device.ask(None, policy)
    (file,) = device.storage.active().files
    device.storage.blobs.path(file.target.sha256).write_bytes(b"{}")
    assert device.ask(device.publish("1"), policy) == ""
    assert device.held["until"]


def test_a_blackout_holds_until_its_end(device: Device) -> None:
    end = device.now + 3 * HOUR
    policy = device.policy(Policy(blackouts=(Blackout(device.now - HOUR, end, "stocktaking"),)))
    assert device.ask(device.publish("1"), policy) == ""
    assert device.held["until"] == end.isoformat()
    assert "(stocktaking)" in device.held["why"]
    device.now = end
    assert device.again() == "1"


def test_the_hours_stand_still_in_a_blackout(device: Device) -> None:
    device.ask(None, device.policy(SLOW))
    assert device.ask(device.publish("1")) == ""
    turn = datetime.fromisoformat(device.held["until"])
    start = device.now + HOUR
    device.policy(replace(SLOW, blackouts=(Blackout(start, start + 48 * HOUR),)))
    device.now = start + 48 * HOUR
    assert device.again() == ""
    assert device.held["until"] == (turn + 48 * HOUR).isoformat()


def test_what_is_begun_goes_on_through_a_blackout(device: Device) -> None:
    device.repository.assign(DEVICE, {SLOT: device.publish("1")})
    assert not device.agent.poll().problem
    policy = device.policy(Policy(blackouts=(Blackout(device.now - HOUR, device.now + HOUR),)))
    target = device.storage.journal.update(SLOT)
    assert target
    assert device.ask(target.activation.target, policy) == "1"


def test_the_order_of_profiles_is_kept(device: Device) -> None:
    policy = device.policy(Policy(profiles=("lab", "shop"), profile_delay_h=10.0))
    device.control.status = lambda: {  # type: ignore[method-assign]
        "instance": "i", "rss_bytes": 1, "models": [], "profile": "shop",
    }  # fmt: skip
    assert device.ask(device.publish("1"), policy) == ""
    assert device.held["until"] == (device.now + 10 * HOUR).isoformat()


def test_a_clock_that_is_set_right_ends_no_wait(device: Device) -> None:
    device.kept = False
    policy = device.policy(SLOW)
    assert device.ask(device.publish("1"), policy) == ""
    device.now += timedelta(days=300)
    device.kept = True
    assert device.again() == ""
    assert device.held["until"] == (device.now + hours_of(SLOW, device.storage)).isoformat()


def test_sights_that_cannot_be_read_begin_anew(device: Device) -> None:
    policy = device.policy(SLOW)
    device.ask(device.publish("1"), policy)
    wait = hours_of(SLOW, device.storage)
    for rubbish in ("{", "[]", '{"install meter x": 5}', "null"):
        device.storage.journal.keep_facts({SIGHTS: rubbish})
        device.now += HOUR
        assert device.again() == ""
        assert device.held["until"] == (device.now + wait).isoformat()


NOW = datetime(2027, 3, 28, 1, tzinfo=UTC)  # a night on which clocks in Europe are put forward: UTC knows none


@pytest.mark.parametrize("weekend", [datetime(2027, 3, 27, tzinfo=UTC), datetime(2027, 10, 30, tzinfo=UTC)])
def test_blackouts_of_every_night_are_as_long_in_weeks_in_which_clocks_change(weekend: datetime) -> None:
    nights = [Blackout(weekend + timedelta(days=d, hours=22), weekend + timedelta(days=d, hours=29)) for d in range(8)]
    policies, times = {PATH: Policy(blackouts=tuple(nights))}, (weekend, weekend)
    held = [
        bool(hold(policies, (DEVICE, ""), INSTALL, "0" * 64, times, now=weekend + timedelta(hours=hour)))
        for hour in range(22, 22 + 7 * 24)
    ]
    assert held == ([True] * 7 + [False] * 17) * 7


def test_of_several_policies_the_one_that_waits_longest_counts() -> None:
    policies = {"policy/a.json": SLOW, "policy/b.json": Policy(blackouts=(Blackout(NOW - HOUR, NOW + HOUR),))}
    digest = "7" * 64
    held = hold(policies, (DEVICE, ""), INSTALL, digest, (NOW, NOW), now=NOW)
    assert held
    assert held.until == earliest(SLOW, DEVICE, digest, NOW, NOW, "") + HOUR  # which the blackout of the other takes
    assert hold({"policy/c.json": Policy()}, (DEVICE, ""), INSTALL, digest, (NOW, NOW), now=NOW) is None


def test_what_its_owner_dates_later_waits_from_then_on() -> None:
    held = hold({PATH: Policy()}, (DEVICE, ""), INSTALL, "0" * 64, (NOW, NOW + 5 * HOUR), now=NOW)
    assert held
    assert held.until == NOW + 5 * HOUR
