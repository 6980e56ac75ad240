"""Releases: from a folder to the document that its owner signs; floors never fall and never exceed the release."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.publisher.releases import (
    Terms,
    build_release,
    choose_floor,
    model_files,
    model_floor,
    plan_release,
    read_model,
)
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.routing import version_order
from gateway.common.domain.signed_release import disagreement, read_release, release_bytes
from tests.simulators.fleet_repository import FleetRepository

MODELS = Path(__file__).parents[3] / "models"
NOW = datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC)
VERSIONS = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,2})?(-rc[0-9])?", fullmatch=True)


@pytest.mark.parametrize("name", ["meter-reader", "activity"])
def test_a_release_says_what_its_manifest_says(name: str) -> None:
    model = read_model(MODELS / name / "1", FleetSettings())
    release = build_release(model, "acme", Terms(), "1", NOW)
    again = read_release(release_bytes(release))
    assert again == release
    assert disagreement(again, model.manifest) == ""
    assert again.released_at == datetime(2026, 11, 21, 9, 30, 15, tzinfo=UTC)
    assert again.target == f"models/acme/{name}/1/release"


def test_every_file_of_every_variant_is_published_once() -> None:
    release = build_release(read_model(MODELS / "meter-reader" / "1", FleetSettings()), "acme", Terms(), "1", NOW)
    names = sorted(file.path for file in model_files(release))
    assert len(names) == len({file.sha256 for file in model_files(release)}) == 11
    assert {"manifest.toml", "golden.npz", "onnx-int8/model.onnx", "reference/model.npz"} <= set(names)


def test_the_golden_set_of_a_pipeline_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "chain" / "1"
    folder.mkdir(parents=True)
    (folder / "golden.npz").write_bytes(b"set")
    text = 'schema = 1\nname = "chain"\nversion = "1"\n[input]\nx = "FP32[4]"\n'
    text += '[[step]]\nname = "s"\nmodel = "m"\nof = "x"\n[output]\ny = "s.y"\n'
    text += f'[golden]\nfile = "golden.npz"\nsha256 = "{hashlib.sha256(b"set").hexdigest()}"\n'
    (folder / "pipeline.toml").write_text(text)
    model = read_model(folder, FleetSettings())
    release = build_release(model, "acme", Terms(), "1", NOW)
    assert disagreement(read_release(release_bytes(release)), model.manifest) == ""
    assert sorted(file.path for file in model_files(release)) == ["golden.npz", "pipeline.toml"]


@given(VERSIONS, st.none() | VERSIONS, st.none() | VERSIONS)
@settings(deadline=None)
def test_a_floor_never_falls_and_never_exceeds_its_release(
    version: str, wanted: str | None, standing: str | None
) -> None:
    try:
        floor = choose_floor(wanted, standing, version)
    except ConfigurationError:
        refused = wanted or standing or version
        below = version_order(version) < version_order(refused)
        assert below or (standing and version_order(wanted or standing) < version_order(standing))
        return
    assert version_order(floor) <= version_order(version)
    assert standing is None or version_order(floor) >= version_order(standing)
    assert wanted is None or floor == wanted


def test_the_floor_of_a_model_is_the_greatest_that_its_owner_signed(tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path)
    repository.add_release("reader", "1")
    repository.add_release("reader", "9")
    repository.add_release("reader", "10", floor="9")
    repository.add_release("reader", "11")
    repository.add_release("other", "1")
    targets = repository.owner_targets().signed
    floors = {
        path.split("/")[3]: target.custom["floor"] for path, target in targets.targets.items() if "reader" in path
    }
    assert floors == {"1": "1", "9": "1", "10": "9", "11": "9"}
    assert model_floor(targets, "acme", "reader") == "9"
    assert model_floor(targets, "acme", "other") == "1"
    assert model_floor(targets, "acme", "third") is None
    assert model_floor(None, "acme", "reader") is None


def test_what_is_published_never_changes(tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path)
    repository.add_release("reader", "1")
    with pytest.raises(ConfigurationError, match="is published already and never changes"):
        repository.add_release("reader", "1", variants={"only": b"other"})


def test_what_is_drafted_may_change(tmp_path: Path) -> None:
    """Its own floor may change, too: it is not published yet."""
    repository = FleetRepository(tmp_path)
    repository.add_owner("acme")
    model = read_model(MODELS / "activity" / "1", FleetSettings())
    first = plan_release(repository.drafting(), model, "acme", Terms("1"))
    repository.workspace.save([first.draft])
    second = plan_release(repository.drafting(), model, "acme", Terms("0.5"))
    assert second.target.custom == {"floor": "0.5"}
    assert list(second.draft.metadata.signed.targets) == ["models/acme/activity/1/release"]


def test_an_owner_that_nobody_delegated_to_releases_nothing(tmp_path: Path) -> None:
    model = read_model(MODELS / "activity" / "1", FleetSettings())
    with pytest.raises(ConfigurationError, match="there is no role 'models-nobody'"):
        plan_release(FleetRepository(tmp_path).drafting(), model, "nobody", Terms())


def test_a_folder_without_a_manifest_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"holds no manifest\.toml and no pipeline\.toml; name the folder of one version"
    ):
        read_model(tmp_path, FleetSettings())


def test_a_golden_set_that_is_missing_is_said(tmp_path: Path) -> None:
    text = (MODELS / "activity" / "1" / "manifest.toml").read_text()
    (tmp_path / "manifest.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"golden\.npz: cannot be read"):
        read_model(tmp_path, FleetSettings())


def test_content_that_changed_meanwhile_is_not_staged(tmp_path: Path) -> None:
    repository = FleetRepository(tmp_path / "fleet")
    folder = tmp_path / "reader" / "1"
    folder.mkdir(parents=True)
    (folder / "model.npz").write_bytes(b"other")
    artifact = model_files(
        build_release(read_model(MODELS / "activity" / "1", FleetSettings()), "acme", Terms(), "1", NOW)
    )[-1]
    with pytest.raises(ConfigurationError, match="it changed meanwhile"):
        repository.workspace.stage_blob(folder / "model.npz", artifact)
    assert not any(file.is_file() for file in repository.workspace.staged.rglob("*"))
