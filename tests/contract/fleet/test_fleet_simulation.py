"""Simulated devices against a controller that records all it receives: their reports, trust and retries."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.publisher.roles import DIRECTOR
from gateway.common.domain.errors import ConfigurationError
from tests.load.__main__ import PROGRAM
from tests.load.casting import Behaviour, Character, cast
from tests.load.device import ELSE
from tests.load.settings import BehaviourShares, Settings
from tests.load.simulate import Run, simulate
from tests.simulators.controller import free_port
from tests.simulators.fleet_controller import Answer, Call, FleetController
from tests.simulators.fleet_repository import FleetRepository, new_key

SLOT = "meter-reader"
ALL = BehaviourShares(lying=10, replaying=10, flooding=10, failing=10, silent=10)


@dataclass
class Play:
    """A controller with a release, and who is played."""

    controller: FleetController
    target: str

    def run(self, settings: Settings, **more: Any) -> Run:
        """Return a run with a token for each device, and the release assigned to all of them."""
        played = cast(settings)
        self.controller.tokens = {f"token of {one.name}".replace(" ", "-"): one.name for one in played}
        for one in played:
            self.controller.assigned[one.name] = ({SLOT: self.target}, ())
        settings, tokens = replace(settings, url=self.controller.url), list(self.controller.tokens)
        return Run(settings, tokens=tokens, authority=self.controller.authority.file.read_text(), **more)

    def played(self, settings: Settings, **more: Any) -> dict[str, Any]:
        """Play the run; return its summary."""
        more = {"seconds": 20.0, "until_committed": True} | more
        return asyncio.run(simulate(self.run(settings, **more)))

    @property
    def digest(self) -> str:
        """Digest of the release."""
        signed = self.controller.repository.published.target(self.target)
        assert signed
        return str(signed.hashes["sha256"])

    def told(self, one: Character, stream: str) -> list[dict[str, Any]]:
        return [row["document"] for row in self.controller.told[one.name].of(stream)]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    repository = FleetRepository(tmp_path / "repository")
    repository.add_owner("acme")
    controller = FleetController(tmp_path / "controller", repository)
    controller.poll_s = 1
    with controller.running():
        yield Play(controller, repository.add_release(SLOT, "1"))


def devices(count: int, shares: BehaviourShares | None = None, **more: Any) -> Settings:
    return Settings("", count, shares=shares or BehaviourShares(), poll_s=0.1, retry_s=0.1, **more)


def slots(play: Play, one: Character) -> list[dict[str, Any]]:
    return [document for document in play.told(one, "state") if "slot" in document]


def asked(play: Play, route: str) -> list[Call]:
    return [call for call in play.controller.asked if call.path == route]


def test_everybody_says_what_belongs_to_its_part(play: Play) -> None:
    settings = replace(devices(10, ALL), flood_batches=2)
    found = play.played(settings, seconds=2.0, until_committed=False)
    assert found["states"] == {"committed": 8, "rolled_back": 1, "silent": 1}
    assert found["problems"] == {}
    for one in cast(settings):
        told = play.controller.told[one.name]
        assert told.inventory
        assert told.inventory["profile"] == one.hardware.profile
        states = [document["state"] for document in slots(play, one)]
        if one.part is Behaviour.SILENT:
            assert states == ["offered"]
            continue
        assert states[-3:] == [
            "downloading",
            "probation",
            "rolled_back" if one.part is Behaviour.FAILING else "committed",
        ]
        runs = slots(play, one)[-1]["committed"]
        assert (runs or {}).get("release") == {Behaviour.LYING: ELSE, Behaviour.FAILING: None}.get(
            one.part, play.digest
        )
        assert bool(told.again) == (one.part is Behaviour.REPLAYING)
        assert (len(told.rows) > 1000) == (one.part is Behaviour.FLOODING)
        assert bool(play.told(one, "updates")[0]["failure"]) == (one.part is Behaviour.FAILING)
    assert {call.device for call in asked(play, "/v1/self/assignment") if call.query.get("nonce")} == {
        one.name for one in cast(settings) if one.part is Behaviour.REPLAYING
    }


def test_what_has_not_changed_is_not_sent_again(play: Play) -> None:
    found = play.played(devices(3), seconds=1.5, until_committed=False)
    assert found["answers"]["assignment"]["200"] == 3
    assert found["answers"]["assignment"]["304"] >= 6
    assert found["answers"]["enrol"] == {"200": 3}
    assert found["telemetry_rows"] == sum(len(told.rows) for told in play.controller.told.values())


def test_nobody_believes_a_director_whom_nobody_named(play: Play) -> None:
    play.controller.repository.keys[DIRECTOR] = [new_key("thief")]
    found = play.played(devices(3), seconds=1.0)
    assert (found["committed"], found["offered"], found["settled"]) == (0, 0, False)
    assert found["distrusted"] >= 3
    assert "1 signatures that the role director needs" in next(iter(found["problems"]))


def test_a_new_director_is_found_by_the_signed_metadata(play: Play) -> None:
    play.controller.repository.keep_keys()
    run = play.run(devices(3), seconds=20.0)

    async def rotated() -> dict[str, Any]:
        playing = asyncio.create_task(simulate(replace(run, until_committed=True)))
        while not play.controller.told or not all(told.of("updates") for told in play.controller.told.values()):
            await asyncio.sleep(0.02)
        return await playing

    assert asyncio.run(rotated())["settled"]
    repository = play.controller.repository
    repository.draft_rotation(DIRECTOR)
    repository._publish([])
    repository.add_release(SLOT, "2")
    play.target = f"models/acme/{SLOT}/2/release"
    again = play.played(devices(3))
    assert (again["settled"], again["distrusted"]) == (True, 0)


def test_a_release_that_is_not_what_was_signed_is_not_committed(play: Play) -> None:
    public = play.controller.repository.public
    (file,) = (public / f"targets/models/acme/{SLOT}/1").iterdir()
    file.write_bytes(file.read_bytes().replace(b"acme", b"evil"))
    found = play.played(devices(2), seconds=1.0)
    assert found["committed"] == 0
    assert "not those that were signed" in next(iter(found["problems"]))


def test_who_has_no_token_stays_outside(play: Play) -> None:
    run = play.run(devices(3), seconds=1.0)
    found = asyncio.run(simulate(replace(run, tokens=run.tokens[:2] if run.tokens else ())))
    assert found["states"] == {"committed": 2, "turned away": 1}


def test_an_operators_token_lets_everybody_in(play: Play) -> None:
    run = play.run(devices(2), seconds=20.0, until_committed=True)
    left = list(run.tokens or ())

    def made(call: Call) -> Answer:
        if call.headers.get("authorization") != "Bearer eft_ann":
            return 401, {}, b"{}"
        return 201, {}, json.dumps({"token": left.pop()}).encode()

    play.controller.ill["/v1/enrolments"] = made
    assert asyncio.run(simulate(replace(run, tokens=None, operator="eft_ann")))["settled"]
    assert json.loads(asked(play, "/v1/enrolments")[0].body) == {"tags": ["simulated"]}
    found = asyncio.run(simulate(replace(run, tokens=None, operator="eft_bob")))
    assert found["states"] == {"turned away": 2}


def test_a_revoked_device_stops_asking(play: Play) -> None:
    play.controller.ill["/v1/self/assignment"] = lambda _: (403, {}, b"{}")
    found = play.played(devices(2))
    assert found["states"] == {"turned away": 2}
    assert found["answers"]["assignment"] == {"403": 2}


def test_an_answer_to_an_enrolment_that_was_lost_is_asked_for_again(play: Play) -> None:
    lost: list[Call] = []

    def once(call: Call) -> Answer:
        lost.append(call)
        del play.controller.ill["/v1/enrol"]
        play.controller._route(call)
        return 500, {}, b""

    play.controller.ill["/v1/enrol"] = once
    found = play.played(devices(1))
    assert found["settled"]
    assert [call.body for call in asked(play, "/v1/enrol")] == [lost[0].body] * 2


def test_failures_are_tried_again_and_counted(play: Play) -> None:
    left = ["telemetry", "assignment", "inventory"]

    def fail(call: Call) -> Answer:
        del play.controller.ill[call.path]
        return 503, {"Retry-After": "0"}, b"{}"

    for name in left:
        play.controller.ill[f"/v1/self/{name}"] = fail
    found = play.played(devices(1))
    assert found["settled"]
    for name in left:
        assert found["answers"][name]["503"] == 1
    numbers = [row[2] for row in sorted(play.controller.told["sim-000001"].rows) if row[0] == "state"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_rows_that_are_never_taken_do_not_hold_up_the_others(play: Play) -> None:
    def pick(call: Call) -> Answer:
        if b'"kind":"vitals"' in gzip.decompress(call.body):
            return 422, {}, b"{}"
        return play.controller._route(call)

    play.controller.ill["/v1/self/telemetry"] = pick
    found = play.played(devices(1))
    assert found["settled"]
    assert set(found["problems"]) == {"telemetry: a row was refused permanently"}  # one for each row of vitals


def test_nonsense_is_counted_and_survived(play: Play) -> None:
    def fail(call: Call) -> Answer:
        del play.controller.ill[call.path]
        return 200, {}, b'{"acknowledged": 7}'

    play.controller.ill["/v1/self/telemetry"] = fail
    found = play.played(devices(1))
    assert found["settled"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == ["answer of another form"]


def test_devices_go_on_in_another_simulation(play: Play, tmp_path: Path) -> None:
    settings = devices(3, keep_alive=True)
    assert play.played(settings, keep=tmp_path / "kept")["settled"]
    play.controller.asked.clear()
    again = play.played(settings, keep=tmp_path / "kept", seconds=1.0, until_committed=False)
    assert again["states"] == {"committed": 3}
    assert "enrol" not in again["answers"]
    assert again["offered"] == 0


def test_who_finds_its_replica_dead_asks_the_other(play: Play) -> None:
    dead = f"https://localhost:{free_port()}"
    found = play.played(devices(4), replicas=(dead,))
    assert found["settled"]
    assert found["problems"]["enrol: ConnectionRefusedError"] == 2


@pytest.mark.parametrize(
    ("how", "few", "resumed"), [({"keep_alive": True}, True, False), ({"resume": True}, False, True)]
)
def test_connections_are_kept_or_resumed_as_told(play: Play, how: dict[str, bool], few: bool, resumed: bool) -> None:
    found = play.played(devices(2, **how), seconds=1.5, until_committed=False)
    assert (found["connections"] == 4) == few  # one to enrol, one for all that follows
    assert bool(found["resumed"]) == resumed


def test_what_is_signed_is_fetched_once_for_all(play: Play) -> None:
    assert play.played(devices(2))["settled"]
    metadata = [call for call in play.controller.asked if call.path.startswith("/repository/metadata/")]
    assert len(metadata) == 4  # the next root, timestamp, snapshot, targets


def test_as_many_files_are_opened_as_devices_need(play: Play) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    run = play.run(devices(2, keep_alive=True), seconds=0.1)
    gc.collect()  # what earlier tests left to the collector would count
    least = len(list(Path("/proc/self/fd").iterdir())) + 8
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(40, least), before[1]))
        asyncio.run(simulate(run))
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 66
        with pytest.raises(ConfigurationError, match="open files"):
            asyncio.run(simulate(replace(run, settings=replace(run.settings, devices=before[1] + 1))))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_command_plays_and_shows(play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = play.run(devices(3))
    (tmp_path / "tokens").write_text("\n".join(run.tokens or ()))
    (tmp_path / "database").write_bytes(b"x" * 4096)
    words = ["run", "--devices", "3", "--url", play.controller.url, "--ca", str(play.controller.authority.file)]
    words += [
        "--tokens",
        str(tmp_path / "tokens"),
        "--poll",
        "0.1",
        "--seconds",
        "20",
        "--keep",
        str(tmp_path / "kept"),
    ]
    watched = ["--pid", "1", "--database", str(tmp_path / "database"), "--until-committed"]
    watched += ["--reported", str(tmp_path / "told")]
    assert PROGRAM.main([*words, *watched, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["settled"], found["database_bytes"]) == (True, {"before": 4096, "after": 4096})
    assert found["controller"]["rss_bytes"] > 0
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert {(one["device"], one["stream"]) for one in told} >= {(f"sim-00000{n}", "updates") for n in (1, 2, 3)}
    assert sum(one["acknowledged"] for one in told) == found["telemetry_rows"]
    play.controller.repository.keys[DIRECTOR] = [new_key("thief")]
    play.controller._signed.clear()
    assert PROGRAM.main([*words, "--until-committed", "--seconds", "0.5"]) == 1
    assert "signatures that the role director needs" in capsys.readouterr().out
