"""Callers of the REST server: which are admitted, with which identity, and where the frontend listens."""

import asyncio
import os
import shutil
import socket
import ssl
import stat

import httpx
import pytest

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators.authority import Authority
from tests.simulators.constants import settings_with
from tests.simulators.rest_gateway import hangs_up, infer_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("rest_way")]
AUTHORITY = Authority()
SERVER = AUTHORITY.issue("localhost")
TOKENS = read_tokens("ann secret-of-ann\nben secret-of-ben\n", "tokens")
TLS = Security(*SERVER)
MUTUAL = Security(*SERVER, client_ca=AUTHORITY.pem)
INFER = "/v2/models/identity_fp32/infer"
ANN = {"Authorization": "Bearer secret-of-ann"}


def trusting(certificate=None, key=None, folder=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem.decode())
    if certificate:
        (folder / "client.pem").write_bytes(certificate + key)
        context.load_cert_chain(folder / "client.pem")
    return context


def client_of(gateway, context):
    port = gateway.addresses[0].port
    return httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=context, trust_env=False)


async def test_tls():
    async with serving(security=TLS) as gateway, client_of(gateway, trusting()) as client:
        assert (await client.post(INFER, json=infer_body(1))).status_code == 200
        assert gateway.inference.requests[0].caller == "127.0.0.1"
        with pytest.raises(httpx.TransportError):
            await gateway.client.get("/v2")


async def test_over_tls_any_name_may_be_asked():
    """The certificate binds the name: no page of another one gets past its handshake."""
    async with serving(security=TLS, hosts=()) as gateway, client_of(gateway, trusting()) as client:
        assert (await client.get("/v2", headers={"Host": "camera-7.lan"})).status_code == 200


@pytest.mark.parametrize(("name", "caller"), [("camera-7", "camera-7"), ("", "localhost")])
async def test_mutual_tls_names_the_caller_by_its_certificate(name, caller, tmp_path):
    context = trusting(*AUTHORITY.issue(name), tmp_path)
    async with serving(security=MUTUAL) as gateway, client_of(gateway, context) as client:
        assert (await client.post(INFER, json=infer_body(1))).status_code == 200
        assert gateway.inference.requests[0].caller == caller


async def test_mutual_tls_refuses_whom_it_does_not_know(tmp_path):
    stranger = trusting(*Authority().issue("camera-7"), tmp_path)
    async with serving(security=MUTUAL) as gateway:
        for context in (trusting(), stranger):
            async with client_of(gateway, context) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get("/v2/health/live")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic YTpi", "Bearer", "secret-of-ann"])
@pytest.mark.parametrize("path", ["/v2", INFER, "/metrics", "/schema/openapi.json", "/nothing", "/v2/health/live/"])
async def test_without_a_token_nothing_is_told(path, header):
    async with serving(security=Security(tokens=TOKENS)) as gateway:
        headers = {} if header is None else {"Authorization": header}
        refused = await gateway.client.get(path, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "token" in refused.json()["error"]


async def test_a_token_names_its_caller_even_with_a_certificate(tmp_path):
    security = Security(*SERVER, client_ca=AUTHORITY.pem, tokens=TOKENS)
    context = trusting(*AUTHORITY.issue("camera-7"), tmp_path)
    async with serving(security=security) as gateway, client_of(gateway, context) as client:
        assert (await client.post(INFER, json=infer_body(1), headers=ANN)).status_code == 200
        assert gateway.inference.requests[0].caller == "ann"
        assert (await client.post(INFER, json=infer_body(1))).status_code == 401


async def test_health_needs_no_token():
    async with serving(security=Security(tokens=TOKENS)) as gateway:
        assert (await gateway.client.get("/v2/health/live")).json() == {"live": True}
        assert (await gateway.client.get("/v2/health/ready")).json() == {"ready": True}


async def test_a_unix_socket_knows_its_callers(tmp_path):
    path = tmp_path / "http.sock"
    async with serving(addresses=[Address(path=str(path))], security=TLS) as gateway:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            assert (await client.post(INFER, json=infer_body(1))).status_code == 200
        assert gateway.inference.requests[0].caller == f"uid:{os.getuid()}"
    assert not path.exists()


async def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path):
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    address = Address(path=str(path))
    async with serving(addresses=[address]):
        with pytest.raises(ConfigurationError, match=r"cannot listen on unix:.*in use"):
            await serving(addresses=[address]).__aenter__()
        assert path.is_socket()
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="is no socket"):
        await serving(addresses=[address]).__aenter__()
    assert path.read_text() == "precious"


async def test_several_addresses_at_once():
    addresses = [Address("127.0.0.1", 0), Address("localhost", 0), Address("::1", 0)]
    async with serving(addresses=addresses) as gateway:
        for bound in gateway.addresses:
            assert bound.port
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"http://{bound}/v2/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("host", "says"), [("127.0.0.1", "it is in use: stop what listens there"), ("192.0.2.1", "has no such address")]
)
async def test_an_address_that_cannot_be_had_is_named(host, says):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(host, taken.getsockname()[1])
        with pytest.raises(ConfigurationError) as caught:
            await serving(addresses=[Address("127.0.0.1", 0), address]).__aenter__()
    assert str(address) in str(caught.value)
    assert says in str(caught.value)
    assert "http.listen" in str(caught.value)


@pytest.mark.parametrize(
    ("security", "key"),
    [
        (Security(b"no pem", b"neither"), "tls.cert, key"),
        (Security(SERVER[0], Authority().issue("other")[1]), "tls.cert, key"),
        (Security(*SERVER, client_ca=b"no pem"), "tls.client_ca"),
    ],
)
async def test_unusable_certificates_are_named(security, key):
    with pytest.raises(ConfigurationError, match="PEM") as caught:
        await serving(security=security).__aenter__()
    assert key in str(caught.value)


async def test_a_silent_tls_peer_is_given_up():
    async with serving(security=TLS, settings=settings_with(RestSettings(), header_timeout_s=0.1)) as gateway:
        reader, writer = await gateway.connect()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.usefixtures("patient")
async def test_silent_tls_peers_of_one_address_keep_no_others_out():
    """Each would keep a place, and the buffers of TLS, until its time is over."""
    async with serving(
        security=TLS,
        settings=settings_with(RestSettings(max_connections=8), header_timeout_s=3600),
        shares=ShareSettings(),
    ) as gateway:
        silent = [await gateway.connect() for _ in range(3)]
        assert await silent[2][0].read() == b""
        port = gateway.addresses[0].port
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.0.2", 0), ssl=trusting(), server_hostname="localhost"
        )
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, peer in [*silent, (reader, writer)]:
            await hangs_up(peer)


async def test_a_silent_tls_peer_does_not_hold_up_the_stop():
    """asyncio's servers wait for it since Python 3.12."""
    async with serving(security=TLS, settings=settings_with(RestSettings(), header_timeout_s=3600)) as gateway:
        _, writer = await gateway.connect()
        await gateway.frontend.stop(0)
        writer.close()


async def test_curl_over_tls_with_a_token(tmp_path):
    curl = shutil.which("curl")
    assert curl, "curl is one of the packages that make test installs"
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.pem)
    async with serving(security=Security(*SERVER, tokens=TOKENS)) as gateway:
        url = f"https://localhost:{gateway.addresses[0].port}/v2/health/ready"
        process = await asyncio.create_subprocess_exec(
            curl, "-sS", "--cacert", tmp_path / "ca.pem", "-H", "Authorization: Bearer secret-of-ben", url,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert out == b'{"ready":true}'
