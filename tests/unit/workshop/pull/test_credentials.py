"""Credentials: where they come from, and files that are not safe."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.source import FetchError
from gateway.workshop.pull.access import check_url, is_loopback, origin, split_url
from gateway.workshop.pull.bucket import S3Keys
from gateway.workshop.pull.credentials import PASSWORD, TOKEN, USER, PullLogin, read_keys, read_login, unsafe_mode
from gateway.workshop.pull.registry import Challenge, read_challenge
from gateway.workshop.pull.settings import PullSettings

SETTINGS = PullSettings(credentials_limit_bytes=1000)
HOST = "r.example:5000"
LOGIN = PullLogin("me", "se:cret")


def write(file: Path, document: object, mode: int = 0o600) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    file.chmod(mode)
    return file


def logins(*hosts: str) -> object:
    return {"auths": {host: {"auth": base64.b64encode(b"me:se:cret").decode()} for host in hosts}}


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("REGISTRY_AUTH_FILE", "auth.json"),
        ("XDG_RUNTIME_DIR", "containers/auth.json"),
        ("DOCKER_CONFIG", "config.json"),
    ],
)
def test_the_usual_files_are_read(tmp_path: Path, variable: str, place: str) -> None:
    write(tmp_path / place, logins(f"https://{HOST}/v1/", "else.example"))
    value = tmp_path / place if variable == "REGISTRY_AUTH_FILE" else tmp_path
    environ = {variable: str(value), "DOCKER_CONFIG": str(tmp_path)}
    assert read_login(HOST, None, SETTINGS, environ) == LOGIN
    assert read_login("other.example", None, SETTINGS, environ) is None


def test_the_environment_comes_first() -> None:
    assert read_login(HOST, None, SETTINGS, {USER: "me", PASSWORD: "se:cret"}) == LOGIN
    assert read_login(HOST, "/nowhere", SETTINGS, {TOKEN: "t"}) == PullLogin(token="t")
    assert PullLogin(token="t").authorization == "Bearer t"
    assert LOGIN.authorization == "Basic " + base64.b64encode(b"me:se:cret").decode()
    assert "cret" not in repr(LOGIN)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_is_refused_if_it_is_used(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path / "config.json", logins(HOST), mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_login(HOST, str(file), SETTINGS, {})
    assert read_login("other.example", str(file), SETTINGS, {}) is None
    keys = write(tmp_path / "keys", "[default]\naws_access_key_id=a\naws_secret_access_key=b\n", mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_keys(str(keys), SETTINGS, {})


@pytest.mark.parametrize("value", ["a\nb", "ü", "a\r\nX: y"])
def test_secrets_do_not_end_a_header(value: str) -> None:
    with pytest.raises(ConfigurationError, match="beyond ASCII"):
        read_login(HOST, None, SETTINGS, {TOKEN: value})
    for changed in ({"AWS_ACCESS_KEY_ID": value}, {"AWS_SESSION_TOKEN": value}):
        with pytest.raises(ConfigurationError, match="beyond ASCII"):
            read_keys(None, SETTINGS, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", **changed})


def test_a_file_of_another_user_is_refused() -> None:
    assert "another user" in unsafe_mode(0o100600, 1000, 1001)
    assert not unsafe_mode(0o100600, 0, 1001)
    assert not unsafe_mode(0o100600, 1001, 1001)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"auths": 1}', '{"auths": {"r.example:5000": {"auth": "?"}}}', '{"auths": {"r.example:5000": 1}}'],
)
def test_a_file_of_no_logins_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match="docker login"):
        read_login(HOST, str(write(tmp_path / "f", content)), SETTINGS, {})


def test_files_that_are_absent_large_or_no_files_are_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "absent", tmp_path, write(tmp_path / "large", "x" * 1001)):
        for read in (lambda name: read_login(HOST, name, SETTINGS, {}), lambda name: read_keys(name, SETTINGS, {})):
            with pytest.raises(ConfigurationError):
                read(str(file))


def test_keys_of_buckets(tmp_path: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    assert read_keys(None, SETTINGS, environ) == S3Keys("a", "b", "c")
    text = "[default]\naws_access_key_id = a\naws_secret_access_key = %b\n[other]\nregion = x\n"
    file = write(tmp_path / "keys", text)
    assert read_keys(str(file), SETTINGS, environ) == S3Keys("a", "%b")
    assert read_keys(None, SETTINGS, {"AWS_SHARED_CREDENTIALS_FILE": str(file)}) == S3Keys("a", "%b")
    for profile in ("other", "none"):
        assert read_keys(str(file), SETTINGS, {"AWS_PROFILE": profile}) is None
    assert read_keys(None, SETTINGS, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "absent")}) is None
    with pytest.raises(ConfigurationError, match="aws configure"):
        read_keys(str(write(tmp_path / "bad", "key = 1")), SETTINGS, {})


@pytest.mark.parametrize(
    ("text", "challenge"),
    [
        ('Bearer realm="https://a/t?x=1",service="s",scope="x"', Challenge("bearer", "https://a/t?x=1", "s")),
        ('bearer service=s , realm="a\\"b"', Challenge("bearer", 'a"b', "s")),
        ('Basic realm="r"', Challenge("basic", "r")),
        ("Negotiate", Challenge("negotiate")),
        ("", None),
        ("=", None),
    ],
)
def test_challenges(text: str, challenge: Challenge | None) -> None:
    assert read_challenge(text) == challenge


@given(st.text())
def test_any_challenge_is_read(text: str) -> None:
    read_challenge(text)
    read_challenge(f"Bearer {text}")


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_device(host: str) -> None:
    assert is_loopback(host)
    check_url(f"http://[{host}]/" if ":" in host else f"http://{host}/")


UNASKED = ["http://r.example/", "http://10.0.0.1/", "http://localhost.example/", "ftp://localhost/", "", "https://["]


@pytest.mark.parametrize("url", [*UNASKED, "https://h:99999/"])
def test_urls_that_are_not_asked(url: str) -> None:
    with pytest.raises(FetchError) as caught:
        check_url(url)
    assert caught.value.final


def test_origins() -> None:
    assert origin("https://H/x") == origin("https://h:443/y") == ("https", "h", 443)
    assert len({origin(url) for url in ("https://h", "http://h", "https://h:444", "https://i")}) == 4
    assert split_url("https://h:1/a/b?c=/d#e") == ("https://h:1/", "a/b?c=/d")
    assert split_url("https://h") == ("https://h/", "")
