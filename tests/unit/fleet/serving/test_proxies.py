"""Headers of proxies, each in its own form."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.authority.ca import new_authority
from fleet.controller.serving.proxies import (
    ForwardedError,
    address_group,
    forwarded_address,
    forwarded_certificate,
    read_proxies,
)
from fleet.controller.serving.settings import FORMS, ProxySettings
from gateway.common.domain.errors import ConfigurationError

CERTIFICATE = new_authority(datetime.now(UTC)).certificate
DER = CERTIFICATE.public_bytes(Encoding.DER)
PEM = quote(CERTIFICATE.public_bytes(Encoding.PEM).decode(), safe="")
BASE64 = base64.b64encode(DER).decode()
PROXIES = read_proxies(["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"])


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("pem", PEM),
        ("pem", f"  {PEM} "),
        ("pem", quote(CERTIFICATE.public_bytes(Encoding.PEM).decode(), safe=" /+=")),
        ("rfc9440", f":{BASE64}:"),
        ("xfcc", f'Hash=abc;Cert="{PEM}"'),
        ("xfcc", f'By=spiffe://a;Cert="{PEM}";Subject="CN=\\"x\\",O=y";URI=urn:a;DNS=b'),
        ("xfcc", f"cert={PEM}"),
    ],
)
def test_forms_that_are_read(form: str, value: str) -> None:
    assert forwarded_certificate([value], form) == DER


@pytest.mark.parametrize(("form", "values"), [("pem", []), ("pem", [""]), ("rfc9440", [" "]), ("xfcc", ["Hash=abc"])])
def test_none_is_none(form: str, values: list[str]) -> None:
    assert forwarded_certificate(values, form) is None


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("pem", [PEM, PEM]),
        ("pem", [BASE64]),
        ("pem", ["(null)"]),
        ("rfc9440", [BASE64]),
        ("rfc9440", [":a:"]),
        ("rfc9440", [f":{BASE64}:, :{BASE64}:"]),
        ("xfcc", [PEM]),
        ("xfcc", [f'Hash=a;Cert="{PEM}",Hash=b;Cert="{PEM}"']),
        ("xfcc", [f'Cert="{PEM}";Cert="{PEM}"']),
        ("xfcc", ["Hash=a,Hash=b"]),
        ("xfcc", ['Cert="junk"']),
    ],
)
def test_what_could_mean_two_things_or_nothing_is_refused(form: str, values: list[str]) -> None:
    with pytest.raises(ForwardedError):
        forwarded_certificate(values, form)


@given(st.sampled_from(FORMS), st.text() | st.text('Cert=";,:\\ab%'))
def test_junk_is_refused_and_nothing_else_happens(form: str, value: str) -> None:
    try:
        found = forwarded_certificate([value], form)
    except ForwardedError:
        return
    if form == "rfc9440" and found is not None:  # base64 that is no certificate: `identity` refuses it
        with pytest.raises(ValueError, match=r"."):
            x509.load_der_x509_certificate(found)
    else:
        assert found is None


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([], None),
        ([""], None),
        (["203.0.113.9"], "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        (["6.6.6.6", "203.0.113.9", "10.1.2.3"], "203.0.113.9"),
        (["junk, 10.1.2.3"], "10.1.2.3"),
        (["junk"], None),
        (["10.1.2.3, 10.1.2.4"], "10.1.2.3"),
        (["[2001:db9::1]"], "2001:db9::1"),
        (["::ffff:203.0.113.9"], "203.0.113.9"),
        (["1.1.1.1," * 10_000 + "203.0.113.9"], "203.0.113.9"),
    ],
)
def test_the_last_address_that_nobody_of_ours_has(values: list[str], wanted: str | None) -> None:
    assert forwarded_address(values, PROXIES) == wanted


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.9.9.9", True),
        ("::ffff:10.9.9.9", True),
        ("11.0.0.1", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("2001:db8::7", True),
        ("2001:db9::7", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("junk", False),
    ],
)
def test_who_is_trusted(address: str, trusted: bool) -> None:
    assert PROXIES.trusts(address) is trusted


def test_unix_is_trusted_where_it_is_named_alone() -> None:
    assert read_proxies(["unix"]).trusts("")
    assert not read_proxies([]).trusts("")
    assert not read_proxies(["unix"]).trusts("127.0.0.1")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example.org", "", "10.0.0.0/33"])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"proxy.trusted"):
        read_proxies([text])


def test_a_form_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"proxy.certificate_form.*rfc9440"):
        ProxySettings(certificate_form="der")


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_who_counts_as_one(address: str, group: str) -> None:
    assert address_group(address) == group
