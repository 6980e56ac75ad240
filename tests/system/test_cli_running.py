"""`models`, `explain` and `infer` ask the gateway that runs: by the configuration, by --url, with TLS and tokens."""

import json
import os
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest

from gateway.common.domain.errors import UnreachableError
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys
from tests.simulators.authority import Authority
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHIPPED, SHORT_TRIALS, copy_model, running

BASE = QUIET + SHORT_TRIALS
GOLDEN = str(SHIPPED / "meter-reader/1/golden.npz")
INFER = ["infer", "elsewhere", "--npz", GOLDEN, "--output", "json"]


def cli(*arguments, config=None):
    options = [] if config is None else ["--config", str(config)]
    environ = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([*COMMAND, *arguments, *options], cwd=ROOT, env=environ, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def told(*arguments, config):
    code, said, errors = cli(*arguments, "--json", config=config)
    assert code == 0, errors
    return json.loads(said)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a folder with a model that only the daemon has, and one that it refuses."""
    folder = tmp_path_factory.mktemp("library")
    copy_model("meter-reader", folder, name="elsewhere")
    (copy_model("activity", folder) / "golden.npz").unlink()
    return folder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, state, library):
    folder = tmp_path_factory.mktemp("g")
    config = f'{BASE}[http]\nlisten = ["unix:{folder}/h.sock"]\n'
    with running(folder, models=library, state=state, config=config, http=()) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def quiet(tmp_path_factory, state, library):
    """Yield a daemon without HTTP: only its control socket tells what it serves."""
    folder = tmp_path_factory.mktemp("c")
    config = f'{BASE}[http]\nlisten = ["off"]\n[control]\nlisten = "unix:{folder}/c.sock"\n'
    with running(folder, models=library, state=state, config=config, http=()) as daemon:
        yield daemon


@pytest.fixture
def nothing(tmp_path):
    """Return the configuration of a gateway that does not run."""
    file = tmp_path / "edge.toml"
    file.write_text(f'[http]\nlisten = ["unix:{tmp_path}/h.sock"]\n[control]\nlisten = "unix:{tmp_path}/c.sock"\n')
    return file


@pytest.mark.parametrize("server", ["gateway", "quiet"])
def test_models_are_those_that_are_served(server, request):
    daemon = request.getfixturevalue(server)
    found = told("models", config=daemon.config_file)
    assert found["asked"] == f"unix:{daemon.folder}/{'h' if server == 'gateway' else 'c'}.sock"
    refused, ready = sorted(found["models"], key=lambda one: one["name"])
    assert (refused["name"], refused["state"], refused["variant"]) == ("activity", "UNAVAILABLE", "")
    assert "golden.npz is missing" in refused["reason"]
    assert (ready["name"], ready["state"], ready["accelerator"]) == ("elsewhere", "READY", "cpu")
    assert ready["variant"]
    assert ready["level"] == "proven" or server == "quiet"
    assert "passed here" in ready["why"] or server == "quiet"  # the control socket does not tell
    _, said, _ = cli("models", config=daemon.config_file)
    for text in (found["asked"], "UNAVAILABLE", "golden.npz is missing", ready["variant"]):
        assert text in said


def test_offline_is_the_disk(gateway):
    found = told("models", "--offline", config=gateway.config_file)
    assert (found["asked"], found["why_not"]) == (None, "--offline was given")
    assert [one["name"] for one in found["models"]] == ["activity", "meter-reader"]


def test_without_a_gateway_it_says_that_this_is_the_disk(nothing):
    found = told("models", config=nothing)
    assert found["asked"] is None
    assert f"no gateway answers at unix:{nothing.parent}/h.sock" in found["why_not"]
    code, said, _ = cli("models", config=nothing)
    assert (code, f"from the disk: no gateway answers at unix:{nothing.parent}/h.sock" in said) == (0, True)


def test_explain_says_what_serves_now(gateway, quiet, nothing):
    options = ("explain", "activity", "--no-measure")
    for daemon, name in ((gateway, "h.sock"), (quiet, "c.sock")):
        _, said, _ = cli(*options, config=daemon.config_file)
        assert f"serving now at unix:{daemon.folder}/{name}, version 1: UNAVAILABLE (" in said
        (served,) = told(*options, config=daemon.config_file)["serving"]["models"]
        assert served["state"] == "UNAVAILABLE"
    assert "does not know this model" in cli("explain", "meter-reader", "--no-measure", config=gateway.config_file)[1]
    assert "from the disk: no gateway answers" in cli(*options, config=nothing)[1]


def test_explain_of_another_gateway_needs_no_model_here(gateway, nothing):
    url = ("--url", f"unix:{gateway.folder}/h.sock")
    code, said, errors = cli("explain", "elsewhere", *url, config=nothing)
    assert (code, errors) == (0, "")
    assert said.startswith(f"serving now at unix:{gateway.folder}/h.sock, version 1: READY: ")
    code, said, _ = cli("explain", "activity", *url, "--json", config=nothing)
    assert (code, json.loads(said)["serving"]["models"][0]["state"]) == (1, "UNAVAILABLE")
    code, said, _ = cli("explain", "nowhere", *url, config=nothing)
    assert (code, "does not know this model" in said) == (1, True)


@contextmanager
def _changing(folder):
    """Change a folder all the time, so that the gateway does not read it yet."""
    over = threading.Event()

    def change():
        while not over.wait(0.2):
            (folder / "changing").touch()
            (folder / "changing").unlink()

    changes = threading.Thread(target=change)
    changes.start()
    try:
        yield
    finally:
        over.set()
        changes.join()


@pytest.mark.parametrize("named", ["configuration", "command line"])
def test_a_model_that_was_copied_a_moment_ago_is_waited_for(tmp_path, state, named):
    """The gateway reads a folder once nothing has changed in it for a while."""
    folder = tmp_path / "models"
    folder.mkdir()
    place = f'[models]\ndir = "{folder}"\n' if named == "configuration" else ""
    config = f'{BASE}{place}[http]\nlisten = ["unix:{tmp_path}/h.sock"]\n'
    with running(tmp_path, models=folder, state=state, config=config, http=()) as daemon:
        with _changing(folder):
            copy_model("meter-reader", folder)
            asking = [*COMMAND, "infer", "meter-reader", *INFER[2:], "--config", daemon.config_file]
            asked = subprocess.Popen(asking, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            line = asked.stderr.readline()
        said, errors = asked.communicate()
        assert "the gateway reads its models" in line, line + errors
        assert (asked.returncode, json.loads(said or "{}").get("model_name")) == (0, "meter-reader"), errors
        code, _, errors = cli("infer", "/[a-", *INFER[2:], config=daemon.config_file)
        assert (code, "has no model '/[a-'; it has meter-reader" in errors) == (1, True), errors


class Mute(socketserver.BaseRequestHandler):
    """A server that accepts and says nothing."""

    said = b""

    def handle(self):
        self.request.sendall(self.said)
        self.server.ended.wait()


class Drip(Mute):
    """A server whose answer never ends, a byte at a time."""

    said = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"

    def handle(self):
        self.request.sendall(self.said)
        with suppress(OSError):
            while not self.server.ended.wait(0.1):
                self.request.sendall(b"[")


class Other(socketserver.StreamRequestHandler):
    """A server of JSON that is no gateway. It reads the whole request: one without a body, or its head."""

    said = b'[{"name": "elsewhere"}]'

    def handle(self):
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + self.said)


class Older(Other):
    """A server of JSON whose objects lack what is looked for."""

    said = b"{}"


@contextmanager
def serving(handler, path):
    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads, ended = True, threading.Event()

    with Server(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("asked", [["models"], ["explain", "meter-reader", "--no-measure"], INFER])
@pytest.mark.parametrize("handler", [Other, Older])
def test_what_listens_and_is_no_gateway_is_not_passed_over(nothing, asked, handler):
    with serving(handler, nothing.parent / "h.sock"):
        code, _, errors = cli(*asked, config=nothing)
        assert (code, errors.count("\n")) == (3, 1), errors
        assert "gateway" in errors
        assert cli("models", "--offline", config=nothing)[0] == 0


@pytest.mark.parametrize("handler", [Mute, Drip])
def test_a_gateway_that_hangs_is_waited_for_within_a_bound(tmp_path, handler):
    place = GatewayAddress(unix=str(tmp_path / "h.sock"))
    late = pytest.raises(UnreachableError, match="did not answer in time")
    with serving(handler, place.unix), GatewayClient(place, Keys(), 0.5) as client, late:
        client.exchange("GET", "/v2/health/live")


def test_a_hung_gateway_is_not_passed_over(nothing):
    with serving(Mute, nothing.parent / "h.sock"):
        code, said, errors = cli("models", config=nothing)
    assert (code, said) == (3, "")
    assert "it did not answer in time; see its log, or try again; or look at the disk only, with --offline" in errors


def test_infer_is_answered_by_the_gateway_that_runs(gateway, nothing):
    code, said, errors = cli(*INFER, config=gateway.config_file)
    assert (code, errors) == (0, "")
    assert json.loads(said)["model_name"] == "elsewhere"
    assert cli(*INFER, "--offline", config=gateway.config_file)[0] == 2
    code, _, errors = cli("infer", "meter-reader", "--npz", GOLDEN, config=nothing)
    said = f"answered in this process, from the disk: no gateway answers at unix:{nothing.parent}/h.sock: "
    assert (code, errors.startswith(said)) == (0, True), errors


# ---- TLS and tokens --------------------------------------------------------------------------------------------------
AUTHORITY, CLIENTS = Authority(), Authority()


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    folder = AUTHORITY.write(tmp_path_factory.mktemp("pems"))
    (folder / "clients.pem").write_bytes(CLIENTS.pem)
    certificate, key = CLIENTS.issue("me")
    (folder / "me.pem").write_bytes(certificate)
    (folder / "me.key").write_bytes(key)
    (folder / "tokens").write_text("me right\n")
    (folder / "right").write_text("right\n")
    (folder / "wrong").write_text("wrong\n")
    (folder / "empty").write_text("\n")
    return folder


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, state, library, pems):
    config = f'{BASE}[tls]\ncert = "{pems}/cert.pem"\nkey = "{pems}/key.pem"\n[auth]\ntokens_file = "{pems}/tokens"\n'
    with running(tmp_path_factory.mktemp("guarded"), models=library, state=state, config=config) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mutual(tmp_path_factory, state, library, pems):
    config = f'{BASE}[tls]\ncert = "{pems}/cert.pem"\nkey = "{pems}/key.pem"\nclient_ca = "{pems}/clients.pem"\n'
    with running(tmp_path_factory.mktemp("mutual"), models=library, state=state, config=config) as daemon:
        yield daemon


def port(daemon):
    return daemon.http.rpartition(":")[2]


def test_infer_over_tls_with_a_token(guarded, pems):
    url = f"https://localhost:{port(guarded)}"
    code, said, errors = cli(*INFER, "--url", url, "--ca", f"{pems}/ca.pem", "--token-file", f"{pems}/right")
    assert (code, json.loads(said)["model_name"]) == (0, "elsewhere"), errors


@pytest.mark.parametrize(
    ("url", "options", "code", "said"),
    [
        (
            "https://localhost:{}",
            (),
            3,
            "its certificate is not trusted (unable to get local issuer certificate); name",
        ),
        ("https://127.0.0.1:{}", ("--ca", "ca.pem"), 3, "ask it by a name that its certificate lists"),
        ("http://localhost:{}", (), 3, "write https:// where it speaks TLS"),
        (
            "https://localhost:{}",
            ("--ca", "ca.pem"),
            1,
            "a token is required: send 'Authorization: Bearer TOKEN' (EG-501); name",
        ),
        ("https://localhost:{}", ("--ca", "ca.pem", "--token-file", "wrong"), 1, "unknown token"),
        ("https://localhost:{}", ("--ca", "ca.pem", "--token-file", "empty"), 2, "holds no token"),
        ("https://localhost:{}", ("--ca", "tokens"), 2, "--ca, --cert and --key take PEM files"),
        ("https://localhost:{}", ("--key", "me.key"), 2, "--key needs --cert"),
        ("https://no such host:{}", (), 2, "is no gateway's address"),
        ("ftp://localhost:{}", (), 2, "is no gateway's address"),
        ("https://localhost:port{}", (), 2, "is no address"),
    ],
)
def test_what_goes_wrong_is_said_with_its_remedy(guarded, pems, url, options, code, said):  # noqa: PLR0917  a table
    named = [option if option.startswith("--") else f"{pems}/{option}" for option in options]
    found, _, errors = cli("models", "--url", url.format(port(guarded)), *named)
    assert (found, said in errors) == (code, True), errors
    assert errors.count("\n") == 1


def test_https_where_there_is_no_tls(tmp_path, state, library):
    with running(tmp_path, models=library, state=state, config=BASE) as daemon:
        code, _, errors = cli(*INFER, "--url", f"https://localhost:{port(daemon)}")
    assert (code, "it does not speak TLS" in errors) == (3, True), errors


def test_a_client_certificate(mutual, pems):
    url = ("--url", f"https://localhost:{port(mutual)}", "--ca", f"{pems}/ca.pem")
    assert cli(*INFER, *url, "--cert", f"{pems}/me.pem", "--key", f"{pems}/me.key")[0] == 0
    code, _, errors = cli(*INFER, *url)
    assert (code, "it may want a certificate: --cert FILE --key FILE" in errors) == (3, True), errors


def test_the_gateway_of_this_device_is_known_by_the_certificate_that_is_configured(guarded, mutual, pems, tmp_path):
    """Its name is localhost's at most, and its authority is not the system's."""
    file = tmp_path / "edge.toml"
    tls = f'[tls]\ncert = "{pems}/cert.pem"\nkey = "{pems}/key.pem"\n'
    control = f'[control]\nlisten = "unix:{tmp_path}/c.sock"\n'  # no other gateway of this machine
    file.write_text(f'[http]\nlisten = ["127.0.0.1:{port(guarded)}"]\n{tls}{control}')
    found = told("models", "--token-file", f"{pems}/right", config=file)
    assert found["asked"] == f"https://127.0.0.1:{port(guarded)}"
    other = Authority().write(tmp_path / "other")
    file.write_text(file.read_text().replace(f"{pems}/cert.pem", f"{other}/cert.pem"))
    code, _, errors = cli("models", "--token-file", f"{pems}/right", config=file)
    assert (code, "its certificate is not trusted" in errors) == (3, True), errors


def test_another_server_is_no_gateway(tmp_path):
    (tmp_path / "index.html").write_text("hello")
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        where = server.stdout.readline().decode().split("port ")[1].split()[0]
        code, _, errors = cli("models", "--url", f"127.0.0.1:{where}")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    assert (code, "is this address a gateway's?" in errors) == (3, True), errors
