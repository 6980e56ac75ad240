"""Publishing may stop anywhere: whatever part of it is written, devices go on, and doing it again ends it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tuf.api.exceptions import RepositoryError

from fleet.publisher import signing
from fleet.publisher.drafts import Draft
from fleet.publisher.publish import Publication, choose_ready, is_published, plan_publication
from fleet.publisher.releases import target_of
from fleet.publisher.roles import ROOT, TARGETS
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.stock_client import StockClient

TARGET = "models/acme/reader/1/release"
ROLES = ("root", "targets", "snapshot", "timestamp", "director", "profiles", "models-acme")


class Watched(FleetRepository):
    """Repository that tries every beginning of a publication on existing clients before it publishes."""

    clients: Path | None = None
    refused = 0
    """Beginnings from which a client could not refresh."""

    def write(self, publication: Publication) -> None:
        for length in range(len(publication.files) + 1) if self.clients else ():
            self._try(publication, length)
        super().write(publication)

    def _try(self, publication: Publication, length: int) -> None:
        assert self.clients
        public = self.clients.with_name("partly-public")
        shutil.copytree(self.public, public)
        for name, content in publication.files[:length]:
            (public / name).write_bytes(content)
        device = self.clients.with_name("device")
        shutil.copytree(self.clients, device)
        try:
            StockClient(device, public, self.root_bytes(1)).refresh()
            StockClient(self.clients.with_name("new-device"), public, self.root_bytes(1)).refresh()
        except RepositoryError:
            self.refused += 1
        for folder in (public, device, self.clients.with_name("new-device")):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def repository(tmp_path: Path) -> Watched:
    made = Watched(tmp_path / "fleet")
    made.add_release("reader", "1")
    made.add_file("profiles/lab.toml", b"x")
    StockClient(tmp_path / "client", made.public, made.root_bytes()).refresh()
    made.clients = tmp_path / "client"
    return made


def change(repository: FleetRepository, what: str) -> None:
    """Do one thing that a publisher does."""
    if what in ROLES:
        repository.rotate(what)
    elif what == "release":
        repository.add_release("reader", str(len(repository.owner_targets().signed.targets) + 1))
    elif what == "owner":
        repository.add_owner("other", keys=2, threshold=2)
    else:
        repository.publish()


@pytest.mark.parametrize("what", [*ROLES, "release", "owner", "nothing"])
def test_clients_refresh_from_every_beginning_of_a_publication(repository: Watched, what: str) -> None:
    change(repository, what)
    assert repository.refused == 0


@given(st.lists(st.sampled_from([*ROLES, "release", "nothing"]), min_size=2, max_size=4))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_also_from_those_of_several_changes(tmp_path_factory: pytest.TempPathFactory, changes: list[str]) -> None:
    folder = tmp_path_factory.mktemp("several")
    repository = Watched(folder / "fleet")
    repository.add_release("reader", "1")
    repository.add_file("profiles/lab.toml", b"x")
    StockClient(folder / "client", repository.public, repository.root_bytes()).refresh()
    repository.clients = folder / "client"
    for what in changes:
        change(repository, what)
    assert repository.refused == 0
    assert StockClient(folder / "last", repository.public, repository.root_bytes(1)).download(TARGET)


SHARERS = {"targets": ("profiles", "policy"), "snapshot": ("timestamp",), "timestamp": ("snapshot",)}
"""Roles that begin with the same keys."""


@pytest.mark.parametrize("role", SHARERS)
def test_lost_keys_leave_one_beginning_from_which_devices_wait(repository: Watched, tmp_path: Path, role: str) -> None:
    """Between the new root and the timestamp: without the old keys nothing can satisfy both roots at once."""
    for sharer in SHARERS[role]:
        repository.rotate(sharer)
    repository.retired.clear()
    repository.rotate(role, lost=True)
    assert repository.refused == 1
    assert StockClient(tmp_path / "later", repository.public, repository.root_bytes(1)).download(TARGET)


def test_the_timestamp_comes_last_and_content_first(repository: Watched) -> None:
    names: list[str] = []
    repository.write = lambda publication: names.extend(name for name, _ in publication.files)  # type: ignore[method-assign]
    repository.add_owner("second")
    assert names == ["metadata/3.targets.json", "metadata/5.snapshot.json", "metadata/timestamp.json"]


def test_publishing_what_is_published_changes_the_timestamp_only(repository: FleetRepository) -> None:
    before = repository.published
    repository.publish()
    after = repository.published
    assert after.timestamp.signed.version == before.timestamp.signed.version + 1
    assert (after.snapshot, after.targets, after.roles) == (before.snapshot, before.targets, before.roles)


def test_a_snapshot_that_runs_out_is_signed_anew(repository: FleetRepository) -> None:
    before = repository.published.snapshot
    repository.now += timedelta(days=4)
    repository.publish()
    assert repository.published.snapshot.signed.version == before.signed.version + 1


def draft_of_a_release(repository: FleetRepository) -> Draft:
    """Return a draft without signatures."""
    return signing.renew(repository.drafting(), "models-acme")


def test_an_unsigned_draft_waits_and_hinders_nobody(repository: FleetRepository) -> None:
    draft = draft_of_a_release(repository)
    ready, waiting = choose_ready(repository.published, [draft], repository.now)
    assert (dict(ready), list(waiting)) == ({}, ["models-acme"])
    repository.workspace.save([draft])
    publication = repository.plan()
    assert publication.waiting == {"models-acme": "it lacks 1 signature: edge-fleet sign drafts/models-acme.json"}
    assert [name for name, _ in publication.files] == ["metadata/timestamp.json"]


def test_who_may_sign_changes_only_together_with_what_is_signed(repository: FleetRepository) -> None:
    key = new_key()
    targets, owner = signing.delegate(repository.drafting(), "models-acme", [key.public_key], 1)
    targets = signing.signed_with(targets, repository.keys[TARGETS][0])
    ready, waiting = choose_ready(repository.published, [targets, owner], repository.now)
    assert not ready
    assert waiting["targets"] == "it changes who signs models-acme, which these keys have not signed yet"
    owner = signing.signed_with(owner, key)
    ready, waiting = choose_ready(repository.published, [targets, owner], repository.now)
    assert (set(ready), dict(waiting)) == ({"targets", "models-acme"}, {})
    ready, waiting = choose_ready(repository.published, [owner], repository.now)
    assert waiting == {
        "models-acme": "it is not signed by the keys that targets names; make it again, or publish targets first"
    }


def test_root_waits_for_the_targets_whose_keys_it_changes(repository: FleetRepository) -> None:
    root, targets = signing.rotate(repository.drafting(), TARGETS, [new_key().public_key], 1)
    for signer in repository.keys[ROOT][:2]:
        root = signing.signed_with(root, signer)
    ready, waiting = choose_ready(repository.published, [root, targets], repository.now)
    assert not ready
    assert set(waiting) == {"root", "targets"}


def test_a_draft_overtaken_by_another_is_not_published(repository: FleetRepository) -> None:
    draft = signing.signed_with(draft_of_a_release(repository), repository.keys["models-acme"][0])
    repository.add_release("reader", "2")
    _, waiting = choose_ready(repository.published, [draft], repository.now)
    assert waiting["models-acme"].startswith("it is version 2, 3 comes next")


def test_an_expired_draft_is_not_published(repository: FleetRepository) -> None:
    draft = signing.signed_with(draft_of_a_release(repository), repository.keys["models-acme"][0])
    _, waiting = choose_ready(repository.published, [draft], repository.now + timedelta(days=181))
    assert waiting == {"models-acme": "it has expired: make the change again"}


def test_a_published_draft_is_none_anymore(repository: FleetRepository) -> None:
    draft = signing.signed_with(draft_of_a_release(repository), repository.keys["models-acme"][0])
    repository.workspace.save([draft])
    publication = repository.plan()
    assert publication.roles == ("models-acme",)
    assert is_published(draft, publication.state)
    repository.write(publication)
    assert repository.workspace.drafts() == {}
    again = plan_publication(
        repository.published, [draft], repository.keys["timestamp"], repository.now, repository.workspace.settings
    )
    assert again.roles == ()


def test_without_the_online_keys_nothing_is_published(repository: FleetRepository) -> None:
    with pytest.raises(ConfigurationError, match=r"timestamp 5 lacks 1 signature.* name its keys with --key"):
        plan_publication(repository.published, [], [new_key()], repository.now, repository.workspace.settings)


def test_a_release_whose_content_is_gone_is_not_published(repository: FleetRepository) -> None:
    draft = repository.drafting()
    target, content = target_of("profiles/gone.toml", b"gone"), b"gone"
    made = signing.add_targets(draft, "profiles", [(target, content)])
    repository.workspace.save([signing.signed_with(made, repository.keys["profiles"][0])])
    before = repository.published
    with pytest.raises(ConfigurationError, match="is needed by a draft and is neither there nor in public"):
        repository.write(repository.plan())
    assert repository.published == before


def test_a_forged_signature_counts_nothing(repository: FleetRepository) -> None:
    draft = draft_of_a_release(repository)
    forged = replace(draft, metadata=signing.signed_with(draft, repository.keys["models-acme"][0]).metadata)
    (signature,) = forged.metadata.signatures.values()
    signature.signature = "00" * 64
    assert forged.missing == 1
