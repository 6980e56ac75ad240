"""Import of real artefacts: an export of Ultralytics inside a package, and conversions by skl2onnx.

`make test-world` installs the packages and runs this file, whose name pytest does not collect by itself. WORLD_PACKAGES
names another folder.
"""

import asyncio
import os
from pathlib import Path

import pytest

from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.store.library import scan
from gateway.workshop.importing.collect import ImportSettings, collect
from gateway.workshop.importing.imported import ImportedModel
from gateway.workshop.importing.release_writer import settled, write_releases
from gateway.workshop.importing.sources import choose_source
from tests.world.exports import sklearn_entries

PACKAGES = Path(os.environ.get("WORLD_PACKAGES", Path(__file__).parents[2] / ".venv" / "world"))


def read(file: Path) -> tuple[str, ImportedModel]:
    """Return the kind and the model of a source."""
    documents = asyncio.run(collect(file, ImportSettings(), TrialSettings(), lambda *_: None))
    kind = choose_source(documents)
    return kind.name, settled(kind.read(documents).models[0])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the exports of scikit-learn by their names."""
    folder = tmp_path_factory.mktemp("sklearn")
    return {entry.name: entry.write(folder) for entry in sklearn_entries(PACKAGES)}


def test_a_detector_of_a_package(tmp_path):
    file = PACKAGES / "nudenet" / "320n.onnx"
    kind, model = read(file)
    assert (kind, model.task, model.task_options) == ("ultralytics", "object-detection", {"head": "yolov8"})
    assert len(model.labels) == 18
    write_releases([model], file.parent, tmp_path, "nudenet")
    assert [release.problem for release in scan(tmp_path)] == [""]


@pytest.mark.parametrize(
    ("name", "task", "labels"),
    [
        ("logistic-zipmap", "tabular-classification", ("0", "1", "2")),
        ("logistic-no-zipmap", "tabular-classification", ("0", "1", "2")),
        ("logistic-string-labels", "tabular-classification", ("high", "low", "mid")),
        ("forest-no-zipmap", "tabular-classification", ("0", "1", "2")),
        ("scaled-network", "tabular-classification", ()),
        ("gradient-boosting", "tabular-regression", ()),
        ("k-means", "", ()),
        ("one-hot-strings", "", ()),
        ("logistic-zipmap-columns", "", ()),
    ],
)
def test_conversions_of_scikit_learn(files, name, task, labels):
    kind, model = read(files[name])
    assert (kind, model.task, model.labels) == ("sklearn", task, labels)
