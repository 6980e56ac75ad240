"""A daemon that serves what the store commits: with nothing but the disk, together with models added by hand."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http

from gateway.common.store.active import retired, write_active
from gateway.device.agent.control import DaemonRefusedError
from tests.simulators.daemon import ANYWHERE, COMMAND, ROOT, copy_model, golden
from tests.simulators.hammer import hammering
from tests.simulators.signed_device import VARIANT, SignedDevice, index, poisoned

PROFILE = (ROOT / "device_profiles" / "generic-x86.toml").read_text()


@pytest.fixture
def device(tmp_path, state):
    return SignedDevice(tmp_path, state)


def test_signed_releases_serve_without_agent_also_after_a_kill(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    device.store.install("moves", device.publish("activity", owner="other"), VARIANT)
    shutil.rmtree(device.repository.public)
    with device.running() as daemon:
        before = device.control.status()
        daemon.kill()
        daemon.start()
        assert answers(daemon) == ["1"] * 5
        after = device.control.status()
    assert before["instance"] != after["instance"]
    assert {(line["model"], line["state"], line["signed"], line["weight"]) for line in after["models"]} == {
        ("meter-reader", "READY", True, 100),
        ("moves", "READY", True, 100),
    }


def answers(daemon):
    """Return the versions that answered five requests that name none."""
    rows = golden("meter-reader", 1)
    tensor = triton.InferInput(rows.name, list(rows.rows.shape), "FP32")
    tensor.set_data_from_numpy(rows.rows)
    with triton.InferenceServerClient(daemon.grpc) as client:
        return [client.infer("meter-reader", [tensor]).get_response().model_version for _ in range(5)]


def test_the_daemon_asks_no_clock(device):
    """It says 1970: nothing of the repository has begun yet, as on a board without a battery."""
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")  # of the packages that make test installs
    clock = {"LD_PRELOAD": str(library), "FAKETIME": "@1970-01-02 00:00:00", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with device.running(environ=clock) as daemon:
        assert index(daemon) == {("meter-reader", "1"): ("READY", "")}
        assert "1970-01-02" in daemon.log


def test_a_signed_release_that_cannot_be_opened_here_leaves_its_place_to_the_previous_one(device):
    """Committed, signed and whole, but no runtime takes it any more; a later one that it takes is served again."""
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    bad = poisoned(copy_model("meter-reader", device.folder / "bad", version="2"))
    device.store.install("meter-reader", device.repository.add_model(bad), VARIANT)
    with device.running() as daemon:
        assert answers(daemon) == ["1"] * 5
        for again in (daemon.reload, device.control.commit):
            state, reason = index(daemon)["meter-reader", "2"]
            assert state == "UNAVAILABLE"
            assert re.search("onnx-int8.*; the previous release, version 1, serves instead", reason)
            again()
        assert answers(daemon) == ["1"] * 5
        device.store.install("meter-reader", device.publish("meter-reader", "3"), VARIANT)
        device.control.commit()
        assert index(daemon) == {("meter-reader", "3"): ("READY", "")}


def test_what_is_unsigned_is_marked_everywhere(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    copy_model("activity", device.hand)
    with device.running(http=[ANYWHERE]) as daemon:
        assert index(daemon)["activity", "1"] == (
            "READY",
            "unsigned: it is in the model directory and has no signature",
        )
        assert index(daemon)["meter-reader", "1"] == ("READY", "")
        with triton.InferenceServerClient(daemon.grpc) as grpc, triton_http.InferenceServerClient(daemon.http) as http:
            for model, signed in (("meter-reader", "true"), ("activity", "false")):
                config = grpc.get_model_config(model).config
                assert config.parameters["signed"].string_value == signed
                assert http.get_model_config(model)["parameters"]["signed"]["string_value"] == signed
            lines = {line["name"]: line["reason"] for line in http.get_model_repository_index()}
        assert lines["activity"].startswith("unsigned")
        told = device.standings()
        assert (told["meter-reader", "1"]["signed"], told["activity", "1"]["signed"]) == (True, False)


def test_a_model_by_hand_does_not_take_a_slots_name(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    copy_model("meter-reader", device.hand, version="7")
    copy_model("meter-reader", device.hand, version="1")
    copy_model("activity", device.hand)
    with device.running() as daemon:
        lines = index(daemon)
        assert lines["meter-reader", "1"] == ("READY", "")
        state, reason = lines["meter-reader", "7"]
        assert (state, reason) == (
            "UNAVAILABLE",
            "unsigned, and the fleet serves a signed model of this name here; give it another name",
        )
        assert lines["activity", "1"][0] == "READY"
        assert "meter-reader 1 in the model directory: unsigned" in daemon.log
        with triton.InferenceServerClient(daemon.grpc) as client:
            assert client.get_model_config("meter-reader").config.parameters["signed"].string_value == "true"


def test_what_is_unsigned_can_be_forbidden(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    copy_model("activity", device.hand)
    with device.running(more="unsigned = false\n") as daemon:
        state, reason = index(daemon)["activity", "1"]
        assert state == "UNAVAILABLE"
        assert "[fleet] unsigned = true" in reason
        assert index(daemon)["meter-reader", "1"] == ("READY", "")


def test_a_commit_and_a_reload_read_again_what_is_committed(device):
    copy_model("activity", device.hand)
    with device.running() as daemon:
        assert set(index(daemon)) == {("activity", "1")}
        device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
        device.control.commit()
        assert index(daemon)["meter-reader", "1"] == ("READY", "")
        assert set(answers(daemon)) == {"1"}
        device.store.install("meter-reader", device.publish("meter-reader", "2"), VARIANT)
        daemon.reload()
        assert index(daemon)["meter-reader", "2"] == ("READY", "")
        assert ("meter-reader", "1") not in index(daemon)
        write_active(device.store.active_file, retired(device.store.active, "meter-reader"))
        device.control.commit()
        assert set(index(daemon)) == {("activity", "1")}


def test_a_version_given_by_hand_makes_way_for_the_signed_one_under_load(device):
    """Also where it is newer: the fleet says what serves."""
    copy_model("meter-reader", device.hand, version="9")
    with device.running(http=[ANYWHERE]) as daemon, hammering(daemon, "meter-reader") as hammer:
        device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
        device.control.commit()
        hammer.wait(lambda one: one.versions[-1] == "1")
        hammer.wait_answers()
        assert device.standings()["meter-reader", "9"]["state"] == "UNAVAILABLE"
    assert hammer.failures == []


def test_a_model_of_the_fleet_can_be_unloaded_and_loaded_by_name(device):
    """`[models] control`: loading again brings the signed release, not what lies under its name."""
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    copy_model("meter-reader", device.hand, version="7")
    config = device.config() + "[models]\ncontrol = true\n"
    with device.running(config=config) as daemon, triton.InferenceServerClient(daemon.grpc) as client:
        client.unload_model("meter-reader")
        assert not client.is_model_ready("meter-reader")
        with pytest.raises(Exception, match="give it another name"):
            client.load_model("meter-reader")
        assert client.is_model_ready("meter-reader", "1")
        assert not client.is_model_ready("meter-reader", "7")


def test_profiles_of_the_fleet_join_the_shipped_ones_at_a_start(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    lab = PROFILE.replace('"generic-x86"', '"lab"').replace("priority = 0", "priority = 900")
    device.repository.add_file("profiles/lab.toml", lab.encode())
    with device.running() as daemon:
        before = device.control.status()
        assert (before["profile"], before["restart"]) != ("lab", "")
        device.store.install_file("profiles/lab.toml")
        device.control.commit()
        assert "profiles/lab.toml; restart edge-gateway" in device.control.status()["restart"]
        assert daemon.stop() == 0
    with device.running():
        after = device.control.status()
    assert (after["profile"], after["restart"]) == ("lab", "")


def test_commands_tell_of_signed_releases_too(device):
    device.store.install("meter-reader", device.publish("meter-reader"), VARIANT)
    copy_model("activity", device.hand)
    with device.running() as daemon:
        options = ["--config", str(daemon.config_file), "--models", str(device.hand)]
        listed = command("models", "--json", *options)
        assert {line["name"]: line["signed"] for line in listed["models"]} == {"meter-reader": True, "activity": False}
        explained = command("explain", "meter-reader", "--json", *options, "--state", str(device.state))
    assert (explained["signed"], explained["chosen"]) == (True, "onnx-int8")


def command(*arguments):
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_store_that_is_named_and_not_there_is_no_fleet(device, tmp_path):
    """Every device that was installed and never bootstrapped is in this state."""
    copy_model("activity", device.hand)
    with device.running(tmp_path / "nowhere") as daemon:
        assert index(daemon) == {("activity", "1"): ("READY", "")}
        assert device.control.status()["problem"] == ""


def test_a_device_of_no_fleet_says_so(device):
    activation = device.store.fetch("meter-reader", device.publish("meter-reader"), VARIANT)
    config = device.config().replace(f'store = "{device.store.folder}"', 'store = ""')
    copy_model("activity", device.hand)
    with device.running(config=config) as daemon:
        with pytest.raises(DaemonRefusedError, match=r"set \[fleet\] store"):
            device.control.load(activation)
        assert index(daemon) == {("activity", "1"): ("READY", "")}
    assert not device.socket.exists()
