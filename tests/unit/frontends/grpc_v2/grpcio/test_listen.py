"""Decisions about sockets, certificates and peers, without a listener."""

import pytest

from gateway.domain.access import Address, Security
from gateway.domain.errors import ConfigurationError
from gateway.frontends.grpc_v2.calls import certificate_name, peer_address
from gateway.frontends.grpc_v2.grpcio.listen import cannot_listen, check_certificates, claim_unix_path
from tests.simulators.authority import Authority


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50123", "127.0.0.1"),
        ("ipv6:%5B::1%5D:50123", "::1"),
        ("ipv6:[fe80::1%25eth0]:1", "fe80::1%eth0"),
        ("unix:", "unix"),
        ("unix:/run/x.sock", "unix"),
        ("unknown", "unknown"),
    ],
)
def test_peers_are_named_by_address_without_port(peer, address):
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"x509_common_name": [b"cam"], "x509_subject_alternative_name": [b"cam.local"]}, "cam"),
        ({"x509_common_name": [b""], "x509_subject_alternative_name": [b"cam.local"]}, "cam.local"),
        ({"x509_common_name": [b"\xff"]}, "�"),
        ({}, ""),
    ],
)
def test_certificates_name_their_caller(facts, name):
    assert certificate_name(facts) == name


def test_a_good_pair_and_authority():
    authority = Authority()
    certificate, key = authority.issue("localhost")
    assert check_certificates(Security(certificate, key, authority.pem)) is True


def test_no_tls_at_all():
    assert check_certificates(Security()) is False


@pytest.mark.parametrize("missing", [{"certificate"}, {"key"}, {"certificate", "key"}])
def test_half_of_tls_is_never_none_of_it(missing):
    authority = Authority()
    certificate, key = authority.issue("localhost")
    given = {"certificate": certificate, "key": key, "client_ca": authority.pem}
    with pytest.raises(ConfigurationError, match="tls: cert and key belong together"):
        check_certificates(Security(**{name: pem for name, pem in given.items() if name not in missing}))


@pytest.mark.parametrize("broken", range(3))
@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_anything_that_is_not_pem(broken, content):
    authority = Authority()
    parts = [*authority.issue("localhost"), authority.pem]
    parts[broken] = content
    with pytest.raises(ConfigurationError, match="cannot be used"):
        check_certificates(Security(*parts))


def test_a_path_that_is_free(tmp_path):
    claim_unix_path(Address(path=str(tmp_path / "s")))
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_another_machine():
    text = str(cannot_listen(Address("192.0.2.1", 0)))
    assert "cannot listen on 192.0.2.1:0; this machine has no such address" in text


def test_a_unix_path_that_cannot_be_created():
    assert "a folder that this user may write" in str(cannot_listen(Address(path="/s")))


@pytest.mark.parametrize("host", ["a" * 64, "..", "\xe9" * 64])
def test_a_host_that_no_name_server_would_be_asked_for(host):
    assert "this cannot be a host's name: choose another address" in str(cannot_listen(Address(host, 0)))
