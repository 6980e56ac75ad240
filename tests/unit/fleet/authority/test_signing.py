"""Certificates that the CA signs, as openssl sees them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.authority.ca import Authority, new_authority
from fleet.controller.authority.certificate import device_certificate, verified
from fleet.controller.authority.request import requested_key
from fleet.controller.authority.settings import AuthoritySettings
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError

SETTINGS = AuthoritySettings()
EC = ec.generate_private_key(ec.SECP256R1())


def request(key=EC, digest=None, subject="somebody else", ca=False) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("urn:edge-fleet:device:other")])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, digest or hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    "make",
    [
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key"],
        ["ecparam", "-name", "secp384r1", "-genkey", "-noout", "-out", "key"],
        ["genrsa", "-out", "key", "2048"],
    ],
)
def test_openssl_asks_and_openssl_verifies(authority: Authority, now, openssl, tmp_path: Path, make) -> None:
    openssl(*make)
    openssl(
        "req", "-new", "-key", "key", "-subj", "/CN=root/O=evil", "-addext", "basicConstraints=CA:TRUE", "-out", "csr"
    )
    signed = authority.sign_csr((tmp_path / "csr").read_bytes(), "camera-7", now)
    (tmp_path / "device.pem").write_bytes(signed.pem)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    verify = ["verify", "-x509_strict", "-CAfile", "ca.pem"]
    assert "device.pem: OK" in openssl(*verify, "-purpose", "sslclient", "device.pem")
    openssl(*verify, "-purpose", "sslserver", "device.pem", ok=False)
    text = openssl("x509", "-in", "device.pem", "-noout", "-text")
    assert "Subject: CN = camera-7\n" in text
    assert "URI:urn:edge-fleet:device:camera-7\n" in text
    assert "CA:FALSE" in text
    assert "CA:TRUE" not in text
    assert "TLS Web Client Authentication\n" in text
    assert openssl("x509", "-in", "device.pem", "-noout", "-pubkey") == openssl("pkey", "-in", "key", "-pubout")


def test_a_device_cannot_sign_another(authority: Authority, now, openssl, tmp_path: Path) -> None:
    parent = authority.sign_csr(request(), "camera-7", now)
    child = Authority(EC, parent.certificate).sign_csr(request(ec.generate_private_key(ec.SECP256R1())), "boss", now)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "parent.pem").write_bytes(parent.pem)
    (tmp_path / "child.pem").write_bytes(child.pem)
    openssl("verify", "-CAfile", "ca.pem", "-untrusted", "parent.pem", "child.pem", ok=False)
    with pytest.raises(RequestError) as caught:
        verified(child.certificate, authority.trusted, now)
    assert caught.value.fault is Fault.UNAUTHENTICATED


def test_what_is_said_is_what_the_controller_says(authority: Authority, now) -> None:
    signed = authority.sign_csr(request(ca=True), "camera-7", now)
    assert (signed.device, signed.subject) == ("camera-7", "CN=camera-7")
    kinds = {extension.oid for extension in signed.certificate.extensions}
    assert len(kinds) == 5
    assert not signed.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert device_certificate(x509.load_pem_x509_certificate(signed.pem)) == signed


def test_serials_are_random_and_fit(authority: Authority, now) -> None:
    serials = [int(authority.sign_csr(request(), "a", now).serial, 16) for _ in range(32)]
    assert len(set(serials)) == 32
    assert max(serials).bit_length() <= 159
    assert max(serials).bit_length() > 140  # all below: once in 2**600 runs


def test_it_holds_90_days_and_is_due_at_two_thirds(authority: Authority, now) -> None:
    signed = authority.sign_csr(request(), "camera-7", now)
    assert signed.expires == now + timedelta(days=90)
    assert now - timedelta(minutes=5) == signed.issued
    assert now + timedelta(days=59) < signed.renewal <= now + timedelta(days=60)
    assert authority.sign_csr(request(), "camera-7", now, 1).expires == now + timedelta(days=1)


def test_none_outlives_its_authority(now) -> None:
    short = new_authority(now, AuthoritySettings(authority_validity_d=10))
    assert short.sign_csr(request(), "a", now).expires == now + timedelta(days=10)
    for when in (now + timedelta(days=11), now - timedelta(days=1)):
        with pytest.raises(RequestError, match="CA's own certificate") as caught:
            short.sign_csr(request(), "a", when)
        assert caught.value.fault is Fault.UNAVAILABLE


def test_a_long_name_is_whole_in_the_uri(authority: Authority, now) -> None:
    names = ["a" * 127 + end for end in "xy"]
    signed = [authority.sign_csr(request(), name, now) for name in names]
    assert [certificate.device for certificate in signed] == names
    assert len({certificate.subject for certificate in signed}) == 2


@pytest.mark.parametrize("device", ["", "a/b", "../a", "a" * 129, "a\nb", "-a", "a:b"])
def test_what_is_no_name_is_not_signed(authority: Authority, now, device) -> None:
    with pytest.raises(RequestError, match="no device's name"):
        authority.sign_csr(request(), device, now)


def forged() -> bytes:
    """Return a request whose signature is another's."""
    good, other = request(), request(ec.generate_private_key(ec.SECP256R1()))
    mine, theirs = (x509.load_pem_x509_csr(each) for each in (good, other))
    der = mine.public_bytes(Encoding.DER).replace(mine.signature, theirs.signature)
    if len(mine.signature) != len(theirs.signature):
        return forged()
    return x509.load_der_x509_csr(der).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (forged, "not signed by the key"),
        (lambda: request(ec.generate_private_key(ec.SECP521R1())), "EC P-256"),
        (lambda: request(ec.generate_private_key(ec.SECP256K1())), "EC P-256"),
        (lambda: request(rsa.generate_private_key(65537, 1024)), "2048"),  # noqa: S505  that is the point
        (lambda: request(rsa.generate_private_key(3, 2048)), "65537"),
        (lambda: request() + request(), "one PEM block"),
        (lambda: b"", "one PEM block"),
        (lambda: request().replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"), "one PEM block"),
        (lambda: request()[:60] + request()[-40:], "cannot be signed"),
        (lambda: request(digest=hashes.SHA224()), "SHA-256"),
    ],
)
def test_weak_and_broken_requests_are_refused(make, says) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        requested_key(make(), SETTINGS)
    assert caught.value.fault is Fault.INVALID


def test_ed25519_is_refused_because_old_tls_stacks_do_not_know_it() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(ed25519.Ed25519PrivateKey.generate(), None)
    with pytest.raises(RequestError, match=r"P-256"):
        requested_key(made.public_bytes(Encoding.PEM), SETTINGS)


def test_a_huge_request_is_not_looked_at() -> None:
    with pytest.raises(RequestError) as caught:
        requested_key(request() + b" " * 20_000, SETTINGS)
    assert caught.value.fault is Fault.TOO_LARGE


@given(st.binary(max_size=300), st.integers(0, 300))
def test_spoilt_requests_are_refused_or_are_requests(junk: bytes, place: int) -> None:
    good = request()
    for spoilt in (junk, good[:place] + junk + good[place + len(junk) :]):
        try:
            requested_key(spoilt, SETTINGS)
        except RequestError as error:
            assert error.fault is Fault.INVALID  # noqa: PT017


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="validity_d"):
        AuthoritySettings(validity_d=0)
