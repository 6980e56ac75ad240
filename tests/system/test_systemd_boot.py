"""The units under a real systemd, booted in a container over a view of this machine. Needs root and systemd-nspawn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.device.agent import events
from tests.simulators.daemon import copy_model
from tests.simulators.fleet_repository import FleetRepository
from tests.system.installation import installed, leave_no_groups, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODELS = ("meter-reader", "activity")
TRIALS = {
    "good": "[http]\nmax_json_bytes = 1000\n",
    "unstartable": '[shared_memory]\nsocket = "/no/such/folder/memory.sock"\n',
    "reverted": "[http]\nmax_json_bytes = 2000\n",
    "killed": "[http]\nmax_json_bytes = 3000\n",
}
"""Settings of the fleet by what becomes of them in watch_settings.sh."""
LIMIT_S = 700.0
"""Bound of the whole boot; watch.sh alone has 600 s (boot.sh)."""
SLEEPING_LIMIT_BYTES = 45_000_000


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Boot once; return what was written inside, by file name."""
    folder = tmp_path_factory.mktemp("boot")
    script = Path(__file__).with_name("boot.sh")
    command = ("unshare", "--mount", "bash", script, installed(), _fleet(folder / "fleet"), folder)
    done = run(*command, check=False, limit_s=LIMIT_S)
    leave_no_groups("edge-gateway-boot")
    result = folder / "upper" / "result"
    assert result.is_dir(), f"it did not boot: {done.stdout}{done.stderr}"
    answers = {file.name: file.read_text() for file in result.iterdir()}
    shutil.rmtree(folder)  # half a gigabyte that pytest must not keep
    return answers


def _fleet(folder: Path) -> Path:
    """Write a repository, a device's bootstrap (root's alone), and requests for the model assigned to it."""
    made = copy_model("meter-reader", folder.with_name("models"), name="door-reader")
    repository = FleetRepository(folder.with_name("publisher"))
    model = repository.add_model(made)
    repository.assign("door-1", {"door-reader": model})
    url, given = "file:///srv/fleet/public", folder / "given"
    given.mkdir(parents=True)
    for name, content in _settings(repository, model).items():
        (folder / f"settings-{name}.json").write_bytes(content)
    shutil.copytree(repository.public, folder / "public")
    shutil.copy(made / "golden.npz", folder)
    run("chmod", "--recursive", "a+rX", folder)
    told = {"schema": 1, "device": "door-1", "repository": url, "assignment": f"{url}/assignments/door-1.json"}
    (given / "device.json").write_text(json.dumps(told))
    (given / "root.json").write_bytes(repository.root_bytes())
    given.chmod(0o700)
    return folder


def _settings(repository: FleetRepository, model: str) -> dict[str, bytes]:
    """Return later assignments with settings, by name; what they name is published."""
    policy = repository.add_file("policy/site.json", json.dumps({"schema": 1, "settings": ["shared_memory"]}).encode())
    made = {}
    for name, toml in TRIALS.items():
        slots = {"door-reader": model, "@settings": repository.add_settings("berlin", toml)}
        made[name] = repository.assignment("door-1", slots, files=(policy,))
    return made


def test_it_starts_and_says_what_it_serves(seen: dict[str, str]) -> None:
    assert seen["start"].strip() == "0", seen["errors"]
    assert "2 model versions ready" in seen["status"]


def test_its_user_is_in_the_accelerators_groups(seen: dict[str, str]) -> None:
    assert {"edge-gateway", "render", "video", "plugdev", "apex"} <= set(seen["groups"].split())


def test_its_folders_and_socket_are_its_own(seen: dict[str, str]) -> None:
    assert seen["state"].strip() == "edge-gateway:edge-gateway 751"
    assert seen["socket"].strip() == "edge-gateway:edge-gateway 660 socket"


def test_it_answers(seen: dict[str, str]) -> None:
    assert seen["infer.rc"].strip() == "0"
    assert json.loads(seen["infer"])["model_name"] == "meter-reader"


def test_a_camera_s_shared_memory_is_read_and_written_under_the_hardening(seen: dict[str, str]) -> None:
    assert json.loads(seen["shared.register"]) == {}
    answer = json.loads(seen["shared.infer"])
    assert answer["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [1, 10]}], answer
    assert sum(float(score) for score in seen["shared.scores"].split()) == pytest.approx(1.0, abs=1e-3)


def test_a_stop_leaves_the_camera_its_segment(seen: dict[str, str]) -> None:
    """RemoveIPC=yes would remove what belongs to the unit's group, which is the agent's as well."""
    assert seen["shared.left"].strip() == "games:edge-gateway 660 512"


def test_setup_writes_settings_that_are_in_force_after_its_restart(seen: dict[str, str]) -> None:
    assert seen["setup.rc"].strip() == "0", seen["errors"]
    report, check = json.loads(seen["setup"]), json.loads(seen["setup.check"])
    assert [entry["file"] for entry in report["files"]] == [
        "/etc/edge-gateway/tokens",
        "/etc/edge-gateway/conf.d/50-setup.toml",
        "/etc/systemd/system/edge-gateway.service.d/50-memory.conf",
    ]
    assert seen["setup.files"].splitlines() == ["root:root 644", "root:edge-gateway 640"]
    assert "conf.d/50-setup.toml:" in seen["setup.games"], "a user without rights reads the settings"
    assert (report["restarted"], check["ok"]) == (True, True), check
    limits = re.findall(r"^Memory(High|Max)=(\d+)M$", report["files"][2]["text"], re.MULTILINE)
    assert seen["setup.memory"].splitlines() == [f"Memory{name}={int(mib) * 1024 * 1024}" for name, mib in limits]
    assert len(limits) == 2
    served = json.loads(seen["setup.models"])["models"]
    names = {line["name"] for line in served}
    assert names == {"mine", "door-reader"}, "the examples are off, and the fleet's model is not"
    assert {line["state"] for line in served} == {"READY"}


@pytest.mark.parametrize("model", MODELS)
def test_every_runtime_works_under_the_hardening(model: str, seen: dict[str, str]) -> None:
    variants = json.loads(seen[f"explain.{model}"])["variants"]
    assert {variant["runtime"] for variant in variants} >= {"onnx", "openvino", "litert", "reference"}
    assert [variant for variant in variants if not variant["eligible"] or not variant["measured"]] == []


def test_reloading_and_feeding_the_watchdog_keep_the_process(seen: dict[str, str]) -> None:
    assert seen["reload"].strip() == "0"
    assert seen["fed"].strip() == "0"


def test_files_are_judged_as_the_service_would_find_them(seen: dict[str, str]) -> None:
    before, denied, after = (json.loads(seen[f"check.{when}"]) for when in ("before", "denied", "after"))
    assert (before["ok"], before["user"], after["ok"]) == (True, "edge-gateway", True), (before, after)
    tokens = "/etc/edge-gateway/tokens"
    said = f"auth.tokens_file: user edge-gateway may not read the file {tokens} (mode 0600, owner 0, group 0); "
    assert denied["findings"] == [f"{said}chgrp edge-gateway {tokens} && chmod g+r {tokens} (EG-202)"]


def test_the_running_gateway_is_asked_over_http_and_where_that_wants_a_token_by_its_control_socket(
    seen: dict[str, str],
) -> None:
    asked = [json.loads(seen[f"models.{way}"]) for way in ("http", "control")]
    assert [one["asked"] for one in asked] == ["http://127.0.0.1:8000", "unix:/run/edge-gateway/control.sock"]
    for one in asked:
        assert {line["name"]: line["state"] for line in one["models"]} == dict.fromkeys(MODELS, "READY")


def test_a_daemon_that_hangs_is_replaced(seen: dict[str, str]) -> None:
    assert "Watchdog timeout" in seen["bitten"]


def test_stopping_drains_and_succeeds(seen: dict[str, str]) -> None:
    assert seen["stop"].split() == ["success", "0"]
    assert seen["failed"] == ""


@pytest.mark.parametrize("place", ["readonly", "full"])
def test_it_serves_by_the_kept_verdicts_where_its_state_takes_nothing(place: str, seen: dict[str, str]) -> None:
    code, status = seen[place].splitlines()
    assert (code, "3 model versions ready" in status) == ("0", True), seen[f"{place}.log"]  # with the fleet's
    assert "state kept in memory" in seen[f"{place}.log"]
    assert "trial finished" not in seen[f"{place}.log"]


def test_systemd_found_nothing_to_say_about_the_unit(seen: dict[str, str]) -> None:
    said = [line for line in seen["journal"].splitlines() if "stat device" in line or "gnoring" in line]
    assert said == []


# ---- a device of a fleet -------------------------------------------------------------------------------------------


def _index(said: str) -> dict[str, tuple[str, str]]:
    return {line["name"]: (line["state"], line.get("reason", "")) for line in json.loads(said)}


def test_part_of_no_fleet_the_agent_has_nothing_to_do_and_nothing_is_called_unsigned(seen: dict[str, str]) -> None:
    assert seen["fleet.before"].split() == ["inactive", "no"]
    assert _index(seen["fleet.index.before"]) == dict.fromkeys(MODELS, ("READY", ""))


def test_root_bootstraps_it_from_a_folder_of_its_own_and_the_agent_owns_the_store(seen: dict[str, str]) -> None:
    assert seen["fleet.bootstrap.rc"].strip() == "0", seen["errors"]
    assert seen["fleet.store"].strip() == "edge-agent:edge-gateway 750"
    assert seen["fleet.strangers"] == ""


def test_the_agent_installs_what_is_assigned_without_a_configuration_being_edited(seen: dict[str, str]) -> None:
    assert seen["fleet.start"].strip() == "0", seen["errors"]
    status = json.loads(seen["fleet.status"])
    assert status["state"] == "in-step", seen["fleet.journal"]
    assert status["slots"]["door-reader"]["committed"]["version"] == "1"
    assert seen["fleet.socket"].strip() == "edge-gateway:edge-gateway 660 socket"


def test_the_gateway_serves_it_and_says_what_is_unsigned(seen: dict[str, str]) -> None:
    assert json.loads(seen["fleet.infer"])["model_name"] == "door-reader"
    index = _index(seen["fleet.index"])
    assert index["door-reader"] == ("READY", "")
    assert all("unsigned" in index[model][1] for model in MODELS)


def test_root_may_ask_and_verify_beside_the_unit_and_without_it(seen: dict[str, str]) -> None:
    for sync in ("fleet.sync.beside", "fleet.sync"):
        assert seen[f"{sync}.rc"].strip() == "0", seen["errors"]
        assert json.loads(seen[sync])["state"] == "in-step"
    assert json.loads(seen["fleet.verify"])["ok"] is True


def test_the_gateway_reads_the_store_and_cannot_write_it(seen: dict[str, str]) -> None:
    assert seen["fleet.daemon.writes"].strip() != "0"


def test_the_agent_sleeps_in_little_memory_and_stops_well(seen: dict[str, str]) -> None:
    assert int(seen["fleet.memory"].split()[1]) * 1024 < SLEEPING_LIMIT_BYTES
    assert seen["fleet.reload"].strip() == "0"
    assert seen["fleet.stop"].split() == ["success", "0"]


def test_under_its_hardening_it_may_still_ask_whether_the_clock_is_right(seen: dict[str, str]) -> None:
    logged = {json.loads(line)["event"] for line in seen["fleet.journal"].splitlines() if line.startswith("{")}
    assert events.POLL_COMPLETED in logged
    assert events.POLL_FAILED not in logged


def test_under_its_hardening_it_may_read_the_logs_that_an_operator_asks_for(seen: dict[str, str]) -> None:
    assert seen["fleet.reads"].strip() == "0", seen["errors"]
    for unit, said in json.loads(seen["fleet.lines"]).items():
        assert "problem" not in said, (unit, said)
        assert any('"component"' in line for line in said["lines"])


def test_a_gateway_that_begins_anew_needs_neither_agent_nor_fleet(seen: dict[str, str]) -> None:
    assert seen["fleet.restart"].strip() == "0"
    assert json.loads(seen["fleet.infer.again"])["outputs"] == json.loads(seen["fleet.infer"])["outputs"]
    assert _index(seen["fleet.index.again"])["door-reader"] == ("READY", "")


# ---- restarts and crashes, with clients that connect for every request (watch_restarts.sh) ---------------------------


@pytest.mark.parametrize("name", ["restart", "kill"])
def test_no_connection_is_refused_over_restarts_and_kills(name: str, seen: dict[str, str]) -> None:
    came = json.loads(seen[f"restarts.{name}"])
    assert len([what for what in came if what.startswith("answered")]) == 3, came
    assert [what for what in came if what.startswith("refused")] == []
    if name == "restart":
        assert [what for what in came if what.startswith("broken")] == []


def test_the_listening_sockets_stay_the_same_and_are_stored_once(seen: dict[str, str]) -> None:
    before, after = seen["restarts.listening"].split()
    assert before == after
    assert seen["restarts.stored"].split() == ["4", "4"]  # before and after the address of HTTP was another


def test_a_copied_model_is_served_under_the_hardening_until_it_is_removed(seen: dict[str, str]) -> None:
    assert seen["restarts.copied"].split() == ["1", "0"], seen["journal"][-3000:]


def test_an_address_that_is_not_configured_any_more_is_refused(seen: dict[str, str]) -> None:
    refused = "7"  # of curl
    assert seen["restarts.moved"].split() == [refused, "0"]
    assert "is not configured" in seen["journal"]
    assert seen["restarts.stopped"].split()[0] == refused
    assert "No such file" in seen["restarts.stopped"]


def test_the_status_says_why_the_gateway_failed(seen: dict[str, str]) -> None:
    assert "4 failures in a row, the last one by signal SEGV" in seen["restarts.status"]
    assert "signal=ABRT" in seen["restarts.waiting"]
    assert "nonsense" in seen["restarts.refused"]
    assert "failure" not in seen["restarts.mended"]


# ---- settings of the fleet on trial --------------------------------------------------------------------------------
# A start takes longer than half of WatchdogSec= here (watch_settings.sh).


def _trial(name: str, seen: dict[str, str]) -> dict[str, Any]:
    """Return what the agent reports of the slot after a trial."""
    slot: dict[str, Any] = json.loads(seen[f"settings.{name}.sync"])["slots"]["@settings"]
    return slot


def _force(name: str, seen: dict[str, str]) -> dict[str, Any]:
    force: dict[str, Any] = json.loads(seen[f"settings.{name}.force"])
    return force


@pytest.mark.parametrize("name", ["good", "unstartable", "reverted"])
def test_systemd_sees_a_trial_as_a_reload_of_the_same_process(name: str, seen: dict[str, str]) -> None:
    assert seen[f"settings.{name}.after"] == seen[f"settings.{name}.before"], seen["journal"][-5000:]
    assert set(seen[f"settings.{name}.states"].split()) == {"active", "reloading"}
    assert "Active: active (running)" in seen[f"settings.{name}.status"]


def test_settings_that_do_well_are_committed_on_the_device(seen: dict[str, str]) -> None:
    assert _trial("good", seen)["committed"]["target"] == "settings/berlin/1/release"
    force = _force("good", seen)
    assert (force["target"], force["trial_ends_in_s"]) == ("settings/berlin/1/release", None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unstartable", "/no/such/folder"),
        ("reverted", "by hand"),
        ("killed", "ended during the trial"),
    ],
)
def test_settings_that_do_not_leave_the_committed_ones(name: str, why: str, seen: dict[str, str]) -> None:
    assert why in _trial(name, seen)["rejected"]
    force = _force(name, seen)
    assert (force["target"], force["trial_ends_in_s"]) == ("settings/berlin/1/release", None)


def test_systemd_replaces_a_process_that_is_killed_in_a_trial(seen: dict[str, str]) -> None:
    (pid, restarts, barks), (after, more, still) = (seen[f"settings.killed.{w}"].split() for w in ("before", "after"))
    assert (after != pid, int(more) - int(restarts), still) == (True, 1, barks)
