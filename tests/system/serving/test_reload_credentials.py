"""SIGHUP rereads tokens, certificates and client authorities.

Tokens count on open connections, too, certificates from the next handshake on. A set that cannot be used changes
nothing and is named in the log.
"""

import http.client
import json
import queue
import re
import signal
import ssl
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.simulators import models
from tests.simulators.authority import Authority
from tests.simulators.daemon import QUIET, SHORT_TRIALS, WAIT_S, golden, running
from tests.simulators.operator import until

BASE = QUIET + SHORT_TRIALS
GOLDEN = golden("activity", 1)
OLD, NEW = {"authorization": "Bearer old-secret"}, {"authorization": "Bearer new-secret"}
UNKNOWN = "unknown token; ask the operator for one of tokens_file (EG-502)"


@pytest.fixture
def tokens(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("camera old-secret\n")
    return file


@pytest.fixture
def gateway(tmp_path, state, tokens):
    config = f'{BASE}[auth]\ntokens_file = "{tokens}"\n'
    with running(tmp_path / "gateway", state=state, config=config) as daemon:
        yield daemon


def motion():
    tensor = triton.InferInput(GOLDEN.name, list(GOLDEN.rows.shape), "FP32")
    tensor.set_data_from_numpy(GOLDEN.rows)
    return [tensor]


def ask_http(connection, headers):
    connection.request("GET", "/v2/models/activity", headers=headers)
    response = connection.getresponse()
    response.read()
    return response.status, connection.sock


def ask_index(connection, headers):
    connection.request("POST", "/v2/repository/index", headers=headers)
    return {line["name"]: line["state"] for line in json.load(connection.getresponse())}


def test_tokens_count_at_once_on_connections_that_are_open(gateway, tokens):
    http_connection = http.client.HTTPConnection(gateway.http, timeout=WAIT_S)
    with triton.InferenceServerClient(gateway.grpc) as client:
        assert client.infer("activity", motion(), headers=OLD)
        status, first = ask_http(http_connection, OLD)
        assert status == 200
        tokens.write_text("camera new-secret\n")
        gateway.reload()
        with pytest.raises(InferenceServerException, match=re.escape(UNKNOWN)):
            client.infer("activity", motion(), headers=OLD)
        assert client.infer("activity", motion(), headers=NEW)
    assert ask_http(http_connection, OLD) == (401, first)
    assert ask_http(http_connection, NEW) == (200, first)
    http_connection.close()
    line = gateway.wait_logged("credentials reloaded")
    assert line["changed"] == "tokens (1 added, 1 revoked)"


def test_a_token_is_revoked_at_once_while_a_model_that_was_copied_is_tried(tmp_path, tokens):
    (tmp_path / "models" / "endless").mkdir(parents=True)
    config = f'{BASE}[auth]\ntokens_file = "{tokens}"\n'
    folders = {"models": tmp_path / "models", "state": tmp_path / "state"}
    with running(tmp_path / "gateway", config=config, **folders) as daemon:
        connection = http.client.HTTPConnection(daemon.http, timeout=WAIT_S)
        models.write_onnx_endless(tmp_path / "models" / "endless" / "model.onnx")
        until(lambda: ask_index(connection, OLD).get("endless") == "LOADING", daemon.log)
        tokens.write_text("camera new-secret\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait("RELOADING=1")
        daemon.wait_logged("credentials reloaded")
        assert ask_http(connection, OLD)[0] == 401
        assert ask_index(connection, NEW) == {"endless": "LOADING"}
        connection.close()


def test_a_file_of_tokens_that_all_users_may_read_is_logged(gateway, tokens):
    tokens.chmod(0o644)
    gateway.reload()
    assert f"chmod o-r {tokens}" in gateway.wait_logged("secret exposed", setting="auth.tokens_file")["problem"]


def test_tokens_stay_in_force_if_others_may_write_the_new_file(gateway, tokens):
    tokens.write_text("camera new-secret\n")
    tokens.chmod(0o666)
    gateway.reload()
    assert (
        f"chmod go-w {tokens}" in gateway.wait_logged("credentials refused; those read before stay in force")["problem"]
    )
    with triton.InferenceServerClient(gateway.grpc) as client:
        assert client.infer("activity", motion(), headers=OLD)
        with pytest.raises(InferenceServerException, match=re.escape(UNKNOWN)):
            client.infer("activity", motion(), headers=NEW)


def test_a_revoked_token_ends_a_stream_that_is_open(gateway, tokens):
    answers = queue.Queue()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        client.async_stream_infer("activity", motion())
        assert answers.get(timeout=WAIT_S)[1] is None
        tokens.write_text("camera new-secret\n")
        gateway.reload()
        with suppress(InferenceServerException):  # the server has ended it
            client.async_stream_infer("activity", motion())
        result, error = answers.get(timeout=WAIT_S)
        assert result is None
        assert UNKNOWN in str(error)


def test_a_token_that_stays_keeps_its_stream(gateway, tokens):
    answers = queue.Queue()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        tokens.write_text("camera old-secret\nother new-secret\n")
        gateway.reload()
        client.async_stream_infer("activity", motion())
        assert answers.get(timeout=WAIT_S)[1] is None
        client.stop_stream()


def test_a_scope_that_is_taken_away_counts_at_once(gateway, tokens):
    http_connection = http.client.HTTPConnection(gateway.http, timeout=WAIT_S)
    answers = queue.Queue()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        client.async_stream_infer("activity", motion())
        assert answers.get(timeout=WAIT_S)[1] is None
        assert ask_http(http_connection, OLD)[0] == 200
        tokens.write_text("camera old-secret scopes=metrics\n")
        gateway.reload()
        with suppress(InferenceServerException):  # as above
            client.async_stream_infer("activity", motion())
        assert "'camera' lacks the scope infer" in str(answers.get(timeout=WAIT_S)[1])
        with pytest.raises(InferenceServerException, match="'camera' lacks the scope infer"):
            client.infer("activity", motion(), headers=OLD)
    assert ask_http(http_connection, OLD)[0] == 403
    http_connection.close()
    assert gateway.wait_logged("credentials reloaded")["changed"] == "tokens (0 added, 0 revoked, 1 changed)"


def test_a_model_that_is_taken_away_counts_on_a_stream_that_is_open(gateway, tokens):
    answers = queue.Queue()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        client.async_stream_infer("activity", motion())
        assert answers.get(timeout=WAIT_S)[1] is None
        tokens.write_text("camera old-secret models=meter-*\n")
        gateway.reload()
        with suppress(InferenceServerException):
            client.async_stream_infer("activity", motion())
        assert "rights have changed; call again" in str(answers.get(timeout=WAIT_S)[1])
        client.stop_stream()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        client.async_stream_infer("activity", motion())
        assert "'camera' may not use model 'activity'" in str(answers.get(timeout=WAIT_S)[1])


def test_a_token_expires_while_it_is_used(gateway, tokens):
    """Streams that are open lose it too; the daemon checks at its expiry."""
    answers = queue.Queue()
    soon = datetime.now(UTC) + timedelta(seconds=3)
    tokens.write_text(f"camera old-secret expires={soon.isoformat(timespec='seconds')}\n")
    gateway.reload()
    with triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=OLD)
        client.async_stream_infer("activity", motion())
        first = answers.get(timeout=WAIT_S)[1]
        assert gateway.wait_logged("tokens expired")["names"] == "camera"
        with suppress(InferenceServerException):
            client.async_stream_infer("activity", motion())
        if first is None:  # else this machine was so slow that it had expired before the stream began
            assert "token of 'camera' has expired" in str(answers.get(timeout=WAIT_S)[1])
        with pytest.raises(InferenceServerException, match="token of 'camera' has expired"):
            client.infer("activity", motion(), headers=OLD)


@pytest.mark.parametrize("text", ["", "one two three\n", "-----BEGIN CERTIFICATE-----\n"])
def test_tokens_that_cannot_be_used_change_nothing(gateway, tokens, text):
    tokens.write_text(text)
    gateway.reload()
    assert str(tokens) in gateway.wait_logged("credentials refused; those read before stay in force")["problem"]
    with triton.InferenceServerClient(gateway.grpc) as client:
        assert client.is_model_ready("activity", headers=OLD)


def test_a_token_is_revoked_whatever_is_wrong_with_the_configuration(gateway, tokens):
    tokens.write_text("camera new-secret\n")
    gateway.config_file.write_text("[[[")
    gateway.reload()
    gateway.wait_logged("reload refused; the old configuration stays in force")
    with triton.InferenceServerClient(gateway.grpc) as client:
        with pytest.raises(InferenceServerException, match=re.escape(UNKNOWN)):
            client.is_model_ready("activity", headers=OLD)
        assert client.is_model_ready("activity", headers=NEW)


# ---- certificates ----------------------------------------------------------------------------------------------------
class Site:
    """A folder of PEM files, and what renews them."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.server, self.clients, self.others = Authority(), Authority(), Authority()
        self.write_server("first")
        self.write("client_ca", self.clients.pem + self.others.pem)
        for name, authority in (("client", self.clients), ("other", self.others)):
            certificate, key = authority.issue(name)
            self.write(name, certificate + key)
        self.write("server_ca", self.server.pem)

    def write_server(self, name):
        for kind, content in zip(("cert", "key"), self.server.issue(name), strict=True):
            self.write(kind, content)

    def write(self, name, content):
        self.path(name).write_bytes(content)

    def path(self, name):
        return self.folder / f"{name}.pem"

    def config(self, *names):
        lines = "".join(f'{name} = "{self.path(name)}"\n' for name in names)
        return f"{BASE}[tls]\n{lines}"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "site")


@pytest.fixture
def mutual(tmp_path, state, site):
    config = site.config("cert", "key", "client_ca")
    with running(tmp_path / "gateway", state=state, config=config) as daemon:
        yield daemon


def shown(address, site):
    """Return the common name of the certificate that a new connection is shown, by openssl."""
    command = ["openssl", "s_client", "-connect", address, "-CAfile", site.path("server_ca"), "-alpn", "h2,http/1.1"]
    command += ["-cert", site.path("client"), "-key", site.path("client")]
    said = subprocess.run(command, input=b"", capture_output=True, timeout=WAIT_S, check=False).stdout.decode(
        errors="replace"
    )
    return next(line for line in said.splitlines() if line.startswith("subject=")).rpartition("=")[2].strip()


def answers_http(address, site, client):
    command = ["curl", "-sS", "--max-time", "20", "--cacert", site.path("server_ca"), "--cert", site.path(client)]
    url = f"https://localhost:{address.rpartition(':')[2]}/v2/health/live"
    return subprocess.run([*command, url], capture_output=True, check=False).returncode == 0


def channel_of(address, site, client):
    pem = site.path(client).read_bytes()
    credentials = grpc.ssl_channel_credentials(site.server.pem, pem, pem)
    return grpc.secure_channel(f"localhost:{address.rpartition(':')[2]}", credentials)


def answers_grpc(address, site, client):
    with channel_of(address, site, client) as channel:
        return is_live(channel)


def is_live(channel):
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        return stub.ServerLive(triton.service_pb2.ServerLiveRequest(), timeout=WAIT_S).live
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


def test_a_renewed_certificate_is_shown_to_new_connections(mutual, site):
    with channel_of(mutual.grpc, site, "client") as before:
        assert is_live(before)
        assert {shown(mutual.grpc, site), shown(mutual.http, site)} == {"first"}
        site.write_server("second")
        mutual.reload()
        assert {shown(mutual.grpc, site), shown(mutual.http, site)} == {"second"}
        assert is_live(before)
    assert mutual.wait_logged("credentials reloaded")["changed"] == "certificate and key"


def test_a_removed_authority_refuses_new_connections(mutual, site):
    for client in ("client", "other"):
        assert answers_grpc(mutual.grpc, site, client)
        assert answers_http(mutual.http, site, client)
    site.write("client_ca", site.clients.pem)
    mutual.reload()
    for client, admitted in (("client", True), ("other", False)):
        assert answers_grpc(mutual.grpc, site, client) is admitted
        assert answers_http(mutual.http, site, client) is admitted


def test_a_session_from_before_is_not_resumed_by_a_client_of_a_removed_authority(mutual, site):
    """A ticket would spare it the certificate (RFC 8446, section 2.2)."""
    context = ssl.create_default_context(cafile=site.path("server_ca"))
    context.load_cert_chain(site.path("other"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # its session is there once the handshake is over

    def connect(session):
        connection = http.client.HTTPSConnection("localhost", int(mutual.http.rpartition(":")[2]), timeout=WAIT_S)
        plain = connection._create_connection(("localhost", connection.port), WAIT_S)
        return context.wrap_socket(plain, server_hostname="localhost", session=session)

    with connect(None) as first, connect(first.session) as second:
        assert second.session_reused
        session = first.session
    site.write("client_ca", site.clients.pem)
    mutual.reload()
    with pytest.raises(ssl.SSLError), connect(session) as third:
        third.recv(1)


def test_a_key_that_does_not_fit_changes_nothing(mutual, site):
    site.write("key", site.server.issue("third")[1])
    mutual.reload()
    problem = mutual.wait_logged("credentials refused; those read before stay in force")["problem"]
    assert str(site.path("cert")) in problem
    assert str(site.path("key")) in problem
    assert {shown(mutual.grpc, site), shown(mutual.http, site)} == {"first"}
    assert answers_grpc(mutual.grpc, site, "client")


def test_an_authority_that_is_gone_changes_nothing(mutual, site):
    site.path("client_ca").unlink()
    mutual.reload()
    problem = mutual.wait_logged("credentials refused; those read before stay in force")["problem"]
    assert f"tls.client_ca: cannot be read: {site.path('client_ca')}" in problem
    assert answers_grpc(mutual.grpc, site, "other")


@pytest.mark.parametrize(("names", "key"), [(("cert", "key"), "tls.client_ca"), ((), "tls.cert")])
def test_guards_are_not_turned_off_by_a_reload(mutual, site, names, key):
    mutual.config_file.write_text(site.config(*names))
    mutual.reload()
    problem = mutual.wait_logged("credentials refused; those read before stay in force")["problem"]
    assert f"{key}: turning this off needs a restart" in problem
    assert answers_http(mutual.http, site, "client")
    assert not answers_http(mutual.http, site, "server_ca")
