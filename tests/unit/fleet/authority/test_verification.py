"""Verification of certificates: the device they belong to, and whether they still hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.controller.authority.ca import Authority, new_authority
from fleet.controller.authority.certificate import NoDeviceError, check_holds, device_certificate, verified
from fleet.controller.authority.revocation import revocation_list
from gateway.common.domain.errors import Fault, RequestError

KEY = ec.generate_private_key(ec.SECP256R1())
REQUEST = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(KEY, hashes.SHA256())
CSR = REQUEST.public_bytes(Encoding.PEM)


def test_a_device_is_known(authority: Authority, now) -> None:
    signed = authority.sign_csr(CSR, "camera-7", now)
    assert verified(signed.certificate, authority.trusted, now).device == "camera-7"
    assert verified(signed.certificate, authority.trusted, now + timedelta(days=89)) == signed


def test_after_its_time_it_is_nothing(authority: Authority, now) -> None:
    signed, when = authority.sign_csr(CSR, "camera-7", now), now + timedelta(days=91)
    for check in (
        lambda: verified(signed.certificate, authority.trusted, when),
        lambda: check_holds(signed, (), when),
    ):
        with pytest.raises(RequestError) as caught:
            check()
        assert caught.value.fault is Fault.UNAUTHENTICATED


def test_before_its_time_the_clock_of_a_controller_is_wrong(authority: Authority, now) -> None:
    """The device has no fault: it asks again."""
    when = now - timedelta(days=1)
    signed, stranger = (each.sign_csr(CSR, "camera-7", now) for each in (authority, new_authority(now)))
    assert verified(signed.certificate, authority.trusted, when) == signed
    with pytest.raises(RequestError, match="set the clock of the controller") as caught:
        check_holds(signed, (), when)
    assert caught.value.fault is Fault.UNAVAILABLE
    with pytest.raises(RequestError, match="was revoked"):
        check_holds(signed, {signed.serial}, when)
    with pytest.raises(RequestError, match="not of this fleet"):
        verified(stranger.certificate, authority.trusted, when)


def test_another_authority_counts_for_nothing_even_with_the_same_name(authority: Authority, now) -> None:
    stranger = new_authority(now)
    thief = Authority(stranger.key, authority.certificate)
    for signed in (stranger.sign_csr(CSR, "camera-7", now), thief.sign_csr(CSR, "camera-7", now)):
        with pytest.raises(RequestError, match="not of this fleet"):
            verified(signed.certificate, authority.trusted, now)


def test_devices_of_an_earlier_authority_stay_known(authority: Authority, now) -> None:
    newer = new_authority(now)
    both = Authority(newer.key, newer.certificate, (authority.certificate,))
    old, new = (each.sign_csr(CSR, "camera-7", now) for each in (authority, both))
    for signed in (old, new):
        assert verified(signed.certificate, both.trusted, now) == signed


def test_servers_and_authorities_are_no_devices(authority: Authority, now) -> None:
    server = x509.load_pem_x509_certificate(authority.issue_server(["localhost", "127.0.0.1"], now)[0])
    for certificate in (server, authority.certificate):
        with pytest.raises(RequestError, match="not of this fleet"):
            verified(certificate, authority.trusted, now)
        with pytest.raises(NoDeviceError):
            device_certificate(certificate)


def test_a_revoked_one_opens_nothing(authority: Authority, now) -> None:
    signed, other = (authority.sign_csr(CSR, "camera-7", now) for _ in range(2))
    check_holds(signed, frozenset(), now)
    with pytest.raises(RequestError, match="was revoked"):
        check_holds(signed, frozenset({signed.serial}), now)
    check_holds(other, frozenset({signed.serial}), now)


def test_openssl_goes_by_the_revocation_list(authority: Authority, now, openssl, tmp_path: Path) -> None:
    bad, good = (authority.sign_csr(CSR, "camera-7", now) for _ in range(2))
    made = revocation_list(authority, {bad.serial: now}, now, number=7, next_after=timedelta(days=1))
    for name, content in {"crl": made, "ca": authority.pem, "bad": bad.pem, "good": good.pem}.items():
        (tmp_path / name).write_bytes(content)
    check = ["verify", "-x509_strict", "-crl_check", "-CRLfile", "crl", "-CAfile", "ca"]
    assert "revoked" in openssl(*check, "bad", ok=False)
    assert "good: OK" in openssl(*check, "good")
    text = openssl("crl", "-in", "crl", "-noout", "-text", "-CAfile", "ca")
    assert "verify OK" in text
    assert bad.serial.upper() in text


def test_a_key_shown_by_two_devices_is_seen(authority: Authority, now) -> None:
    first, clone = (authority.sign_csr(CSR, name, now) for name in ("a", "b"))
    assert first.key_digest == clone.key_digest
    assert first.serial != clone.serial


def test_the_servers_own_certificate(authority: Authority, now, openssl, tmp_path: Path) -> None:
    certificate, key = authority.issue_server(["fleet.example.org", "127.0.0.1", "::1"], now)
    for name, content in {"ca": authority.pem, "server": certificate, "key": key}.items():
        (tmp_path / name).write_bytes(content)
    verify = ["verify", "-x509_strict", "-CAfile", "ca", "-purpose", "sslserver"]
    assert "OK" in openssl(*verify, "-verify_hostname", "fleet.example.org", "server")
    assert "OK" in openssl(*verify, "-verify_ip", "127.0.0.1", "server")
    openssl(*verify, "-verify_hostname", "other.example.org", "server", ok=False)
