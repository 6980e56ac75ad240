"""Identity of a caller, and the TLS that a listener speaks."""

from __future__ import annotations

import ssl
import subprocess
import sys
from typing import Any

import pytest

from gateway.common.domain.access import Security, Tokens, read_tokens
from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.rest_v2.authorisation import admit
from gateway.serving.frontends.tls import server_context
from tests.simulators.authority import Authority

TOKENS = read_tokens("ann secret", "tokens")


def scope(peer: Peer, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "client": ("192.0.2.7", 5), "headers": list(headers), "state": {"peer": peer}}


def caller_of(scope: dict[str, Any], tokens: Tokens | None) -> str:
    return admit(scope, Authentication("http", Security(tokens=tokens)), ())


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        (Peer(), "192.0.2.7"),
        (Peer(uid=0), "uid:0"),
        (Peer(certificate="camera-7"), "camera-7"),
        (Peer(certificate="camera-7", uid=5), "camera-7"),
    ],
)
def test_the_order_of_names(peer: Peer, caller: str) -> None:
    assert caller_of(scope(peer), None).caller == caller
    assert caller_of(scope(peer, (b"authorization", b"bearer secret")), TOKENS).caller == "ann"
    with pytest.raises(RequestError):
        caller_of(scope(peer), TOKENS)


def test_no_address_is_no_crash() -> None:
    assert caller_of({"type": "http", "client": None, "headers": []}, None).caller == ""


def test_tls_begins_at_1_2_and_asks_for_certificates_only_where_told() -> None:
    authority = Authority()
    pair = authority.issue("localhost")
    plain, mutual = (
        server_context(Security(*pair), protocol="http/1.1"),
        server_context(Security(*pair, client_ca=authority.pem), protocol="http/1.1"),
    )
    assert plain is not None
    assert mutual is not None
    assert plain.minimum_version is mutual.minimum_version is ssl.TLSVersion.TLSv1_2
    assert (plain.verify_mode, mutual.verify_mode) == (ssl.CERT_NONE, ssl.CERT_REQUIRED)
    assert server_context(Security(), protocol="http/1.1") is None


def test_an_encrypted_key_is_an_error_and_no_question() -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = Authority().issue("localhost")
    secret = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    with pytest.raises(ConfigurationError, match="must not be encrypted"):
        server_context(Security(certificate, secret), protocol="http/1.1")


def test_naming_the_frontend_loads_no_server() -> None:
    code = (
        "import sys, gateway.serving.frontends.rest_v2.server, gateway.serving.observe.metrics, gateway.common.logs\n"
        "heavy = {'litestar', 'uvicorn', 'structlog', 'prometheus_client', 'psutil', 'rich'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
