"""Real trials and sessions through the loader: a file that changed since it was read is neither judged nor served."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway import assembly
from gateway.config import Config
from gateway.domain.errors import VariantError
from gateway.domain.inventory import Board, Cpu, Inventory
from gateway.domain.manifest import RUNTIMES, Golden
from gateway.domain.profile import Budget, Match, Profile, Step
from gateway.domain.selection import Site
from gateway.domain.verdict import RuntimeStatus
from gateway.store.library import scan
from gateway.store.state import State
from tests.simulators import models

PROFILE = Profile("test", "", 0, Match(), Budget(), (Step("cpu", "reference", ("fp32",)),))
SITE = Site(
    Inventory("x86_64", Board(), Cpu(), 1),
    PROFILE,
    {name: RuntimeStatus(name, "1") for name in RUNTIMES},
)


@pytest.fixture
def state(tmp_path):
    state = State.open(tmp_path / "state")
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
