"""Access: open listeners refused, tokens, TLS and client certificates, with openssl's certificates and curl."""

import re
import subprocess

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running, starting

BASE = QUIET + SHORT_TRIALS
EVERYWHERE = "0.0.0.0:0"
SECRET = "correct-horse"


@pytest.mark.parametrize(
    "listen", [{"grpc": [EVERYWHERE]}, {"http": [EVERYWHERE]}, {"grpc": ["[::]:0"]}, {"http": ["myhost.example:0"]}]
)
def test_an_open_listener_is_refused_naming_the_settings(tmp_path, listen):
    with starting(tmp_path, **listen) as daemon:
        assert daemon.ended() == 2
        (said,) = [line for line in daemon.log.splitlines() if line.startswith("edge-gateway: ")]
    for part in (next(iter(listen.values()))[0], "[auth] tokens_file", "[tls] client_ca", "[auth] anonymous = true"):
        assert part in said


def curl(daemon, path, *options, scheme="http"):
    """Return status code ("000" where no answer came) and body."""
    url = f"{scheme}://localhost:{daemon.http.rpartition(':')[2]}{path}"
    command = ["curl", "-sS", "--ipv4", "-o", "-", "-w", "\n%{http_code}", "--max-time", "20", *options, url]
    body, _, status = subprocess.run(command, capture_output=True, text=True, check=False).stdout.rpartition("\n")
    return status, body


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(f"# who may call\nbench {SECRET}\nother-token\n")
    config = f'{BASE}[auth]\ntokens_file = "{folder}/tokens"\n'
    with running(folder / "gateway", state=state, config=config, grpc=[EVERYWHERE], http=[EVERYWHERE]) as daemon:
        yield daemon


def refused_status(daemon, headers):
    target = f"localhost:{daemon.grpc.rpartition(':')[2]}"
    with triton.InferenceServerClient(target) as client, pytest.raises(InferenceServerException) as refused:
        client.is_server_live(headers=headers)
    return refused.value.status()


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {SECRET}"}])
def test_without_the_right_token(guarded, headers):
    assert refused_status(guarded, headers) == "StatusCode.UNAUTHENTICATED"
    options = [option for key, value in headers.items() for option in ("-H", f"{key}: {value}")]
    status, body = curl(guarded, "/v2/models/activity", *options)
    assert status == "401"
    assert "token" in body
    assert SECRET not in body


@pytest.mark.parametrize("token", [SECRET, "other-token"])
def test_with_the_token(guarded, token):
    headers = {"authorization": f"Bearer {token}"}
    with triton.InferenceServerClient(f"localhost:{guarded.grpc.rpartition(':')[2]}") as client:
        assert client.is_model_ready("activity", headers=headers)
    status, body = curl(guarded, "/v2/models/activity", "-H", f"Authorization: Bearer {token}")
    assert (status, '"activity"' in body) == ("200", True)


def test_supervisors_need_no_token_for_health_but_metrics_do(guarded):
    assert curl(guarded, "/v2/health/live")[0] == "200"
    assert curl(guarded, "/metrics")[0] == "401"


def test_what_was_refused_is_counted(guarded):
    refused_status(guarded, {"authorization": "Bearer wrong"})
    curl(guarded, "/v2")
    _, page = curl(guarded, "/metrics", "-H", f"Authorization: Bearer {SECRET}")
    for labels in ('frontend="grpc",reason="unknown"', 'frontend="http",reason="missing"'):
        assert re.search(rf"^edge_gateway_refused_callers_total{{{labels}}} [1-9]", page, re.MULTILINE)


def test_no_token_is_ever_logged(guarded):
    refused_status(guarded, {"authorization": "Bearer my-typo-of-a-secret"})
    assert SECRET not in guarded.log
    assert "my-typo-of-a-secret" not in guarded.log


# ---- TLS -----------------------------------------------------------------------------------------------------------
def tls(folder, *, mutual):
    client_ca = f'client_ca = "{folder}/ca.pem"\n' if mutual else "[auth]\nanonymous = true\n"
    return f'{BASE}[tls]\ncert = "{folder}/localhost.pem"\nkey = "{folder}/localhost.key"\n{client_ca}'


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mtls"])
def encrypted(request, authority, tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("tls")
    config = tls(authority, mutual=request.param)
    with running(folder, state=state, config=config, grpc=[EVERYWHERE], http=[EVERYWHERE]) as daemon:
        daemon.mutual = request.param
        yield daemon


def test_a_servers_certificate_alone_identifies_no_caller(tmp_path, authority):
    config = tls(authority, mutual=False).replace("anonymous = true", "anonymous = false")
    with starting(tmp_path, config=config, grpc=[EVERYWHERE]) as daemon:
        assert daemon.ended() == 2
        said = daemon.log.strip().splitlines()[-1]
    for part in (EVERYWHERE, "identify the gateway, not its callers", "client_ca", "[auth] anonymous = true"):
        assert part in said


def test_anonymous_callers_are_said_at_the_start(encrypted):
    lines = [line for line in encrypted.lines() if line["event"] == "anonymous callers served"]
    assert [line["address"] for line in lines] == ([] if encrypted.mutual else [EVERYWHERE, EVERYWHERE])


def live(daemon, authority, name):
    """Return whether gRPC answers a client that shows `name`'s certificate ("": none)."""
    pair = [(authority / f"{name}.{end}").read_bytes() for end in ("key", "pem")] if name else [None, None]
    credentials = grpc.ssl_channel_credentials((authority / "ca.pem").read_bytes(), *pair)
    target = f"localhost:{daemon.grpc.rpartition(':')[2]}"
    with triton.InferenceServerClient(target, ssl=True, creds=credentials) as client:
        try:
            return client.is_server_live(client_timeout=10)
        except InferenceServerException:
            return False


@pytest.mark.parametrize("name", ["", "client", "stranger"])
def test_encrypted_callers(encrypted, authority, name):
    allowed = name == "client" or not encrypted.mutual
    shown = ["--cert", str(authority / f"{name}.pem"), "--key", str(authority / f"{name}.key")] if name else []
    status, _ = curl(encrypted, "/v2/health/live", "--cacert", str(authority / "ca.pem"), *shown, scheme="https")
    assert (status == "200") is allowed
    assert live(encrypted, authority, name) is allowed


def test_plain_text_is_not_answered(encrypted):
    assert curl(encrypted, "/v2/health/live")[0] == "000"
    target = f"localhost:{encrypted.grpc.rpartition(':')[2]}"
    with triton.InferenceServerClient(target) as client, pytest.raises(InferenceServerException):
        client.is_server_live(client_timeout=2)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ('[tls]\ncert = "localhost.pem"\n', ["cert and key go together"]),
        ('[tls]\nclient_ca = "ca.pem"\n', ["client_ca needs cert and key"]),
        ('[tls]\ncert = "localhost.pem"\nkey = "client.key"\n', ["tls", "key"]),
        ('[tls]\ncert = "nothing.pem"\nkey = "localhost.key"\n', ["tls.cert", "nothing.pem"]),
        ('[tls]\ncert = "san"\nkey = "localhost.key"\n', ["tls", "PEM"]),
        ('[auth]\ntokens_file = "nothing"\n', ["auth.tokens_file", "nothing"]),
        ('[auth]\ntokens_file = "empty"\n', ["empty", "holds no token"]),
        ('[auth]\ntokens_file = "prose"\n', ["prose:2", "NAME TOKEN"]),
    ],
)
def test_security_that_cannot_be_used_is_a_usage_error(tmp_path, authority, config, parts):
    (authority / "empty").write_text("# nobody\n")
    (authority / "prose").write_text("bench secret\nthis is prose\n")
    config = re.sub(r'= "([\w.]+)"', rf'= "{authority}/\1"', config)
    with starting(tmp_path, config=BASE + config) as daemon:
        assert daemon.ended() == 2
        (said,) = [line for line in daemon.log.splitlines() if line.startswith("edge-gateway: ")]
    for part in parts:
        assert part in said
