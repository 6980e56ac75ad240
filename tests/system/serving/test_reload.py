"""SIGHUP: models appear, change and go while callers keep asking; a broken configuration changes nothing."""

import os
import select
import shutil
import signal
from contextlib import suppress

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators import models
from tests.simulators.daemon import QUIET, SHORT_TRIALS, WAIT_S, Daemon, copy_model, running, starting
from tests.simulators.hammer import hammering

BASE = QUIET + SHORT_TRIALS


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "models"
    copy_model("meter-reader", folder)
    return folder


@pytest.fixture
def gateway(library, tmp_path, state):
    with running(tmp_path / "gateway", models=library, state=state) as daemon:
        yield daemon


def opened_by_its_reader(pipe):
    """Open a named pipe for writing, once it has a reader."""
    for _ in range(int(WAIT_S / 0.02)):
        with suppress(OSError):  # ENXIO: no reader yet
            return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
        select.select([], [], [], 0.02)
    raise AssertionError(f"{pipe} has no reader")


def test_a_hangup_during_the_start_is_a_reload_after_it(library, tmp_path, state):
    daemon = Daemon(tmp_path, models=library, state=state, config=BASE)
    daemon.config_file.unlink()
    os.mkfifo(daemon.config_file)
    try:
        daemon.start(ready=False)
        with opened_by_its_reader(daemon.config_file) as file:  # it reads its configuration now
            (tmp_path / "new").write_text(BASE)
            (tmp_path / "new").replace(daemon.config_file)
            daemon.signal(signal.SIGHUP)
            file.write(BASE)
        daemon.wait_logged("credentials reloaded")
        assert daemon.stop() == 0
    finally:
        daemon.kill()


def index(daemon):
    with triton.InferenceServerClient(daemon.grpc) as client:
        return {
            (line.name, line.version): (line.state, line.reason) for line in client.get_model_repository_index().models
        }


def test_a_new_version_takes_over_only_after_its_gate(gateway, library):
    with hammering(gateway, "meter-reader") as hammer:
        copy_model("meter-reader", library, version="2")
        gateway.reload()
        hammer.wait(lambda one: one.versions[-1] == "2")
        hammer.wait_answers()
        shutil.rmtree(library / "meter-reader" / "2")
        gateway.reload()
        hammer.wait(lambda one: one.versions[-1] == "1")
    assert hammer.failures == []
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}


def test_a_new_version_that_fails_its_gate_never_serves(gateway, library):
    with hammering(gateway, "meter-reader") as hammer:
        version = copy_model("meter-reader", library, version="2")
        (version / "onnx-int8" / "model.onnx").write_bytes(b"")
        gateway.reload()
        hammer.wait_answers()
    assert hammer.failures == []
    assert set(hammer.versions) == {"1"}
    states = index(gateway)
    assert states["meter-reader", "1"] == ("READY", "")
    assert states["meter-reader", "2"][0] == "UNAVAILABLE"


def test_a_version_that_is_changed_in_place(gateway, library):
    """The manifest gains a label: another digest, another servable, no request lost."""
    manifest = library / "meter-reader" / "1" / "manifest.toml"
    with hammering(gateway, "meter-reader") as hammer:
        manifest.write_text(manifest.read_text().replace('labels = ["0"', 'labels = ["zero"'))
        gateway.reload()
        hammer.wait_answers()
    assert hammer.failures == []
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}
    chosen = [line for line in gateway.lines() if line["event"] == "variant chosen"]
    assert len(chosen) == 2


def test_a_version_broken_in_place_goes_on_as_it_was(gateway, library):
    artifact = library / "meter-reader" / "1" / "onnx-int8" / "model.onnx"
    with hammering(gateway, "meter-reader") as hammer:
        os.truncate(artifact, 10)
        gateway.reload()
        hammer.wait_answers()
    assert hammer.failures == []
    state, reason = index(gateway)["meter-reader", "1"]
    assert state == "READY"
    assert "a newer file is refused" in reason


def test_a_model_appears_and_goes_beside_one_under_load(gateway, library):
    with hammering(gateway, "meter-reader") as hammer:
        for _ in range(3):
            copy_model("activity", library)
            gateway.reload()
            assert index(gateway)["activity", "1"] == ("READY", "")
            shutil.rmtree(library / "activity")
            gateway.reload()
            assert ("activity", "1") not in index(gateway)
        hammer.wait_answers()
    assert hammer.failures == []


def test_many_hangups_at_once_end_in_one_state(gateway, library):
    with hammering(gateway, "meter-reader") as hammer:
        copy_model("activity", library)
        for _ in range(20):
            gateway.signal(signal.SIGHUP)
        gateway.reload()
        hammer.wait_answers()
    assert hammer.failures == []
    assert index(gateway) == {("activity", "1"): ("READY", ""), ("meter-reader", "1"): ("READY", "")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models]\ncontrol = 3\n", "edge-gateway.toml:2: models.control: must be true or false"),
        ("[[[", "not valid TOML"),
        ("[nobody]\n", "nobody"),
        ('[log]\nlevel = "loud"\n', "log.level"),
    ],
)
def test_a_broken_configuration_leaves_the_old_one_in_force(gateway, text, said):
    gateway.config_file.write_text(text)
    gateway.reload()
    line = gateway.wait_logged("reload refused; the old configuration stays in force")
    assert said in line["problem"]
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}


def test_files_of_conf_d_are_read_again(gateway):
    more = gateway.config_file.with_name("conf.d") / "10-site.toml"
    more.parent.mkdir()
    more.write_text('[log]\nlevel = "loud"\n')
    gateway.reload()
    assert "conf.d/10-site.toml:2: log.level" in gateway.wait_logged("reload refused")["problem"]
    more.write_text("[grpc]\nmax_connections = 7\n")
    gateway.reload()
    assert gateway.wait_logged("these settings wait for a restart")["settings"] == "grpc"
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}


def test_a_configuration_that_is_gone_leaves_the_old_one_in_force(gateway):
    gateway.config_file.unlink()
    gateway.reload()
    assert "cannot be read" in gateway.wait_logged("reload refused")["problem"]
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}


def test_a_model_directory_that_is_gone_leaves_the_models_in_place(gateway, library):
    library.rename(library.with_name("away"))
    gateway.reload()
    assert "does not exist" in gateway.wait_logged("reload refused")["problem"]
    assert index(gateway) == {("meter-reader", "1"): ("READY", "")}


def test_a_refused_reload_takes_nothing_over_of_the_new_configuration(gateway, library):
    library.rename(library.with_name("away"))
    gateway.config_file.write_text(f"{BASE}[models]\ncontrol = true\n")
    gateway.reload()
    gateway.wait_logged("reload refused; the old configuration stays in force")
    library.with_name("away").rename(library)
    with triton.InferenceServerClient(gateway.grpc) as client, pytest.raises(InferenceServerException, match="control"):
        client.load_model("meter-reader")


def test_what_waits_for_a_restart_is_named(gateway):
    gateway.config_file.write_text(f'{BASE}[limits]\nqueue_requests = 3\n[log]\nlevel = "debug"\n')
    gateway.reload()
    assert gateway.wait_logged("these settings wait for a restart")["settings"] == "limits"


def test_a_hangup_while_it_starts_is_heeded_once_it_runs(tmp_path):
    """A model that never ends holds the start up, so that the signal surely comes before it is over."""
    slow = tmp_path / "slow"
    copy_model("meter-reader", slow)
    (slow / "endless").mkdir()
    models.write_onnx_endless(slow / "endless" / "model.onnx")
    config = f"{QUIET}[trial]\ndeadline_s = 3\nmeasure_s = 0.02\nnice = 0\n"
    with starting(tmp_path / "slow-gateway", models=slow, state=tmp_path / "state", config=config) as daemon:
        daemon.wait_logged("listening", protocol="grpc")
        daemon.signal(signal.SIGHUP)
        daemon.wait("READY=1")
        assert not any("RELOADING=1" in said for said in daemon.heard)
        daemon.wait("RELOADING=1")
        daemon.wait("READY=1")
        assert index(daemon)["meter-reader", "1"] == ("READY", "")


def test_told_to_stop_while_it_starts_it_does_so_at_once(tmp_path):
    endless = tmp_path / "models" / "endless"
    endless.mkdir(parents=True)
    models.write_onnx_endless(endless / "model.onnx")
    with starting(tmp_path / "gateway", models=endless.parent) as daemon:
        daemon.wait_logged("listening", protocol="grpc")
        assert daemon.stop(timeout_s=20) == 0  # its trial's deadline is 60 s
        assert not any("READY=1" in said for said in daemon.heard)
