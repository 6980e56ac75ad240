"""The installer's own root of trust: the first one stays, and what it leads to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.trust.distrust import Distrust
from gateway.device.installer.cli.parser import PROGRAM, main
from gateway.device.installer.record import InstallRecords
from gateway.device.installer.verification import pin
from tests.simulators.fleet_repository import FleetRepository

LIMIT_BYTES = 1_000_000


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    return FleetRepository(tmp_path / "publisher")


@pytest.fixture
def records(tmp_path: Path) -> InstallRecords:
    return InstallRecords(tmp_path / "state")


def test_the_first_root_is_kept_and_the_same_again_is_harmless(
    records: InstallRecords, repository: FleetRepository
) -> None:
    root = repository.root_bytes(1)
    assert pin(records, root) == 1
    assert pin(records, root) == 1
    assert records.root(LIMIT_BYTES) == root
    assert (records.folder / "root.json").stat().st_mode & 0o777 == 0o644


def test_another_fleets_root_takes_its_place_only_where_that_is_asked_for(
    records: InstallRecords, repository: FleetRepository, tmp_path: Path
) -> None:
    pin(records, repository.root_bytes(1))
    other = FleetRepository(tmp_path / "other").root_bytes(1)
    with pytest.raises(ConfigurationError, match="--replace"):
        pin(records, other)
    assert records.root(LIMIT_BYTES) == repository.root_bytes(1)
    pin(records, other, replace=True)
    assert records.root(LIMIT_BYTES) == other


def test_an_older_or_a_newer_root_of_the_same_fleet_changes_nothing(
    records: InstallRecords, repository: FleetRepository
) -> None:
    repository.rotate("root")
    pin(records, repository.root_bytes(2))
    assert pin(records, repository.root_bytes(1)) == 2
    assert records.root(LIMIT_BYTES) == repository.root_bytes(2)


def test_a_root_that_is_not_signed_by_itself_is_refused(records: InstallRecords, repository: FleetRepository) -> None:
    forged = json.loads(repository.root_bytes(1))
    forged["signed"]["version"] = 2
    with pytest.raises(Distrust):
        pin(records, json.dumps(forged).encode())
    assert records.root(LIMIT_BYTES) is None


@pytest.mark.parametrize("verb", PROGRAM.verbs, ids=lambda verb: verb.name)
def test_every_verb_shows_examples(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb.name, "--help"])  # type: ignore[attr-defined]
    assert "examples:" in capsys.readouterr().out


def test_outside_an_installed_version_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 2
    assert "make install" in capsys.readouterr().err
