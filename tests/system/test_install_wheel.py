"""The wheel: models, profiles and descriptors travel in it, tests and recipes do not; its builder is locked."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from gateway import __version__
from tests.system.installation import REPOSITORY, run, wheel


@pytest.fixture(scope="module")
def names() -> set[str]:
    with zipfile.ZipFile(wheel()) as archive:
        return set(archive.namelist())


def _of(source: str, packaged: str) -> set[str]:
    folder = REPOSITORY / source
    paths = (
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {f"{packaged}/{path}" for path in paths}


@pytest.mark.parametrize(
    ("source", "packaged"),
    [
        ("gateway", "gateway"),
        ("fleet", "fleet"),
        ("device_profiles", "gateway/_share/device_profiles"),
        ("models/meter-reader", "gateway/_share/models/meter-reader"),
        ("models/activity", "gateway/_share/models/activity"),
    ],
)
def test_every_file_travels(source: str, packaged: str, names: set[str]) -> None:
    expected = _of(source, packaged)
    assert expected
    assert expected - names == set()


def test_its_version_is_the_programs() -> None:
    assert wheel().name.startswith(f"edge_inference_gateway-{__version__}-")


def test_nothing_else_travels(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gateway", "fleet"}
    assert [name for name in names if re.search(r"(^|/)(tests|recipes|__pycache__)/|\.pyc$", name)] == []


def test_models_profiles_and_descriptors_are_among_them(names: set[str]) -> None:
    assert "gateway/serving/frontends/grpc_v2/codec/descriptors.binpb" in names
    assert "gateway/_share/device_profiles/generic-x86.toml" in names
    assert "gateway/_share/models/meter-reader/1/manifest.toml" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_pip_compiles_it_where_python_is_told_to_write_no_byte_code(tmp_path: Path) -> None:
    """packaging/README.md says so."""
    options = ("--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, wheel(), env=environment)
    sources = [*(tmp_path / "site" / "gateway").rglob("*.py")]
    assert len(sources) > 100
    assert [
        file for file in sources if not list((file.parent / "__pycache__").glob(f"{file.stem}.cpython-*.pyc"))
    ] == []


def test_what_builds_the_wheel_is_locked_to_what_tests_it() -> None:
    """Else `make lock-build` was forgotten after `make lock`."""
    assert _pins("packaging/build.txt") <= _pins("requirements/test.txt")
    assert any(pin.startswith("hatchling==") for pin in _pins("packaging/build.txt"))


def _pins(lock: str) -> set[str]:
    return set(re.findall(r"^[\w.-]+==\S+", Path(REPOSITORY / lock).read_text(), re.MULTILINE))
