"""`edge-fleet releases` and `rollouts` as processes: a release goes to simulated devices, and is watched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import DirectorSettings, SchedulerSettings
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import ROOT, Operator, operator, until

pytestmark = pytest.mark.timeout(240)
DEVICES = 6
CONFIG = replace(
    FleetConfig(),
    scheduler=SchedulerSettings(tick_s=0.1),
    director=settings_with(DirectorSettings(), poll_s=0.3, published_every_s=0.1),
)
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller"), CONFIG) as running:
        for version in ("1", "2", "3"):
            running.repository.add_release("meter-reader", version)
        yield running


@pytest.fixture(scope="module")
def admin(controller: RunningController) -> Operator:
    found = operator(controller)
    until(lambda: len(found.told("releases", "list")["releases"]) == 3, "the releases are not read")
    return found


@pytest.fixture(scope="module", autouse=True)
def fleet(controller: RunningController, admin: Operator) -> Iterator[None]:
    """Play devices that ask, download and commit."""
    with playing(controller, admin, "good", DEVICES):
        until(lambda: len(admin.told("devices", "list", "--tag", "good")["devices"]) == DEVICES, "nobody enrolled")
        yield


@contextmanager
def playing(controller: RunningController, admin: Operator, tag: str, number: int, *options: str) -> Iterator[None]:
    tokens = controller.folder / f"{tag}.tokens"
    with controller.client() as client:
        made = [client.post("/v1/enrolments", json={"tags": [tag]}).json()["token"] for _ in range(number)]
    tokens.write_text("\n".join(made))
    words = ("run", "--devices", str(number), "--url", controller.url, "--ca", str(controller.ca_file))
    play = [*words, "--tokens", str(tokens), "--prefix", tag, "--poll", "0.3", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.load", *play],
        cwd=ROOT,
        env=admin.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def created(admin: Operator, *options: str) -> str:
    soaks = ("--soak", "0", *(("--canary-soak", "0") if "--canary" in options else ()))
    return str(admin.told("rollouts", "create", *options, *soaks)["id"])


def test_releases_are_shown(admin) -> None:
    code, out, _ = admin.run("releases", "list", "--model", "meter-reader")
    assert code == 0
    assert re.search(r"acme +│ meter-reader │ 2 +│ 1 ", out)
    code, out, _ = admin.run("releases", "show", "acme/meter-reader/2")
    assert (code, "may be rolled out  yes" in out) == (0, True)
    assert admin.run("releases", "show", "acme/meter-reader/9")[0] == 1
    code, _, err = admin.run("releases", "show", "meter-reader")
    assert (code, "write OWNER/MODEL/VERSION" in err) == (2, True)


def test_a_release_goes_to_all_in_waves_and_is_watched(admin) -> None:
    options = ("--target", "acme/meter-reader/2", "--query", "tag = good", "--canary", "1", "--waves", "50%!,100%")
    preview = admin.told("rollouts", "preview", *options)
    assert (preview["devices"], preview["running"]) == (DEVICES, {"": DEVICES})
    rollout = created(admin, *options)
    code, _, err = admin.run("rollouts", "approve", rollout)
    assert (code, "there is no terminal to ask on; --spec " in err) == (2, True)
    code, _, err = admin.run("rollouts", "approve", rollout, "--spec", "0" * 64)
    assert code == 1
    assert admin.run("rollouts", "start", rollout)[0] == 1
    assert "approved" in admin.run("rollouts", "approve", rollout, "--yes")[1]
    watching = admin.begin("rollouts", "watch", rollout)
    assert watching.stdout
    assert "approved: edge-fleet rollouts start" in watching.stdout.readline()
    assert admin.run("rollouts", "start", rollout)[0] == 0
    until(lambda: admin.told("rollouts", "show", rollout)["waves"][0]["states"].get("committed"), "no canary committed")
    lines = [watching.stdout.readline().rstrip()]
    while "the next wave waits: edge-fleet rollouts approve-wave" not in lines[-1]:
        lines.append(watching.stdout.readline().rstrip())
        assert lines[-1], lines
    assert admin.run("rollouts", "approve-wave", rollout, "1")[0] == 0
    out, err = watching.communicate(timeout=120)
    assert (watching.returncode, err) == (0, "")
    lines += out.splitlines()
    assert f"finished · wave 2 of 2 · {DEVICES} of {DEVICES} devices committed" in lines[-1]
    assert len(lines) == len(set(lines))
    _watched_again(admin, rollout)
    code, out, _ = admin.run("rollouts", "create", *options, "--soak", "0", "--canary-soak", "0")
    assert (code, f"changes  {DEVICES} devices from version 2 to acme/meter-reader/2" in out) == (0, True), out
    _replayed(admin, rollout)


def _watched_again(admin: Operator, rollout: str) -> None:
    """Watch on a terminal: bars, no wider than it is."""
    for columns in (80, 40):
        code, said = admin.looked("rollouts", "watch", rollout, columns=columns)
        lines = [line.rstrip() for line in COLOURS.sub("", said).splitlines()]
        assert code == 0
        assert max(map(len, lines)) <= columns, lines
        assert any(re.match(r" +canary █+ ", line) for line in lines), lines
    code, out, _ = admin.run("rollouts", "watch", rollout, "--json")
    assert (code, json.loads(out)["state"]) == (0, "finished")


def _replayed(admin: Operator, rollout: str) -> None:
    found = admin.told("rollouts", "replay", rollout)
    assert (found["ok"], found["state"], found["decisions"] > DEVICES) == (True, "finished", True)
    code, out, _ = admin.run("rollouts", "devices", rollout, "--state", "committed")
    assert (code, out.count("good-")) == (0, DEVICES)
    assert re.search(rf"{rollout} +│ meter-reader-2 +│ acme/meter-reader/2", admin.run("rollouts", "list")[1])


def test_who_approves_sees_what_and_says_yes(admin) -> None:
    rollout = created(admin, "--target", "acme/meter-reader/3", "--query", "tag = nobody", "--rollback", "forced")
    revised = ("--target", "acme/meter-reader/3", "--query", "tag = none", "--rollback", "forced")
    assert admin.told("rollouts", "revise", rollout, *revised)["spec"]["query"] == "tag = none"
    seen = admin.told("rollouts", "show", rollout)["spec_digest"]
    assert admin.told("rollouts", "revise", rollout, *revised, "--replaces", seen)["spec_digest"] == seen
    code, _, refused = admin.run("rollouts", "revise", rollout, *revised, "--replaces", "0" * 64)
    assert (code, "it was revised since" in refused) == (1, True)
    code, said = admin.looked("rollouts", "approve", rollout, typed="n\n")
    assert (code, "nothing was approved" in said) == (1, True)
    code, said = admin.looked("rollouts", "approve", rollout, typed="yes\n")
    assert code == 0
    for words in ("acme/meter-reader/3 into the slot", "tag = none", "all go back by themselves", "approve this?"):
        assert words in said
    assert admin.told("rollouts", "show", rollout)["state"] == "approved"
    assert re.search(r"by (\S+), revised by \1\b", admin.run("rollouts", "show", rollout)[1])
    assert admin.run("rollouts", "revise", rollout, *revised)[0] == 1


def test_what_fails_halts_and_watching_ends_with_1(controller, admin) -> None:
    with playing(controller, admin, "bad", 6, "--failing", "100"):
        until(lambda: len(admin.told("devices", "list", "--tag", "bad")["devices"]) == 6, "nobody enrolled")
        query = ("--target", "acme/meter-reader/3", "--query", "tag = bad", "--waves", "100%", "--failed-sample", "2")
        rollout = created(admin, *query, "--start")
        code, out, _ = admin.run("rollouts", "watch", rollout)
        assert (code, "halted: " in out) == (1, True)
        assert admin.run("rollouts", "abort", rollout, "--because", "it is bad")[0] == 0
        assert admin.run("rollouts", "watch", rollout)[0] == 1
        assert "it is bad" in admin.run("rollouts", "show", rollout)[1]
        assert admin.told("rollouts", "rollback", rollout)["rollback_requested"]
        assert admin.told("rollouts", "replay", rollout)["ok"]


def test_a_rollout_is_paused_and_resumed_and_waited_for_no_longer(admin) -> None:
    rollout = created(admin, "--target", "acme/meter-reader/3", "--query", "tag = nobody", "--start")
    assert "paused: holidays" in admin.run("rollouts", "pause", rollout, "--because", "holidays")[1]
    code, _, err = admin.run("rollouts", "watch", rollout, "--timeout", "1s")
    assert (code, "is not over after 1 s" in err) == (3, True)
    assert "running" in admin.run("rollouts", "resume", rollout)[1]
    code, _, err = admin.run("rollouts", "resume", rollout)
    assert (code, err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("create --query all", 2, "no release is named"),
        ("create --target acme/meter-reader/9", 2, "meter-reader/9"),
        ("create --target acme/meter-reader/2 --canary-soak 1h", 2, "canary.per_accelerator: missing"),
        ("create --target acme/meter-reader/2 --waves 5%", 2, "the last must reach all devices"),
        ("create --target acme/meter-reader/2 --waves 5%%", 2, "write waves as"),
        ("create --target acme/meter-reader/2 --query (", 2, "query"),
        ("create --spec nothere.toml", 2, "nothere.toml: cannot be read"),
        ("show r1", 1, "r1"),
        ("watch r1", 1, "r1"),
        ("replay r1", 1, "r1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(admin, words, code, said) -> None:
    found, out, err = admin.run("rollouts", *words.split())
    assert (found, out, said in err, err.count("\n")) == (code, "", True, 1), err


def test_a_specification_from_a_file(admin, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        'target = "acme/meter-reader/3"\nquery = "tag = nobody"\nwaves = [{percent = 100}]\n'
        "[success]\nmin_sample = 1\nmin_percent = 50\n[abort]\nmin_sample = 1\nmax_failed_percent = 50\n"
        '[[windows]]\nstart = "22:00"\nend = "05:00"\nzone = "Europe/Berlin"\n'
    )
    made = admin.told("rollouts", "create", "--spec", file, "--name", "from-a-file")
    assert (made["name"], made["spec"]["windows"][0]["zone"]) == ("from-a-file", "Europe/Berlin")
    assert "22:00-05:00 (Europe/Berlin)" in admin.run("rollouts", "show", made["id"])[1]
