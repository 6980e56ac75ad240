"""No secret leaves: whatever form it has, wherever it stands. What an operator needs stays as it was."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.redaction import WITHHELD, value_without_secrets, without_secrets

KINDS = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
PEM = ec.derive_private_key(7, ec.SECP256R1()).private_bytes(*KINDS).decode()
SECRET = "hunter2-horse"

HIDDEN = {
    "a key": (PEM, PEM.splitlines()[1]),
    "half a key": (PEM[: len(PEM) // 2], PEM.splitlines()[1][:20]),
    "a line of a key": (f"read {PEM.splitlines()[2]}", PEM.splitlines()[2]),
    "a certificate in a JSON line": (f'{{"chain": "{PEM!r}"}}', PEM.splitlines()[1]),
    "a random token": ("got wbY3pZ8Qk2-kV9_Xr5TtLm4Nn7Jj1Hh0Gg6Ff3Dd-8s", "wbY3pZ8Qk2"),
    "a named token": (f"token={SECRET}", SECRET),
    "a JSON token": (f'{{"token": "{SECRET}", "n": 1}}', SECRET),
    "quoted JSON": (f'"{{\\"api_key\\": \\"{SECRET}\\"}}"', SECRET),
    "a password": (f"Password: {SECRET}", SECRET),
    "a header": (f"Authorization: Bearer {SECRET}", SECRET),
    "a bearer": (f"sent Bearer {SECRET} twice", SECRET),
    "a URL": (f"https://user:{SECRET}@fleet.example/v1", SECRET),
    "a URL with an @ in the password": (f"https://user:p@{SECRET}@fleet.example/v1", SECRET),
    "a URL with a slash and an @ in the password": (f"mqtt://user:p/{SECRET}@a@b@host:1883/x", SECRET),
    "a German password": (f"mqtt_passwort = {SECRET}", SECRET),
    "a short name": (f"pass: {SECRET}", SECRET),
    "a list": (f'tokens = ["a", "{SECRET}"]', SECRET),
    "a name that goes on": (f"SECRET_ACCESS_KEY={SECRET}", SECRET),
    "a name of several": (f"tokens: {SECRET}", SECRET),
    "a signed URL": (f"https://store.example/blob?X-Amz-Signature={SECRET}&n=1", SECRET),
    "a comma in it": (f"password=a,{SECRET}", SECRET),
    "a space in it": (f'password="a {SECRET}"', SECRET),
    "an escaped quote in it": (f'{{"password": "a\\"{SECRET}"}}', SECRET),
    "a backslash in it": (f'password = "a\\b{SECRET}"', SECRET),
    "quotes that do not end": (f"password='a {SECRET}", SECRET),
    "bytes": (f"token=b'{SECRET}'", SECRET),
    "a camera's parameter": (f"http://10.0.0.7/video.cgi?loginuse=admin&loginpas={SECRET}", SECRET),
    "a camera's path of parameters": (f"rtsp://h/user=admin&password={SECRET}&channel=1", SECRET),
    "a camera's path of one parameter": (f"rtsp://h/user=admin_password={SECRET}_channel=1.sdp", SECRET),
    "a user in a camera's path": (f"rtsp://10.0.0.7:554/live/admin:{SECRET}/ch1", SECRET),
    "another scheme": (f"authorization: Token {SECRET}", SECRET),
    "a scheme of several words": (f'Authorization: Digest username="a", response="{SECRET}"', SECRET),
    "a cookie": (f"Set-Cookie: a=1; session={SECRET}; Path=/", SECRET),
    "the end of a key": ("\n".join(PEM.splitlines()[-2:]), PEM.splitlines()[-2]),
    "a fleet's token without digits": ("eft_" + "abcDefgHi" * 4, "abcDefgHi"),
    "a JSON web token": ("got eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmVk", "c2lnbmVk"),
}
SHOWN = (
    "models/acme/meter-reader/2/release",
    "0123456789abcdef" * 4,
    "/var/lib/edge-agent/blobs/sha256/" + "0a" * 32,
    "2027-01-01T00:00:00+00:00 camera-7 edge-agent[7]: poll completed assignment=7",
    "https://fleet.example/v1/self/assignment",
    "acme/meter version 2: the key of the role is unknown",
    "tokenizer-v2 is loaded",
    "bypass=1 compass: 3",
    "https://registry.example/acme/meter:2/blob",
    "rtsp://10.0.0.7:554/Streaming/Channels/101?start=2027-01-01T00:00:00",
    "rtsp://10.0.0.7/replay/2027-01-01T00:00:00/cam",
    "from rtsp://10.0.0.7:554 to rtsp://[fd00::1]:8554/h264",
)


@pytest.mark.parametrize("case", HIDDEN)
def test_secrets_are_withheld(case: str) -> None:
    text, secret = HIDDEN[case]
    assert secret in text
    assert secret not in without_secrets(text)
    assert WITHHELD in without_secrets(text)


@pytest.mark.parametrize("text", SHOWN)
def test_the_rest_is_told_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert without_secrets(f'{{"token": "{SECRET}", "n": 1}}') == f'{{"token": {WITHHELD}, "n": 1}}'
    assert without_secrets(f"a\n{PEM}\nb") == f"a\n{WITHHELD}\n\nb"


@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_token_is_found_in_any_text(before: str, after: str) -> None:
    token = "Aa1" + secrets.token_urlsafe(32)
    assert token not in without_secrets(f"{before} {token} {after}")


@given(text=st.text(max_size=20), depth=st.integers(1, 4))
def test_a_named_secret_is_withheld_whole_however_deep_it_is_quoted(text: str, depth: int) -> None:
    line: Any = {"n": 1, "password": f"hunter2{text}horse"}
    for _ in range(depth):
        line = json.dumps(line)
    kept = without_secrets(line)
    assert "hunter2" not in kept
    assert "horse" not in kept


def test_values_are_gone_through_to_their_ends() -> None:
    value: dict[str, Any] = {"a": [{"b": f"token={SECRET}"}], f"token={SECRET}": None, "n": 1.5, "t": True}
    value |= {"api_key": SECRET, "deep": {"Password": SECRET}, "tokens": [SECRET], "credentials": {"a": SECRET}}
    found = value_without_secrets(value)
    assert SECRET not in str(found)
    assert (found["n"], found["t"]) == (1.5, True)


def test_long_texts_take_little_time() -> None:
    """Each of them is no secret, and looks like one for as long as possible.

    A pattern that takes the square of its length takes longer than a test may.
    """
    quoted = (
        'token="' * 9_000,
        "token='a\\" * 7_000,
        'token:\\\\\\"' * 5_000,
        "token-" * 9_000,
        "token=" + " " * 60_000,
    )
    ends = ("-----END " * 6_000, "-----BEGIN A-----" * 3_000, "cookie:" * 8_000, "eyJaaaaa-" * 7_000, "eft_" * 9_000)
    for text in (
        "a" * 60_000,
        "-----BEGIN " * 5_000,
        "token" * 12_000,
        "://" * 20_000,
        "Bearer " * 8_000,
        *quoted,
        *ends,
    ):
        assert isinstance(without_secrets(text * 6), str)
