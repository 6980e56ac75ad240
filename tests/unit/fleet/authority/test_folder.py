"""The authority's files: made once, by one, for the controller's eyes only."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.controller.authority.ca import new_authority
from fleet.controller.authority.folder import open_authority, read_authority
from gateway.common.domain.errors import ConfigurationError


def test_it_is_made_once(tmp_path, now) -> None:
    first = open_authority(tmp_path / "deep" / "authority", now)
    again = open_authority(tmp_path / "deep" / "authority", now)
    assert again.pem == first.pem
    assert again.key_pem == first.key_pem
    assert stat.S_IMODE((tmp_path / "deep" / "authority" / "ca.key").stat().st_mode) == 0o600


def test_of_many_that_start_at_once_one_makes_it(tmp_path, now) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: open_authority(tmp_path, now).pem, range(8)))
    assert len(made) == 1


def test_a_start_that_stopped_between_its_files_goes_on(tmp_path, now) -> None:
    first = open_authority(tmp_path, now)
    (tmp_path / "ca.pem").unlink()
    assert open_authority(tmp_path, now).key_pem == first.key_pem


def test_earlier_authorities_follow_in_the_file(tmp_path, now) -> None:
    made, old = open_authority(tmp_path, now), new_authority(now)
    (tmp_path / "ca.pem").write_bytes(made.pem + old.pem)
    assert open_authority(tmp_path, now).trusted == (made.certificate, old.certificate)


@pytest.mark.parametrize(
    ("file", "content", "mode_says"),
    [
        ("ca.key", None, (0o644, "chmod 600")),
        ("ca.key", b"junk", (0o600, "no private key")),
        ("ca.pem", b"junk", (0o644, "no PEM certificate")),
        ("ca.pem", new_authority, (0o644, "not that of the key")),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, now, file, content, mode_says) -> None:
    mode, says = mode_says
    open_authority(tmp_path, now)
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content(now).pem)
    (tmp_path / file).chmod(mode)
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_authority(tmp_path, now)
    assert file in str(caught.value)


def test_a_key_with_a_certificate_that_may_not_sign(tmp_path, now) -> None:
    certificate, key = new_authority(now).issue_server(["localhost"], now)
    (tmp_path / "k").write_bytes(key)
    (tmp_path / "k").chmod(0o600)
    (tmp_path / "c").write_bytes(certificate)
    with pytest.raises(ConfigurationError, match="no CA's certificate"):
        read_authority(tmp_path / "k", tmp_path / "c")
