"""Identity of callers, as real clients show it: TLS in process, a trusted proxy in front, and clients that lie."""

from __future__ import annotations

import base64
import ssl
from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.controller.authority.ca import new_authority
from fleet.controller.serving.settings import ProxySettings, ServingSettings
from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.fleet_http import AUTHORITY, LOOPBACK, controlling, device, now

pytestmark = pytest.mark.asyncio
CAMERA = device("camera-7")
NGINX = ProxySettings(trusted=("127.0.0.1",), certificate_header="X-Client-Certificate", certificate_form="pem")
PEM = quote(CAMERA.certificate.pem.decode(), safe="")


async def test_curl_shows_its_certificate(tmp_path) -> None:
    file = str(CAMERA.write(tmp_path))
    async with controlling(tmp_path, tls=True) as controller:
        curl = ["curl", "-sS", "--cacert", str(controller.ca_file), f"{controller.url}any"]
        code, shown = await controller.run(*curl, "--cert", file)
        assert (code, '"device": "camera-7"' in shown, CAMERA.certificate.serial in shown) == (0, True, True)
        code, shown = await controller.run(*curl)
        assert (code, '"device": ""' in shown) == (0, True)
        for version in ("1.2", "1.3"):
            code, shown = await controller.run(*curl, "--cert", file, "--tls-max", version, "-D", "-")
            assert (code, '"device": "camera-7"' in shown) == (0, True)
            assert "strict-transport-security" in shown


@pytest.mark.parametrize(("option", "accepted"), [("-tls1_3", True), ("-tls1_2", True), ("-tls1_1", False)])
async def test_openssl_agrees_on_no_old_tls(tmp_path, option, accepted) -> None:
    file = str(CAMERA.write(tmp_path))
    async with controlling(tmp_path, tls=True) as controller:
        at = ["-connect", f"127.0.0.1:{controller.port}", "-CAfile", "ca.pem", "-verify_return_error"]
        code, said = await controller.run(
            "openssl", "s_client", *at, "-cert", file, "-key", file, "-alpn", "http/1.1", "-ign_eof", option,
            "-cipher", "DEFAULT:@SECLEVEL=0", stdin=b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )  # fmt: skip
        assert ('"device": "camera-7"' in said) == accepted, said
        assert ("ALPN protocol: http/1.1" in said) == accepted
        if accepted:
            assert "edge-fleet device CA" in said  # the CA of the certificates that clients may choose
            assert code == 0


@pytest.mark.parametrize(
    "stranger",
    [
        device("camera-7", new_authority(now())),
        device("camera-7", validity_d=1, when=now() - timedelta(days=2)),
    ],
    ids=["another CA", "over"],
)
async def test_a_certificate_that_does_not_verify_ends_the_handshake(tmp_path, stranger) -> None:
    async with controlling(tmp_path, tls=True) as controller, controller.client(stranger) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/")


async def test_a_servers_certificate_is_no_device(tmp_path) -> None:
    certificate, key = AUTHORITY.issue_server(["localhost"], now())
    (tmp_path / "server.pem").write_bytes(certificate + key)
    async with controlling(tmp_path, tls=True) as controller:
        context = ssl.create_default_context(cafile=str(controller.ca_file))
        context.load_cert_chain(tmp_path / "server.pem")
        async with httpx.AsyncClient(base_url=controller.url, verify=context, trust_env=False) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/")


async def test_a_certificate_is_asked_about_with_every_request(tmp_path) -> None:
    times = [now()]
    async with (
        controlling(tmp_path, tls=True, clock=lambda: times[0]) as controller,
        controller.client(CAMERA) as client,
    ):
        assert (await client.get("/")).json()["device"] == "camera-7"
        controller.revoked.add(CAMERA.certificate.serial)
        refused = await client.get("/")
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"
        assert "was revoked" in refused.json()["detail"]
        assert refused.json()["fault"] == "UNAUTHENTICATED"
        controller.revoked.clear()
        assert (await client.get("/")).status_code == 200
        times[0] += timedelta(days=91)
        assert "has expired" in (await client.get("/")).json()["detail"]
        times[0] -= timedelta(days=92)
        refused = await client.get("/")
        assert refused.status_code == 503
        assert "set the clock of the controller" in refused.json()["detail"]
        assert controller.counts["certificate_refused"] == 3


async def test_a_resumed_session_is_still_the_same_device(tmp_path) -> None:
    file = str(CAMERA.write(tmp_path))
    ask = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with controlling(tmp_path, tls=True) as controller:
        words = ["s_client", "-connect", f"127.0.0.1:{controller.port}", "-CAfile", "ca.pem", "-ign_eof"]
        _, first = await controller.run("openssl", *words, "-cert", file, "-key", file, "-sess_out", "s", stdin=ask)
        _, again = await controller.run("openssl", *words, "-sess_in", "s", stdin=ask)
        assert '"device": "camera-7"' in first
        assert "Reused, TLS" in again
        assert '"device": "camera-7"' in again
        controller.revoked.add(CAMERA.certificate.serial)
        _, revoked = await controller.run("openssl", *words, "-sess_in", "s", stdin=ask)
        assert "was revoked" in revoked


async def test_the_servers_certificate_can_be_renewed_in_passing(tmp_path) -> None:
    async with controlling(tmp_path, tls=True) as controller:
        async with controller.client() as client:
            assert (await client.get("/")).status_code == 200
            controller.server.renew(*AUTHORITY.issue_server(["elsewhere.example.org"], now()))
            assert (await client.get("/")).status_code == 200  # the connection stands
        async with controller.client() as client:
            with pytest.raises(httpx.ConnectError, match=r"[Hh]ostname"):
                await client.get("/")
        with pytest.raises(ConfigurationError, match="PEM"):
            controller.server.renew(b"junk", b"junk")


async def test_a_pair_of_files_that_is_half_replaced_takes_nothing_away(tmp_path) -> None:
    async with controlling(tmp_path, tls=True) as controller:
        certificate, _ = AUTHORITY.issue_server(["localhost"], now())
        _, key = AUTHORITY.issue_server(["localhost"], now())
        with pytest.raises(ConfigurationError, match="belong together"):
            controller.server.renew(certificate, key)
        async with controller.client() as client:
            assert (await client.get("/")).status_code == 200


async def test_a_trusted_proxys_header_names_the_device(tmp_path) -> None:
    settings = ServingSettings(proxy=NGINX)
    headers = {"X-Client-Certificate": PEM, "X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        shown = (await client.get("/", headers=headers)).json()
        assert (shown["device"], shown["address"], shown["proxied"]) == ("camera-7", "198.51.100.7", True)
        assert not {"x-client-certificate", "x-forwarded-for"} & set(shown["headers"])
        assert (await client.get("/")).json()["device"] == ""
        controller.revoked.add(CAMERA.certificate.serial)
        assert (await client.get("/", headers=headers)).status_code == 401


async def test_the_same_header_from_anybody_else_counts_for_nothing(tmp_path) -> None:
    settings = ServingSettings(proxy=ProxySettings(("192.0.2.1",), "X-Client-Certificate", "pem"))
    headers = {"X-Client-Certificate": PEM, "X-Forwarded-For": "203.0.113.9"}
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        shown = (await client.get("/", headers=headers)).json()
        assert (shown["device"], shown["address"], shown["proxied"]) == ("", "127.0.0.1", False)
        assert "x-client-certificate" not in shown["headers"]
        assert controller.counts == {"certificate_header_ignored": 1, "address_header_ignored": 1}


async def test_a_devices_own_certificate_goes_before_what_it_writes(tmp_path) -> None:
    other = device("boss")
    headers = {"X-Client-Certificate": quote(other.certificate.pem.decode())}
    settings = ServingSettings(proxy=NGINX)
    async with controlling(tmp_path, tls=True, settings=settings) as controller, controller.client(CAMERA) as client:
        assert (await client.get("/", headers=headers)).json()["device"] == "camera-7"
        assert controller.counts["certificate_header_ignored"] == 1


@pytest.mark.parametrize(
    ("value", "status", "says"),
    [
        (quote(device("camera-7", new_authority(now())).certificate.pem.decode()), 401, "not of this fleet"),
        (PEM[:200], 400, "see [serve.proxy]"),
        (PEM + PEM, 400, "2 certificates"),
        ("-", 400, "no certificate of the form"),
        ("", 200, ""),
    ],
    ids=["another CA", "cut", "two", "no PEM", "empty"],
)
async def test_what_a_trusted_proxy_says_is_verified_here(tmp_path, value, status, says) -> None:
    settings = ServingSettings(proxy=NGINX)
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        answer = await client.get("/", headers={"X-Client-Certificate": value})
        assert answer.status_code == status
        assert says in answer.text


async def test_a_proxy_that_appends_is_found_out(tmp_path) -> None:
    settings = ServingSettings(proxy=NGINX)
    async with controlling(tmp_path, settings=settings) as controller, controller.client() as client:
        headers = [("X-Client-Certificate", PEM), ("x-client-certificate", PEM)]
        answer = await client.get("/", headers=headers)
        assert (answer.status_code, "more than once" in answer.text) == (400, True)
        assert controller.counts["certificate_header_unreadable"] == 1


async def test_a_proxy_on_the_unix_socket(tmp_path) -> None:
    path = tmp_path / "http.sock"
    settings = ServingSettings(proxy=ProxySettings(("unix",), "Client-Cert", "rfc9440"))
    der = x509.load_pem_x509_certificate(CAMERA.certificate.pem).public_bytes(Encoding.DER)
    headers = {"Client-Cert": f":{base64.b64encode(der).decode()}:", "X-Forwarded-For": "203.0.113.9"}
    async with controlling(tmp_path, settings=settings, addresses=(LOOPBACK, Address(path=str(path)))) as controller:
        assert path.stat().st_mode & 0o777 == 0o660
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://x") as client:
            shown = (await client.get("/", headers=headers)).json()
            assert (shown["device"], shown["address"]) == ("camera-7", "203.0.113.9")
        async with controller.client() as client:
            assert (await client.get("/", headers=headers)).json()["device"] == ""
    assert not path.exists()


async def test_tokens_do_not_travel_in_the_clear(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="in the clear"):
        await controlling(tmp_path, addresses=(Address("0.0.0.0", 0),)).__aenter__()


async def test_an_address_that_cannot_be_had_is_named(tmp_path) -> None:
    elsewhere = Address("192.0.2.1", 0)
    with pytest.raises(ConfigurationError, match=r"listen.addresses: cannot listen on 192.0.2.1:0"):
        await controlling(tmp_path, tls=True, addresses=(LOOPBACK, elsewhere)).__aenter__()


async def test_a_live_unix_socket_is_not_taken_over(tmp_path) -> None:
    address = Address(path=str(tmp_path / "http.sock"))
    async with controlling(tmp_path, addresses=(address,)):
        with pytest.raises(ConfigurationError, match="in use"):
            await controlling(tmp_path, addresses=(address,)).__aenter__()
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=address.path), base_url="http://x"
        ) as client:
            assert (await client.get("/")).status_code == 200
