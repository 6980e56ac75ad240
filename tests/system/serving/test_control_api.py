"""The control API of a real daemon: versions loaded, shared, compared and let go while callers never notice."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from gateway.device.agent.control import DaemonRefusedError
from tests.simulators import modules
from tests.simulators.daemon import ANYWHERE, copy_model
from tests.simulators.hammer import hammering
from tests.simulators.signed_device import VARIANT, SignedDevice, index, poisoned

NOBODY = 65534


@pytest.fixture
def device(tmp_path, state):
    made = SignedDevice(tmp_path, state)
    made.store.install("meter-reader", made.publish("meter-reader"), VARIANT)
    return made


def test_an_update_from_load_to_unload_loses_no_request(device):
    old = device.store.active.slots["meter-reader"]
    new = device.store.fetch("meter-reader", device.publish("meter-reader", "2"), VARIANT)
    with device.running(http=[ANYWHERE]) as daemon, hammering(daemon, "meter-reader") as hammer:
        loaded = device.control.load(new)
        assert (loaded["variant"], loaded["accelerator"]) == ("onnx-int8", "cpu")
        assert loaded["measured"]["p50_us"] > 0
        assert device.standings()["meter-reader", "2"]["state"] == "LOADED"
        assert ("meter-reader", "2") not in index(daemon)
        hammer.wait_answers()
        assert set(hammer.versions) == {"1"}

        device.control.route("meter-reader", {"1": 95, "2": 5}, shadow="1", lease_s=30)
        hammer.wait(lambda one: "2" in one.versions)
        told = device.standings()
        assert (told["meter-reader", "1"]["weight"], told["meter-reader", "2"]["weight"]) == (95, 5)
        hammer.wait(lambda _: device.control.statistics("meter-reader")["1"]["compared"] > 0)
        counted = device.control.statistics("meter-reader")
        assert counted["1"]["disagreed"] == 0
        assert (counted["2"]["failed_runs"], counted["2"]["signed"], counted["2"]["weight"]) == (0, True, 5)
        assert counted["2"]["requests"] > 0

        device.control.route("meter-reader", {"2": 100}, lease_s=30)
        hammer.wait(lambda one: one.versions[-20:].count("2") == 20)
        device.store.commit(new)
        device.control.commit()
        device.control.unload("meter-reader", "1", 5)
        hammer.wait_answers()
        assert index(daemon) == {("meter-reader", "2"): ("READY", "")}
        with pytest.raises(DaemonRefusedError) as refused:
            device.control.unload("meter-reader", "2", 5)
        assert refused.value.fault == "DENIED"
    assert hammer.failures == []
    assert old.version == "1"


def test_a_golden_set_is_replayed_on_what_is_loaded_only(device):
    new = device.store.fetch("meter-reader", device.publish("meter-reader", "2"), VARIANT)
    with device.running():
        with pytest.raises(DaemonRefusedError, match="is not loaded for an update") as refused:
            device.control.replay("meter-reader", "1")
        assert refused.value.fault == "NOT_FOUND"
        device.control.load(new)
        found = device.control.replay("meter-reader", "2")
        assert (found["rows"], found["passed"]) == (8, True)
        assert "it answers its golden set: agreement" in found["reason"]
        golden = next((device.store.folder / "releases").rglob("golden*.npz"))
        for file in (device.store.folder / "releases").rglob(golden.name):
            file.chmod(0o600)
            file.write_bytes(b"something else")
        with pytest.raises(DaemonRefusedError, match="changed since it was read"):
            device.control.replay("meter-reader", "2")


def test_a_lease_that_nobody_renews_gives_all_back(device):
    new = device.store.fetch("meter-reader", device.publish("meter-reader", "2"), VARIANT)
    with device.running(http=[ANYWHERE]) as daemon, hammering(daemon, "meter-reader") as hammer:
        device.control.load(new)
        device.control.route("meter-reader", {"2": 100}, lease_s=0.5)
        hammer.wait(lambda one: one.versions[-1] == "2")
        daemon.wait_logged("the route's lease ran out")
        hammer.wait(lambda one: one.versions[-20:].count("1") == 20)
        device.control.unload("meter-reader", "2", 1)
    assert hammer.failures == []


def test_a_kill_in_the_middle_serves_what_is_committed(device):
    new = device.store.fetch("meter-reader", device.publish("meter-reader", "2"), VARIANT)
    with device.running() as daemon:
        device.control.load(new)
        device.control.route("meter-reader", {"2": 100}, lease_s=60)
        daemon.kill()
        daemon.start()
        assert index(daemon) == {("meter-reader", "1"): ("READY", "")}
        device.store.commit(new)
        daemon.kill()
        daemon.start()
        assert index(daemon) == {("meter-reader", "2"): ("READY", "")}


def test_a_plan_needs_only_the_manifest_and_says_why_not(device):
    planned = device.store.fetch("meter-reader", device.publish("meter-reader", "2"), ())
    with device.running():
        lines = {line["variant"]: line for line in device.control.plan(planned)}
        assert lines["onnx-int8"]["rank"] == 1
        assert lines["onnx-int8"]["eligible"]
        assert len(lines) >= 7
        assert all(line["reason"] for line in lines.values())
        with pytest.raises(DaemonRefusedError, match="no variant of it was installed"):
            device.control.load(planned)


def test_what_is_not_signed_is_not_loaded(device, tmp_path):
    home = tmp_path / "forger"
    home.mkdir()
    forger = SignedDevice(home, device.state)
    theirs = forger.store.fetch("meter-reader", forger.publish("meter-reader", "2"), VARIANT)
    for part in ("blobs", "releases"):
        shutil.copytree(forger.store.folder / part, device.store.folder / part, dirs_exist_ok=True)
    with device.running():
        for ask in (device.control.plan, device.control.load):
            with pytest.raises(DaemonRefusedError, match="forged") as refused:
                ask(theirs)
            assert refused.value.fault == "INVALID"
        assert set(device.standings()) == {("meter-reader", "1")}


def test_a_release_that_fails_its_golden_set_is_refused_with_the_reason(device):
    folder = copy_model("meter-reader", device.folder / "bad", version="3")
    path = device.repository.add_model(poisoned(folder))
    bad = device.store.fetch("meter-reader", path, VARIANT)
    with device.running(http=[ANYWHERE]) as daemon, hammering(daemon, "meter-reader") as hammer:
        with pytest.raises(DaemonRefusedError, match="onnx-int8"):
            device.control.load(bad)
        hammer.wait_answers()
        assert set(device.standings()) == {("meter-reader", "1")}
    assert hammer.failures == []


@pytest.fixture
def open_folder():
    """Yield a folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_only_those_who_may_command_by_a_real_curl(device, open_folder):
    curl = shutil.which("curl")
    assert curl, "curl is one of the packages that make test installs"
    device.socket = open_folder / "control.sock"
    config = device.config().replace("[control]\n", "[control]\nunix_socket_mode = 0o666\n")
    with device.running(config=config) as daemon:
        command = [curl, "-sS", "--unix-socket", str(device.socket), "http://gateway/v1/status"]
        ours, theirs = (
            json.loads(subprocess.run(command, check=True, capture_output=True, user=user, extra_groups=[]).stdout)
            for user in (None, NOBODY)
        )
        assert ours["pid"] == daemon.pid
        assert ours["rss_bytes"] > 1 << 20
        assert (theirs["status"], theirs["fault"]) == (403, "DENIED")
        daemon.wait_logged("command GET /v1/status by nobody (uid 65534", level="warning")


def test_an_idle_daemon_pays_nothing_for_it(device):
    """Neither litestar is loaded before a client connects nor, whatever was verified, TUF's library ever."""
    options = {"command": modules.COMMAND}
    with device.running(**options) as daemon:
        loaded = {name.partition(".")[0] for name in modules.modules(daemon)}
        assert loaded & {"litestar", "uvicorn", "msgspec", "tuf", "securesystemslib", "cryptography"} == set()
        assert device.control.inventory()["arch"]
        assert set(device.control.vitals()) >= {"temperatures_c", "memory_available_bytes"}
        loaded = {name.partition(".")[0] for name in modules.modules(daemon)}
        assert "litestar" in loaded
        assert loaded & {"tuf", "securesystemslib", "cryptography"} == set()
