"""A start with models whose trials hang or are killed: what is ready when, and what callers are told meanwhile."""

import http.client
import json
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHIPPED, SHORT_TRIALS, copy_model, starting
from tests.simulators.models import write_onnx_endless

SLOW = QUIET.replace("[selection]", "[selection]\nloads_at_once = 1") + SHORT_TRIALS + "deadline_s = 200.0\n"
LONG_TRIALS = "[trial]\nmeasure_s = 2.0\nmeasure_runs = 10_000_000\nnice = 0\n"
"""None ends before it is stopped or killed, which a busy machine delays."""
EARLY = SLOW + "[limits]\nnotify_within_s = 0.1\n"
GOLDEN = ("--npz", str(SHIPPED / "meter-reader" / "1" / "golden.npz"))
UNTIL_S = 60


def request(daemon, method, path, body=None):
    host, port = daemon.http.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def index(daemon):
    status, _, content = request(daemon, "POST", "/v2/repository/index")
    assert status == 200, content
    return {line["name"]: (line["state"], line.get("reason", "")) for line in json.loads(content)}


def poll(question, tries=UNTIL_S * 50):
    """Return the first answer that is true; nothing tells of these changes."""
    for _ in range(tries):
        if found := question():
            return found
        select.select([], [], [], 0.02)
    raise AssertionError(f"{question} was never true")


def trials(daemon):
    """Return the trial processes of a daemon."""
    with suppress(psutil.Error):
        return [trial for server in psutil.Process(daemon.pid).children() for trial in server.children()]
    return []


@pytest.fixture
def library(tmp_path):
    """Return a model directory: the first model's trial does not end, the others wait for it."""
    folder = tmp_path / "models"
    (folder / "endless").mkdir(parents=True)
    write_onnx_endless(folder / "endless" / "model.onnx")
    for number in range(3):
        copy_model("meter-reader", folder, name=f"meter-{number}")
    return folder


@contextmanager
def killing(daemon):
    """Kill every trial of a daemon as soon as it begins, as an out-of-memory killer may."""
    enough = threading.Event()

    def kill():
        while not enough.wait(0.005):
            for trial in trials(daemon):
                with suppress(psutil.Error):
                    trial.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        enough.set()
        killer.join()


def test_models_whose_trials_were_killed_come_up_without_a_signal(tmp_path):
    with starting(tmp_path, config=QUIET + LONG_TRIALS) as daemon:
        with killing(daemon):
            for model in ("activity", "meter-reader"):
                daemon.wait_logged("model undecided", model=model)
            assert {state for state, _ in index(daemon).values()} <= {"UNAVAILABLE", "LOADING"}
            assert request(daemon, "GET", "/v2/health/ready")[0] == 503
            status, headers, content = request(daemon, "GET", "/v2/models/meter-reader/config")
            assert (status, "retry-after" in headers) == (503, True)
            assert b"undecided" in content or b"is loading" in content
        poll(lambda: [state for state, _ in index(daemon).values()] == ["READY"] * 2)
        assert request(daemon, "GET", "/v2/health/ready")[0] == 200
        assert not [line for line in daemon.lines() if line["event"] == "model refused"]


def test_ready_waits_for_every_model_and_those_that_wait_are_listed(tmp_path, library):
    with starting(tmp_path / "gateway", models=library, config=EARLY) as daemon:
        daemon.wait("READY=1")
        names = {"endless", "meter-0", "meter-1", "meter-2"}
        first = poll(lambda: index(daemon))
        assert first.keys() == names
        assert {first[name] for name in names - {"endless"}} == {("LOADING", "it waits for its trial")}
        with triton.InferenceServerClient(daemon.grpc) as client:
            lines = {line.name: (line.state, line.reason) for line in client.get_model_repository_index().models}
            assert lines.keys() == names
            with pytest.raises(InferenceServerException, match="'endless' is loading: its trial runs") as error:
                client.get_model_metadata("endless")
            assert error.value.status() == "StatusCode.UNAVAILABLE"
            poll(lambda: all(state == "READY" for name, (state, _) in index(daemon).items() if name != "endless"))
            assert index(daemon)["endless"] == ("LOADING", "its trial runs")
            status, headers, content = request(daemon, "GET", "/v2/models/endless")
            assert (status, "retry-after" in headers) == (503, True)
            assert b"is loading: its trial runs" in content
            assert request(daemon, "GET", "/v2/health/ready")[0] == 503
            assert not client.is_server_ready()
            for trial in trials(daemon):
                trial.kill()
            poll(lambda: request(daemon, "GET", "/v2/health/ready")[0] == 200)
            assert client.is_server_ready()
            assert request(daemon, "GET", "/v2/health/live")[0] == 200
        poll(lambda: trials(daemon))  # its next attempt
        assert request(daemon, "GET", "/v2/health/ready")[0] == 200


@pytest.mark.long
def test_ready_may_be_as_soon_as_one_model_serves(tmp_path, library):
    with starting(tmp_path / "gateway", models=library, config=EARLY + 'ready = "first"\n') as daemon:
        daemon.wait("READY=1")
        poll(lambda: request(daemon, "GET", "/v2/health/ready")[0] == 200)
        states = index(daemon)
        assert states["endless"] == ("LOADING", "its trial runs")
        assert "READY" in {state for state, _ in states.values()}


def infer(daemon, model, *options):
    command = [*COMMAND, "infer", model, *GOLDEN, "--url", daemon.http, *options]
    command[0] = sys.executable
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_infer_waits_for_a_model_that_loads_and_not_if_told_so(tmp_path):
    models = tmp_path / "models"
    copy_model("meter-reader", models)
    with starting(tmp_path / "gateway", models=models, config=EARLY.replace(SHORT_TRIALS, LONG_TRIALS)) as daemon:
        trial = poll(lambda: trials(daemon))[0]
        trial.send_signal(signal.SIGSTOP)
        poll(lambda: index(daemon))
        impatient = infer(daemon, "meter-reader", "--wait", "0")
        _, said = impatient.communicate(timeout=UNTIL_S)
        assert impatient.returncode == 1
        assert "UNAVAILABLE: HTTP 503: model 'meter-reader' is loading: its trial runs" in said
        assert "waiting" not in said
        patient = infer(daemon, "meter-reader", "--wait", "300")
        line = patient.stderr.readline()
        assert line == "waiting for model 'meter-reader', at most 300 s: its trial runs\n"
        trial.send_signal(signal.SIGCONT)
        answer, said = patient.communicate(timeout=UNTIL_S)
        assert patient.returncode == 0, said
        assert answer.startswith("meter-reader version 1")


def test_infer_waits_for_a_gateway_that_starts(tmp_path):
    """As in the tutorial: the gateway is started in the background, and the next command asks it at once."""
    copy_model("meter-reader", tmp_path / "models", name="elsewhere")
    socket, config = tmp_path / "h.sock", tmp_path / "edge-gateway.toml"
    config.write_text(f'{QUIET}{SHORT_TRIALS}[grpc]\nlisten = ["127.0.0.1:0"]\n[http]\nlisten = ["unix:{socket}"]\n')
    options = ["--config", str(config), "--models", str(tmp_path / "models"), "--state", str(tmp_path / "state")]
    daemon = subprocess.Popen([*COMMAND, "run", *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        command = [sys.executable, "-m", "gateway", "infer", "elsewhere", *GOLDEN, "--config", str(config)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=UNTIL_S, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("elsewhere version 1")
        assert "from the disk" not in done.stderr
    finally:
        daemon.terminate()
        daemon.communicate(timeout=UNTIL_S)
