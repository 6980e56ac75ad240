"""The agent and the controller, both whole: what the one tells and does is what the other understands and asks for."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.controller.monitoring.settings import AlertSettings
from gateway.common.trust.clock import BootClock
from gateway.device.agent.clock import Clocks
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.report import report as hardware_report
from gateway.device.agent.report import reporting
from gateway.device.agent.state.storage import opened_for_reading
from gateway.device.agent.update import work
from gateway.device.agent.update.poll import Poll
from tests.simulators.constants import settings_with
from tests.simulators.controller import SOON, RunningController, controlling
from tests.simulators.enrolled_device import CONFIG, DEVICE, SLOT, Daemon, Device

WAIT_S, LOOK_S = 60.0, 0.05
SPEC: dict[str, Any] = {
    "query": f"id = {DEVICE}",
    "slot": SLOT,
    "canary": {},
    "waves": [{"percent": 100}],
    "soak_s": 0,
    "success": {"min_sample": 1, "min_percent": 100},
    "abort": {"min_sample": 1, "max_failed_percent": 100},
    "silence_s": 600,
    "deadline_s": 600,
    "retries": {"limit": 1, "backoff_s": 1},
}
BAD = DaemonRefusedError("INVALID", "the golden set fails")


class Fleet:
    """An operator, a device, and what lies between them."""

    def __init__(self, controller: RunningController, operator: httpx.Client, control: Daemon) -> None:
        self._controller, self.operator, self.control = controller, operator, control
        self.repository = controller.repository
        self.device = self.enrolled()

    def enrolled(self) -> Device:
        """Enrol the device, which keeps what its store has."""
        token = self.ask("POST", "/v1/enrolments", {"device": DEVICE})["token"]
        application = EnrolmentInput(self._controller.url, token, authority=self._controller.ca_file.read_text())
        folder = self._controller.folder / "device"
        return Device(None, folder, enrol(application, folder, CONFIG), self.control)  # type: ignore[arg-type]

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of the controller."""
        return self._controller.control.counts

    def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self.operator.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def begin(self, version: str, **changes: Any) -> str:
        """Publish it, and start a rollout; its path."""
        target = self._controller.repository.add_release(SLOT, version)
        self.until(lambda: any(one["target"] == target for one in self.ask("GET", "/v1/releases")["items"]))
        drafted = self.ask("POST", "/v1/rollouts", {**SPEC, "name": f"v{version}", "target": target, **changes})
        path = f"/v1/rollouts/{drafted['id']}"
        self.ask("POST", f"{path}/approve", {"spec": drafted["spec_digest"]})
        self.ask("POST", f"{path}/start")
        return path

    def turn(self, config: AgentConfig = CONFIG) -> None:
        """Run one cycle of `edge-agent run`."""
        assert self.device.turn(config) == ""

    def until(self, done: Callable[[], bool], do: Callable[[], None] = lambda: None) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s
            do()
            time.sleep(LOOK_S)

    def finish(self, path: str) -> str:
        """Let the device go on until the rollout is over; how it ended."""
        self.until(lambda: self.ask("GET", path)["state"] in {"finished", "aborted", "paused"}, self.turn)
        return str(self.ask("GET", path)["state"])

    def events(self, path: str, kind: str) -> list[dict[str, Any]]:
        """Return facts of a kind, or decisions of a name."""
        facts = [fact["event"] for fact in self.ask("GET", f"{path}/facts")["items"]]
        return [event for event in facts if kind in {event["kind"], event.get("decision")}]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    control = Daemon()
    for room in (work, reporting):
        monkeypatch.setattr(room, "DaemonClient", lambda _settings: control)
    with controlling(tmp_path / "fleet", SOON) as controller, controller.client() as operator:
        yield Fleet(controller, operator, control)


def test_a_release_that_did_not_pass_is_tried_again_where_the_rollout_says_so(fleet: Fleet) -> None:
    assert fleet.finish(fleet.begin("1")) == "finished"
    fleet.control.fail["load"] = BAD
    path = fleet.begin("2")
    assert fleet.finish(path) == "finished"
    (again,) = fleet.events(path, "retry")
    assert (again["device"], again["attempt"]) == (DEVICE, 2)
    states = [(event["state"], event["attempt"]) for event in fleet.events(path, "reported")]
    assert ("rolled_back", 1) in states
    assert states[-1] == ("committed", 2)
    assert "the golden set fails" in next(e["reason"] for e in fleet.events(path, "reported") if e["reason"])
    assert fleet.device.status["slots"][SLOT]["committed"]["version"] == "2"


def test_attempts_end_with_the_retries(fleet: Fleet) -> None:
    fleet.control.always["load"] = BAD
    path = fleet.begin("1")
    assert fleet.finish(path) in {"paused", "aborted"}
    loads = len(fleet.control.named("load"))
    for _ in range(3):
        fleet.turn()
    assert len(fleet.control.named("load")) == loads == 2
    assert [event["attempt"] for event in fleet.events(path, "reported") if event["state"] == "rolled_back"] == [1, 2]


def test_a_release_that_halts_is_taken_back(fleet: Fleet) -> None:
    assert fleet.finish(fleet.begin("1")) == "finished"
    fleet.control.always["load"] = BAD
    strict = {"retries": {}, "abort": {"min_sample": 1, "max_failed_percent": 20, "confidence": 0.9}}
    path = fleet.begin("2", rollback="forced", **strict)
    assert fleet.finish(path) == "aborted"
    fleet.until(lambda: fleet.device.status["state"] == "in-step", fleet.turn)
    assert fleet.device.status["slots"][SLOT]["assigned"] == f"models/acme/{SLOT}/1/release"
    (running,) = fleet.ask("GET", f"/v1/devices/{DEVICE}")["running"]
    assert (running["target"], running["state"]) == (f"models/acme/{SLOT}/1/release", "committed")


def test_an_operator_asks_the_device_answers_once_and_then_is_asked_no_more(fleet: Fleet) -> None:
    fleet.turn()
    path = f"/v1/devices/{DEVICE}/diagnostics"

    def is_answered(number: int) -> bool:
        return fleet.ask("GET", f"{path}/{number}")["answered"] is not None

    number = fleet.ask("POST", path, {"wanted": ["doctor", "status", "log"]})["id"]
    fleet.until(lambda: is_answered(number), fleet.turn)
    answer = fleet.ask("GET", f"{path}/{number}")["answer"]
    assert set(answer) == {"doctor", "status", "log"}
    assert (answer["status"]["device"], answer["doctor"]["agent"]["device"]) == (DEVICE, DEVICE)
    refusing = replace(CONFIG, telemetry=replace(CONFIG.telemetry, diagnostics=False))
    number = fleet.ask("POST", path, {"wanted": ["vitals"]})["id"]
    fleet.until(lambda: is_answered(number), lambda: fleet.turn(refusing))
    assert fleet.ask("GET", f"{path}/{number}")["answer"] == {"vitals": {"problem": "refused by this device"}}


# ---- a device whose clock nothing keeps right ------------------------------------------------------------------------
def diagnose(fleet: Fleet) -> None:
    """Ask the device, and let it go on until it has answered."""
    path = f"/v1/devices/{DEVICE}/diagnostics"
    number = fleet.ask("POST", path, {"wanted": ["status"]})["id"]
    fleet.until(lambda: fleet.ask("GET", f"{path}/{number}")["answered"] is not None, fleet.turn)


def test_a_device_that_comes_back_is_heard_and_asked_as_before(fleet: Fleet) -> None:
    """Its store is the same, in the same boot: numbers go on where a controller that knows nothing of it begins."""
    path = f"/v1/devices/{DEVICE}"
    diagnose(fleet)
    fleet.ask("POST", f"{path}/revoke", {"because": "a mistake"})
    assert fleet.operator.delete(path).status_code == 204
    fleet.device = fleet.enrolled()
    for _ in range(2):
        fleet.turn()
    (vitals,) = [one for one in fleet.ask("GET", f"{path}/telemetry")["items"] if one["stream"] == "vitals"]
    assert (vitals["rows"], vitals["gaps"]) == (2, [])
    assert vitals["contiguous"] == vitals["rows"] + vitals["lost"]
    diagnose(fleet)


@dataclass
class Adrift:
    """Clocks of a device without NTP: the system's stands at 1970, the boot clock runs."""

    boot: str = "first"
    elapsed_s: float = 10.0

    def __call__(self) -> Clocks:
        return Clocks(datetime(1970, 1, 2, tzinfo=UTC), synchronised=False, boot=BootClock(self.boot, self.elapsed_s))


@pytest.fixture
def adrift(fleet: Fleet) -> Adrift:
    """Let the device of `fleet` go by such clocks, with a release that is committed."""
    assert fleet.finish(fleet.begin("1")) == "finished"
    fleet.turn()  # what was committed is told
    fleet.device.clocks = clocks = Adrift()
    return clocks


def written(fleet: Fleet) -> dict[str, int]:
    """Count what polls made the controller write."""
    states = fleet.ask("GET", f"/v1/devices/{DEVICE}/telemetry/state?limit=1000")["items"]
    return {"signed": fleet.counts["assignments_signed"], "states": len(states)}


def test_without_ntp_one_proof_of_the_time_serves_many_polls(fleet: Fleet, adrift: Adrift) -> None:
    before = written(fleet)
    for _ in range(4):
        fleet.turn()
        adrift.elapsed_s += 60
    # the first poll asks for a proof; the others end with 304, and none of them tells or writes a state
    assert written(fleet) == {"signed": before["signed"] + 1, "states": before["states"]}


@pytest.mark.parametrize("change", ["another boot", "a day later"])
def test_a_proof_of_the_time_ends_with_the_boot_and_after_a_day(fleet: Fleet, adrift: Adrift, change: str) -> None:
    fleet.turn()
    before = written(fleet)
    adrift.boot, adrift.elapsed_s = ("second", 5.0) if change == "another boot" else ("first", 10.0 + 86_400)
    fleet.turn()
    fleet.turn()
    assert written(fleet)["signed"] == before["signed"] + 1


def test_an_attested_time_raises_no_floor(fleet: Fleet, adrift: Adrift) -> None:
    with opened_for_reading(fleet.device.folder, CONFIG) as storage:
        before = storage.journal.time_floor()
    for _ in range(3):
        fleet.turn()
        adrift.elapsed_s += 3_600
    with opened_for_reading(fleet.device.folder, CONFIG) as storage:
        assert storage.journal.time_floor() == before


def test_a_time_beyond_what_is_signed_refuses_one_poll_only(fleet: Fleet, adrift: Adrift) -> None:
    """A stolen director's key attested a time at which everything signed online has expired."""
    fleet.turn()
    thief = {"time": (datetime.now(UTC) + timedelta(days=40)).isoformat(), "boot": adrift.boot, "elapsed_s": 10.0}
    fleet.device.keep_fact("attested", json.dumps(thief))
    assert fleet.device.asked_once().reason == "expired"
    assert fleet.device.asked_once().reason == ""


def test_a_new_directors_key_is_used_as_soon_as_devices_can_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old the controller lets become what it knows of the publication."""
    control = Daemon()
    for room in (work, reporting):
        monkeypatch.setattr(room, "DaemonClient", lambda _settings: control)
    config = replace(SOON, director=settings_with(SOON.director, published_every_s=3600.0))
    with controlling(tmp_path / "fleet", config) as controller, controller.client() as operator:
        fleet = Fleet(controller, operator, control)
        fleet.turn()
        controller.repository.rotate("director")
        controller.repository.keep_keys()
        fleet.turn()


def test_a_key_that_is_replaced_between_the_two_questions_of_a_poll_refuses_no_poll(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has the old metadata, and what the new director's key signed."""
    fleet.turn()
    fetch, asked = Poll._fetch, []

    def rotate_first(poll: Poll, *known: Any) -> tuple[bytes, str]:
        if not asked:
            fleet.repository.rotate("director")
            fleet.repository.keep_keys()
        asked.append(poll)
        return fetch(poll, *known)

    monkeypatch.setattr(Poll, "_fetch", rotate_first)
    fleet.turn()
    assert len(asked) == 2


def test_a_wrong_key_that_stays_is_refused(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.turn()
    fetch, repository = Poll._fetch, fleet.repository
    stolen = repository.assignment(DEVICE, {}, signers=repository.keys["snapshot"])
    asked: list[bytes] = []

    def answer(poll: Poll, *known: Any) -> tuple[bytes, str]:
        fetch(poll, *known)
        asked.append(stolen)
        return stolen, ""

    monkeypatch.setattr(Poll, "_fetch", answer)
    assert fleet.device.asked_once().reason == "wrong-key"
    assert len(asked) == 2


# ---- two machines under one name -------------------------------------------------------------------------------------
@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Yield a fleet whose alerts are evaluated all the time."""
    for room in (work, reporting):
        monkeypatch.setattr(room, "DaemonClient", lambda _settings: Daemon())
    often = settings_with(AlertSettings(), evaluate_every_s=0.05, settle_s=0.0, calm_s=0.0)
    with controlling(tmp_path / "fleet", replace(SOON, alerts=often)) as controller, controller.client() as operator:
        yield Fleet(controller, operator, Daemon())


@dataclass
class Machine:
    """A board that reports with the store in `folder`. `uuid` "": it has nothing that tells it from others."""

    fleet: Fleet
    folder: Path
    boot: str
    uuid: str = ""

    def report(self, times: int = 1) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOOT_ID", self.boot)
            patch.setenv("PRODUCT_UUID", self.uuid)
            patch.setattr(hardware_report, "PRODUCT_UUID", "absent")
            patch.setattr(hardware_report, "_permanent", lambda _device: "")
            for _ in range(times):
                assert replace(self.fleet.device, folder=self.folder).turn() == ""

    def copied(self, **changes: str) -> Machine:
        """Return another machine with a copy of this one's storage."""
        return replace(self, folder=Path(shutil.copytree(self.folder, f"{self.folder}-copy")), **changes)


A, B = "4c4c4544-0042-3510-8054-b4c04f564231", "4c4c4544-0042-3510-8054-b4c04f564232"


def reports(fleet: Fleet) -> int:
    """Return how many reports the controller has, of all boots, and check that none is missing."""
    items = fleet.ask("GET", f"/v1/devices/{DEVICE}/telemetry")["items"]
    assert not any(one["gaps"] or one["lost"] for one in items)
    return sum(one["rows"] for one in items if one["stream"] == "vitals")


def alerts(fleet: Fleet, state: str = "open") -> list[str]:
    return [one["summary"] for one in fleet.ask("GET", f"/v1/alerts?rule=identity&state={state}")["items"]]


def moves(fleet: Fleet) -> int:
    return len(fleet.ask("GET", "/v1/events?kind=moved")["items"])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"boot": "b", "uuid": B}, id="another board"),
        pytest.param({"boot": "b", "uuid": ""}, id="nothing tells the boards apart"),
        pytest.param({}, id="two containers on one host"),
    ],
)
def test_a_copy_of_a_store_opens_an_alert_and_swallows_nothing(watched: Fleet, other: dict[str, str]) -> None:
    first = Machine(watched, watched.device.folder, "a", A if other.get("uuid") else "")
    first.report(2)
    second = first.copied(**other)
    second.report(2)
    assert (reports(watched), moves(watched)) == (4, int(bool(other.get("uuid"))))
    assert watched.ask("GET", f"/v1/devices/{DEVICE}")["used_twice"] is None
    for _ in range(3):
        first.report()
        second.report()
    assert reports(watched) == 10
    watched.until(lambda: bool(alerts(watched)))
    assert alerts(watched)[0].startswith(f"identity used twice: two machines report as {DEVICE}")
    token = watched.ask("POST", "/v1/enrolments", {"device": DEVICE})["token"]
    enrol(EnrolmentInput(watched.device.identity.controller, token), first.folder, CONFIG)
    watched.until(lambda: not alerts(watched) and len(alerts(watched, "closed")) == 1)
    first.report()
    assert replace(watched.device, folder=second.folder).asked_once().problem  # the copy's certificate is revoked
    assert watched.ask("GET", f"/v1/devices/{DEVICE}")["used_twice"] is None


def test_copies_that_boot_in_the_same_second_number_their_reports_apart(watched: Fleet) -> None:
    first = Machine(watched, watched.device.folder, "a")
    first.report()
    second = first.copied(boot="c")
    for machine in (replace(first, boot="b"), second, second, replace(first, boot="b")):
        machine.report()
    assert reports(watched) == 5


def test_a_card_in_a_spare_board_is_an_event_and_a_reboot_is_nothing(watched: Fleet) -> None:
    board = Machine(watched, watched.device.folder, "1", A)
    for machine, moved in (
        (board, 0),
        (replace(board, boot="2"), 0),
        (replace(board, boot="3", uuid=""), 0),  # a fact that is missing is no difference
        (replace(board, boot="4", uuid=B), 1),
        (replace(board, boot="5", uuid=B), 1),
        (replace(board, boot="6", uuid=A), 2),  # and back to the board that was mended
    ):
        machine.report(2)
        assert moves(watched) == moved
    assert (reports(watched), alerts(watched)) == (12, [])
    shown = watched.ask("GET", f"/v1/devices/{DEVICE}")
    assert (shown["used_twice"], shown["machine"]["hardware"].keys()) == (None, {"uuid"})
    assert shown["machine"]["hardware"] != shown["machine"]["before"]
