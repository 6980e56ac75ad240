"""Names and origins: which hosts a request may ask, and what is a host or an origin in the configuration."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.http.browsers import check_host, own_names
from gateway.serving.frontends.rest_v2.settings import RestSettings

NAMES = own_names(("camera-7.lan", "*.example.org"))


@pytest.mark.parametrize(
    "host",
    [
        None,
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "a.localhost",
        "127.0.0.1",
        "127.9.9.9:1",
        "[::1]:8000",
        "[::1]",
        "192.168.1.9:8000",
        "[2001:db8::1]",
        socket.gethostname(),
        f"{socket.gethostname().partition('.')[0]}.local:8000",
        "camera-7.lan",
        "Camera-7.LAN:80",
        "a.example.org",
    ],
)
def test_hosts_that_are_ours(host: str | None) -> None:
    check_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "example.org",
        "camera-8.lan",
        "notlocalhost",
        "localhost:80:80",
        "localhost:x",
        "a b",
        "a/b",
        "user@localhost",
        "[::1",
        "::1",
        "[]",
        "[evil]",
        ":80",
        "0x7f000001",
        "2130706433",
    ],
)
def test_hosts_that_are_not(host: str) -> None:
    with pytest.raises(RequestError, match=r"\[http\] hosts") as refused:
        check_host(host, NAMES)
    assert refused.value.fault is Fault.DENIED


@given(st.text(max_size=30))
def test_any_host_is_ours_or_refused(host: str) -> None:
    check_host(host, ("*",))
    try:
        check_host(host, NAMES)
    except RequestError as refused:
        assert refused.fault is Fault.DENIED  # noqa: PT017


@pytest.mark.parametrize(
    ("key", "good"),
    [
        ("hosts", ("camera-7", "camera_7.lan", "*.example.org", "*")),
        (
            "cors_origins",
            ("https://panel.example.org", "http://localhost:3000", "http://[::1]:3000", "http://10.0.0.1"),
        ),
    ],
)
def test_words_of_the_configuration(key: str, good: tuple[str, ...]) -> None:
    assert getattr(RestSettings(**{key: good}), key) == good  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        *(("hosts", bad) for bad in ("", "a:80", "http://a", "a b", "*a", "a.*", ".a", "a..b")),
        *(
            ("cors_origins", bad)
            for bad in (
                "",
                "*",
                "null",
                "panel.example.org",
                "ftp://a",
                "https://A",
                "https://a/",
                "https://a/b",
                "https://u@a",
                "https://a?b",
                "https://",
                "https://a:99999",
                "https://é",
            )
        ),
    ],
)
def test_words_that_are_none(key: str, bad: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RestSettings(**{key: (bad,)})  # type: ignore[arg-type]
    assert (refused.value.table, refused.value.key) == ("http", key)
