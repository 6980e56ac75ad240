"""Tokens, addresses, and what may listen beyond this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import (
    Address,
    Security,
    changes,
    check_exposure,
    check_replaceable,
    read_address,
    read_tokens,
)
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError

FILE = "# cameras\ncam-1 s3cret#1\n\nlone-token   # the cupboard\n"


def test_callers_are_named_by_their_token() -> None:
    tokens = read_tokens(FILE, "tokens")
    assert tokens.caller("Bearer s3cret#1").name == "cam-1"
    assert tokens.caller("bearer  s3cret#1 ").name == "cam-1"
    assert tokens.caller("BEARER lone-token").name.startswith("token-")


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "s3cret#1",
        "Basic s3cret#1",
        "Bearer",
        "Bearer ",
        "Bearer s3cret",
        "Bearer cam-1",
        "Bearer \udcff\ud800",
    ],
)
def test_the_unknown_are_unauthenticated(sent: str | None) -> None:
    with pytest.raises(RequestError) as error:
        read_tokens(FILE, "tokens").caller(sent)
    assert error.value.fault is Fault.UNAUTHENTICATED


def test_no_token_is_kept_or_shown() -> None:
    assert "s3cret" not in repr(read_tokens(FILE, "tokens"))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("a b\nc d e\n", 2, "NAME TOKEN"), ("# none\n", None, "no token"), ("", None, "no token")],
)
def test_a_tokens_file_that_is_none(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        read_tokens(text, "tokens")
    assert (error.value.file, error.value.line) == ("tokens", line)
    assert "d e" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected", "private"),
    [
        ("127.0.0.1:8001", Address("127.0.0.1", 8001), True),
        ("127.8.9.1:0", Address("127.8.9.1", 0), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:8001", Address("::1", 8001), True),
        ("[::]:8001", Address("::", 8001), False),
        ("0.0.0.0:65535", Address("0.0.0.0", 65535), False),
        ("192.168.1.9:80", Address("192.168.1.9", 80), False),
        ("gateway.local:80", Address("gateway.local", 80), False),
        ("localhost.evil.example:80", Address("localhost.evil.example", 80), False),
        ("unix:/run/g.sock", Address(path="/run/g.sock"), True),
        ("unix:///run/g.sock", Address(path="/run/g.sock"), True),
    ],
)
def test_addresses(text: str, expected: Address, private: bool) -> None:
    found = read_address(text)
    assert found == expected
    assert found is not None
    assert found.private is private
    assert read_address(str(found)) == found


def test_off_is_no_address() -> None:
    assert read_address("off") is None


@pytest.mark.parametrize(
    "text",
    ["", "8001", ":8001", "host:", "host:65536", "host:-1", "host:x", "host:" + "9" * 5000, "::1:8001", "[::1:8001",
     "::1]:8001", "a b:1", "host:1/x", "http://host:1", "unix:", "unix:relative", "unix:/" + "x" * 107, "host:٣"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_address(text, "grpc")
    assert (error.value.table, error.value.key) == ("grpc", "listen")


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        found = read_address(text)
    except ConfigurationError:
        return
    assert found is None or read_address(str(found)) == found


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_listening_to_the_network_needs_callers_that_are_identified(address: str) -> None:
    found = read_address(address)
    assert found is not None
    with pytest.raises(ConfigurationError) as error:
        check_exposure(found, Security(), anonymous=False)
    for part in ("[auth] tokens_file", "[tls] client_ca", "[auth] anonymous = true"):
        assert part in str(error.value)
    check_exposure(found, Security(tokens=read_tokens("a b", "")), anonymous=False)
    check_exposure(found, Security(b"cert", b"key", b"ca"), anonymous=False)
    check_exposure(found, Security(), anonymous=True)


def test_a_servers_certificate_identifies_no_caller() -> None:
    with pytest.raises(ConfigurationError, match="identify the gateway, not its callers"):
        check_exposure(Address("0.0.0.0", 1), Security(b"cert", b"key"), anonymous=False)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "unix:/x"])
def test_listening_to_this_machine_needs_nothing(address: str) -> None:
    found = read_address(address)
    assert found is not None
    check_exposure(found, Security(), anonymous=False)


def test_a_certificate_is_no_tokens_file() -> None:
    """Its lines are public: taken for tokens they would let anybody in."""
    with pytest.raises(ConfigurationError, match=r"tokens\.txt: holds PEM"):
        read_tokens("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "tokens.txt")


FULL = Security(b"cert", b"key", b"ca", read_tokens("a one\nb two\n", "tokens"))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (FULL, ()),
        (Security(b"cert", b"other", b"ca", FULL.tokens), ("certificate and key",)),
        (Security(b"cert", b"key", b"other", FULL.tokens), ("client_ca",)),
        (Security(b"cert", b"key", b"ca", read_tokens("a one\nc 3\nd 4\n", "")), ("tokens (2 added, 1 revoked)",)),
        (
            Security(b"cert", b"key", b"ca", read_tokens("z one\nb two\n", "")),
            ("tokens (0 added, 0 revoked, 1 changed)",),
        ),
        (Security(b"cert", b"key", b"ca"), ("tokens (0 added, 2 revoked)",)),
    ],
)
def test_what_a_reload_changed_is_said(new: Security, said: tuple[str, ...]) -> None:
    assert changes(FULL, new) == said
    check_replaceable(FULL, new)
