"""The repository that other packages' tests use: python-tuf's stock client reads it after every change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Targets

from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.stock_client import StockClient

ROLES = ("root", "targets", "snapshot", "timestamp", "director", "profiles", "policy", "models-acme")
MODEL = Path(__file__).parents[3] / "models" / "meter-reader" / "1"


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    made = FleetRepository(tmp_path / "fleet")
    made.add_release("reader", "1")
    return made


@pytest.fixture
def client(tmp_path: Path, repository: FleetRepository) -> StockClient:
    """Return a client that is bootstrapped before anything changes."""
    return StockClient(tmp_path / "client", repository.public, repository.root_bytes())


def test_a_release_is_read_by_the_stock_client(client: StockClient) -> None:
    assert json.loads(client.download("models/acme/reader/1/release"))["variants"][0]["name"] == "only"


def test_a_model_folder_becomes_a_release_with_every_file_as_a_blob(
    repository: FleetRepository, client: StockClient
) -> None:
    release = json.loads(client.download(repository.add_model(MODEL)))
    files = [artifact for variant in release["variants"] for artifact in variant["artifacts"]]
    assert len(files) == 9
    for artifact in (release["manifest"], release["golden"], *files):
        assert (repository.public / "blobs/sha256" / artifact["sha256"]).stat().st_size == artifact["bytes"]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_can_be_rotated_under_a_client(repository: FleetRepository, client: StockClient, role: str) -> None:
    client.download("models/acme/reader/1/release")
    repository.add_file("profiles/lab.toml", b"x")
    repository.add_file("policy/hours.json", b"{}")
    before = {key.public_key.keyid for key in repository.keys[role]}
    repository.rotate(role)
    assert before.isdisjoint(key.public_key.keyid for key in repository.keys[role])
    for path in ("models/acme/reader/1/release", "profiles/lab.toml", "policy/hours.json"):
        assert client.download(path)


def test_assignments_name_published_targets(repository: FleetRepository) -> None:
    first, second = (repository.assign("camera-7", {"reader": "models/acme/reader/1/release"}) for _ in range(2))
    documents = [json.loads(content)["signed"] for content in (first, second)]
    assert [document["version"] for document in documents] == [1, 2]
    target = documents[1]["targets"]["models/acme/reader/1/release"]
    assert target["custom"] == {"slot": "reader"}
    assert documents[1]["device"] == "camera-7"
    assert (repository.public / "assignments/camera-7.json").read_bytes() == second


def test_an_attacker_with_the_online_keys_forges_what_no_client_takes(
    repository: FleetRepository, client: StockClient
) -> None:
    client.download("models/acme/reader/1/release")
    owner = repository.owner_targets()
    owner.signed.version += 1
    owner.signed.targets.clear()
    repository.forge("models-acme", owner, [new_key()])
    with pytest.raises(RepositoryError, match="signed by 0/1"):
        client.download("models/acme/reader/1/release")


def test_an_attacker_with_the_owners_key_is_believed(repository: FleetRepository, client: StockClient) -> None:
    """The forgery itself is sound: it is the signature that was missing above."""
    owner: Metadata[Targets] = repository.owner_targets()
    owner.signed.version += 1
    repository.forge("models-acme", owner, repository.keys["models-acme"])
    assert client.download("models/acme/reader/1/release")
