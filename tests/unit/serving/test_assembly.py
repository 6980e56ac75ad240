"""Real trials and sessions through the loader: a file that changed since it was read is neither judged nor served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.inventory import Board, Cpu, Inventory
from gateway.common.domain.manifest import Golden
from gateway.common.domain.profile import Budget, DeviceMatch, LadderStep, Profile
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.selection import Site
from gateway.common.domain.verdict import RuntimeStatus, Verdict
from gateway.common.domain.verdict import SessionBudget as VerdictBudget
from gateway.serving import assembly
from gateway.serving.config import Config, GatewaySettings, ModelsSettings
from gateway.serving.hardware.profiles import profiles_folder
from gateway.serving.store.library import scan
from gateway.serving.store.state import StateStore
from tests.simulators import models

PROFILE = Profile("test", "", 0, DeviceMatch(), Budget(), (LadderStep("cpu", "reference", ("fp32",)),))
SITE = Site(
    Inventory("x86_64", Board(), Cpu(), 1),
    PROFILE,
    {name: RuntimeStatus(name, "1") for name in RUNTIMES},
)


@pytest.fixture
def state(tmp_path):
    state = StateStore.open(tmp_path / "state")
    yield state
    state.close()


@pytest.fixture
def loader(state):
    return assembly.loader(Config(), SITE, state, lambda _event: None)


@pytest.fixture
def release(tmp_path):
    models.write_release(tmp_path / "models", models.identity(), "reference")
    (found,) = scan(tmp_path / "models")
    assert not found.problem
    return found


def model_file(release):
    return release.folder / release.manifest.variants[0].artifacts[0].path


def test_a_bare_model_that_is_copied_again_while_it_is_inspected_is_not_judged_by_half_of_it(loader, state, tmp_path):
    source = Path(__file__).parents[3] / "models/activity/1/onnx-fp32/model.onnx"
    file = tmp_path / "models" / "bare.onnx"
    file.parent.mkdir()
    file.write_bytes(good := source.read_bytes())
    (bare,) = scan(file.parent)
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(VariantError, match=r"bare\.onnx changed since it was read") as refusal:
        asyncio.run(loader.manifest(bare))
    assert refusal.value.transient
    assert state.signature(bare.digest) is None
    file.write_bytes(good)
    assert asyncio.run(loader.manifest(bare)).inputs
    file.write_bytes(b"no model")
    (broken,) = scan(file.parent)
    with pytest.raises(VariantError) as refusal:
        asyncio.run(loader.manifest(broken))
    assert not refusal.value.transient
    assert "edge-gateway-opened" not in str(refusal.value)


def test_a_file_that_changed_since_it_was_read_has_no_verdict_under_the_old_digest(loader, release):
    good = model_file(release).read_bytes()
    model_file(release).write_bytes(b"half of an upload")
    (candidate,) = loader.plan(release.manifest)
    proven = asyncio.run(loader.prove(release, release.manifest, candidate))
    assert not proven.eligible
    assert "changed since it was read; reload the models" in proven.reason
    model_file(release).write_bytes(good)
    (again,) = loader.candidates(release.manifest)
    assert again.eligible
    assert again.verdict is None


def test_a_golden_set_that_changed_since_it_was_read_decides_nothing(loader, release):
    file = release.folder / "golden.npz"
    file.write_bytes(b"half of an upload")
    golden = Golden("golden.npz", "0" * 64)
    release = replace(release, manifest=replace(release.manifest, golden=golden))
    (candidate,) = loader.plan(release.manifest)
    asyncio.run(loader.prove(release, release.manifest, candidate))
    assert loader.candidates(release.manifest)[0].verdict is None


def test_a_proven_file_that_changed_since_is_not_opened(loader, release):
    (candidate,) = loader.plan(release.manifest)
    proven = asyncio.run(loader.prove(release, release.manifest, candidate))
    assert proven.passed, proven.reason
    model_file(release).write_bytes(model_file(release).read_bytes() + b"\0")
    with pytest.raises(VariantError, match="changed since it was read; reload the models"):
        asyncio.run(loader.open(release, proven, release.manifest))


# ---- what is compiled in a trial and loaded later -------------------------------------------------------------------
@pytest.fixture
def compiling(tmp_path):
    return VerdictBudget(cache_dir=str(tmp_path / "compiled" / "content"))


def test_what_is_compiled_in_a_trial_is_compiled_from_the_named_bytes(loader, release, compiling, monkeypatch):
    """The store is written to once the digests were taken."""
    good, seen = model_file(release).read_bytes(), []

    async def exchange_and_try(manifest, variant, files, budget, _settings):
        model_file(release).write_bytes(b"other weights")
        seen.append(((files / variant.artifacts[0].path).read_bytes(), Path(budget.cache_dir).is_dir()))
        return Verdict(False, f"{files}/model.npz is no good")

    monkeypatch.setattr("gateway.serving.runtimes.trial.try_variant", exchange_and_try)
    variant = release.manifest.variants[0]
    found = asyncio.run(loader.trial(release.manifest, variant, release.folder, compiling))
    assert seen == [(good, True)]
    assert found.reason == f"{release.folder}/model.npz is no good"
    found = asyncio.run(loader.trial(release.manifest, variant, release.folder, compiling))
    assert (len(seen), found.transient, "changed since it was read" in found.reason) == (1, True, True)


def test_a_trial_that_compiles_passes_as_any_other(loader, release, compiling):
    variant = release.manifest.variants[0]
    found = asyncio.run(loader.trial(release.manifest, variant, release.folder, compiling))
    assert found.passed, found.reason
    golden = replace(release.manifest, golden=Golden("golden.npz", "0" * 64))
    found = asyncio.run(loader.trial(golden, variant, release.folder, compiling))
    assert (found.transient, "golden.npz changed since it was read" in found.reason) == (True, True)


def test_without_room_for_what_is_compiled_the_trial_goes_on(loader, release, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    variant, budget = release.manifest.variants[0], VerdictBudget(cache_dir=str(tmp_path / "file" / "content"))
    found = asyncio.run(loader.trial(release.manifest, variant, release.folder, budget))
    assert found.passed, found.reason


# ---- device profiles ---------------------------------------------------------------------------------------------
class Fleet:
    """A store of the fleet that holds these profiles."""

    def __init__(self, *signed):
        self.signed = signed

    async def profiles(self):
        return self.signed


def surveyed(folder, *signed):
    config = Config(gateway=GatewaySettings(profile="generic-x86", profiles_dir=str(folder)))
    return asyncio.run(assembly.survey(config, store=Fleet(*signed))).profile


def write_profile(folder, *changes):
    text = (profiles_folder() / "generic-x86.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "mine.toml").write_text(text)


def test_a_profile_of_the_site_counts_before_the_shipped_one_and_a_signed_one_before_both(tmp_path):
    shipped = surveyed(tmp_path)
    assert shipped.origin == str(profiles_folder() / "generic-x86.toml")
    write_profile(tmp_path, (shipped.description, "our own"))
    own = surveyed(tmp_path)
    assert (own.description, own.origin) == ("our own", str(tmp_path / "mine.toml"))
    signed = surveyed(tmp_path, replace(shipped, description="theirs"))
    assert (signed.description, signed.origin) == ("theirs", "signed by the fleet")


def test_a_broken_profile_of_the_site_is_named_with_its_line(tmp_path):
    write_profile(tmp_path, ("priority = 0", "priority = -1"))
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/mine.toml:\d+: priority: must be between 0 and 1000"):
        surveyed(tmp_path)


def test_a_folder_of_profiles_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/away: cannot be read: No such file or directory; name"):
        surveyed(tmp_path / "away")


def test_only_the_directory_that_was_read_may_be_empty(tmp_path, release):
    folder, away, known = tmp_path / "models", tmp_path / "away", {}
    config = replace(Config(), models=ModelsSettings(dir=str(folder)))
    assert assembly.releases(config, known) == (release,)
    folder.rename(away)
    folder.mkdir()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="empty, as after an unmount; mount its disk, or reload"):
            assembly.releases(config, known)
    assert assembly.releases(config) == ()
    folder.rmdir()
    away.rename(folder)
    assert assembly.releases(config, known) == (release,)
    (folder / release.name).rename(tmp_path / release.name)
    assert assembly.releases(config, known) == ()


@pytest.mark.parametrize("golden", [None, Golden("golden.npz", "")])
def test_a_generated_witness_is_made_once_when_it_is_needed(release, monkeypatch, golden):
    made = []
    monkeypatch.setattr("gateway.serving.runtimes.generate.witness", lambda *given: made.append(given) or {"x": 1})
    found = assembly._witness(replace(release.manifest, golden=golden), release.folder, None)
    assert len(made) == (golden is not None), "the file of a golden set may be another one later"
    assert found() == found() == {"x": 1}
    assert len(made) == 1
