"""Releases that rollouts may use: those that their owners signed, and nothing that was put among them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.controller.control.catalogue import Catalogue, resolve, usable
from fleet.controller.database import leader, releases
from fleet.controller.database.errors import ConflictError, RefusedError
from fleet.publisher.releases import target_of
from fleet.publisher.repository import target_file
from fleet.publisher.roles import owner_role
from tests.simulators.fleet_repository import new_key
from tests.simulators.rolled_fleet import SLOT, V1, V2, V3, RolledFleet, rolling

FENCE = 1
"""Fencing token of the leader that reads."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RolledFleet]:
    with rolling("sqlite", tmp_path) as made:
        assert leader.candidate(made.database, "the test").stand(made.now) == FENCE
        yield made


def catalogue(fleet: RolledFleet) -> Catalogue:
    return Catalogue(fleet.database, fleet.repository.workspace)


def known(fleet: RolledFleet) -> dict[str, bool]:
    """Return releases, and whether each is published."""
    with fleet.database.read() as connection:
        found = releases.page(connection, fleet.database.settings)
    return {one.release.target: one.withdrawn is None for one in found}


def test_only_what_is_new_is_read_and_only_after_a_publication(fleet: RolledFleet) -> None:
    looking = catalogue(fleet)
    assert looking.refresh(fleet.now, FENCE) == ()
    fleet.repository.add_release(SLOT, "3")
    file = next((fleet.repository.public / "targets" / "models" / "acme" / SLOT / "1").iterdir())
    file.unlink()  # it is not needed again
    assert looking.refresh(fleet.now, FENCE) == (V3,)
    assert known(fleet) == {V1: True, V2: True, V3: True}
    assert looking.refresh(fleet.now, FENCE) == ()
    with fleet.database.read() as connection:
        found = releases.find(connection, V3)
    assert found
    assert found.release.document["variants"]


def test_a_folder_that_is_not_there_for_a_while_withdraws_nothing(fleet: RolledFleet, tmp_path: Path) -> None:
    looking = catalogue(fleet)
    looking.refresh(fleet.now, FENCE)
    fleet.repository.public.rename(tmp_path / "away")
    assert looking.refresh(fleet.now, FENCE) == ()
    assert known(fleet) == {V1: True, V2: True}
    (tmp_path / "away").rename(fleet.repository.public)
    fleet.repository.add_release(SLOT, "3")
    assert looking.refresh(fleet.now, FENCE) == (V3,)


def test_what_an_owner_did_not_sign_is_left_out_and_withdrawn(fleet: RolledFleet, caplog) -> None:
    targets = fleet.repository.owner_targets()
    honest = copy.deepcopy(targets)
    release, document = fleet.repository.forge_release(SLOT, "9", b"the thief's")
    targets.signed.targets[release.path] = target_of(release.path, document, {"floor": "9"})
    targets.signed.version += 1
    fleet.repository.forge(owner_role("acme"), targets, [new_key("thief")])
    looking = catalogue(fleet)
    with caplog.at_level(logging.WARNING):
        looking.refresh(fleet.now, FENCE)
    assert "role excluded: models-acme is not signed by its keys" in caplog.text
    assert known(fleet) == {V1: False, V2: False}
    with fleet.database.read() as connection:
        assert usable(connection, V2) == f"{V2} is withdrawn, or not published any more"
        with pytest.raises(ConflictError, match="not published any more"):
            resolve(connection, "acme/meter-reader/2")
    honest.signed.version = targets.signed.version + 1
    fleet.repository.forge(owner_role("acme"), honest, fleet.repository.keys[owner_role("acme")])
    looking.refresh(fleet.now, FENCE)
    assert known(fleet) == {V1: True, V2: True}


def test_an_owner_signs_for_its_own_models_only(fleet: RolledFleet) -> None:
    targets = fleet.repository.owner_targets()
    release, document = fleet.repository.forge_release(SLOT, "2", b"another owner's", owner="other")
    targets.signed.targets[release.path] = target_of(release.path, document, {"floor": "2"})
    targets.signed.version += 1
    fleet.repository.forge(owner_role("acme"), targets, fleet.repository.keys[owner_role("acme")])
    catalogue(fleet).refresh(fleet.now, FENCE)
    assert known(fleet) == {V1: True, V2: True}


@pytest.mark.parametrize("damage", ["another", "gone", "no release"])
def test_a_release_whose_document_is_not_what_was_signed_is_left_out(fleet: RolledFleet, caplog, damage: str) -> None:
    fleet.repository.add_release(SLOT, "3")
    target = fleet.repository.published.target(V3)
    assert target
    file = fleet.repository.public / target_file(target)
    if damage == "gone":
        file.unlink()
    elif damage == "another":
        file.write_bytes(file.read_bytes().replace(b"reference", b"Reference"))
    else:
        targets, content = fleet.repository.owner_targets(), b'{"schema": 1}'
        targets.signed.targets[V3] = target_of(V3, content, {"floor": "1"})
        targets.signed.version += 1
        fleet.repository.put_target(targets.signed.targets[V3], content)
        fleet.repository.forge(owner_role("acme"), targets, fleet.repository.keys[owner_role("acme")])
    with caplog.at_level(logging.WARNING):
        catalogue(fleet).refresh(fleet.now, FENCE)
    assert f"release excluded: {V3}: " in caplog.text
    assert known(fleet) == {V1: True, V2: True}


def test_a_target_that_changed_is_refused_and_nothing_else_is_touched(fleet: RolledFleet, caplog) -> None:
    targets = fleet.repository.owner_targets()
    release, document = fleet.repository.forge_release(SLOT, "2", b"quietly another")
    targets.signed.targets[V2] = target_of(V2, document, {"floor": "2"})
    assert release.path == V2
    targets.signed.version += 1
    fleet.repository.forge(owner_role("acme"), targets, fleet.repository.keys[owner_role("acme")])
    with caplog.at_level(logging.WARNING):
        catalogue(fleet).refresh(fleet.now, FENCE)
    assert "was published with another digest before" in caplog.text
    with fleet.database.read() as connection:
        found = releases.find(connection, V2)
    assert found
    assert found.release.digest != target_of(V2, document).hashes["sha256"]


def test_releases_are_named_by_path_or_shortly(fleet: RolledFleet) -> None:
    with fleet.database.read() as connection:
        assert resolve(connection, V2) == resolve(connection, "acme/meter-reader/2")
        for named in ("", "acme", "models/", "acme/meter-reader/8", "../../2", "x" * 2000):
            with pytest.raises(RefusedError):
                resolve(connection, named)
