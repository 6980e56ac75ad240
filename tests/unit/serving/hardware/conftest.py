from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.inventory import Accelerator, Inventory
from gateway.serving.hardware.probe import probe
from tests.devices.asking import Only, Probed
from tests.devices.build import Entries, build
from tests.devices.catalogue import TREES


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    """Build a tree of the catalogue (or given entries) and probe it."""

    def run(tree: str | Entries, *, flat_links: bool = False) -> Inventory:
        entries = TREES[tree] if isinstance(tree, str) else tree
        return probe(build(tmp_path / "root", entries, flat_links=flat_links))

    return run


@pytest.fixture
def only(probed: Probed) -> Only:
    """Return a function that returns the one accelerator of a tree."""

    def run(tree: str | Entries) -> Accelerator:
        (accelerator,) = probed(tree).accelerators
        return accelerator

    return run
