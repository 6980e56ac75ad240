"""Identity of a device: what makes it the member of a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.trust.distrust import Distrust
from gateway.device.agent.state.identity import bootstrap, read_identity
from gateway.device.store.journal import Journal
from tests.simulators.fleet_repository import FleetRepository

DOCUMENT = {
    "schema": 1,
    "device": "door-1",
    "repository": "https://fleet.example/repository/",
    "assignment": "https://fleet.example/assignments/door-1.json",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return FleetRepository(tmp_path_factory.mktemp("fleet")).root_bytes(1)


def source(folder: Path, root: bytes, text: str | None = None, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "device.json").write_text(json.dumps(DOCUMENT | changes) if text is None else text)
    (folder / "root.json").write_bytes(root)
    return folder


def test_bootstrap_lays_down_what_it_was_given_and_may_be_repeated(tmp_path: Path, root: bytes) -> None:
    given = read_identity(source(tmp_path / "given", root))
    for _ in range(2):
        made = bootstrap(given, tmp_path / "store")
        assert (made.device, made.repository, made.root) == ("door-1", DOCUMENT["repository"], root)
    assert read_identity(tmp_path / "store") == given
    Journal.open(tmp_path / "store").close()
    assert (tmp_path / "store" / "journal.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_device_does_not_become_another_one(tmp_path: Path, root: bytes) -> None:
    bootstrap(read_identity(source(tmp_path / "first", root)), tmp_path / "store")
    another = read_identity(source(tmp_path / "second", root, device="door-2"))
    with pytest.raises(ConfigurationError, match="is bootstrapped already, as door-1"):
        bootstrap(another, tmp_path / "store")
    assert read_identity(tmp_path / "store").device == "door-1"


def test_a_root_that_is_none_is_not_trusted(tmp_path: Path, root: bytes) -> None:
    spoilt = root.replace(b'"sig":', b'"gis":', 1)
    assert spoilt != root
    with pytest.raises(Distrust):
        bootstrap(read_identity(source(tmp_path / "given", spoilt)), tmp_path / "store")
    assert not (tmp_path / "store" / "device.json").exists()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another schema": ({"schema": 2}, "schema 2 is not known"),
    "a number": ({"device": 5}, "a value is no string"),
    "a path": ({"device": "../door"}, "is no device's name"),
    "nothing": ({"device": ""}, "is no device's name"),
    "no url": ({"repository": "fleet.example"}, "is no URL of https, http, file"),
    "another scheme": ({"assignment": "ftp://fleet.example/a"}, "is no URL of https, http, file"),
}


@pytest.mark.parametrize("case", BAD)
def test_documents_that_are_refused(tmp_path: Path, root: bytes, case: str) -> None:
    changes, reason = BAD[case]
    with pytest.raises(ConfigurationError, match=reason):
        read_identity(source(tmp_path / "given", root, **changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000])
def test_rubbish_is_no_device_document(tmp_path: Path, root: bytes, text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no device document"):
        read_identity(source(tmp_path / "given", root, text))


def test_a_folder_without_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"device\.json"):
        read_identity(tmp_path)
