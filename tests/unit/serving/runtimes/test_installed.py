"""Installed engines, asked of metadata that the test writes."""

import importlib.util
import sys

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.runtimes import RUNTIMES
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.installed import ALLOW_TELEMETRY, conflict, installed_package, installed_version, require


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that installs a distribution into a folder before all others on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, version="9.9"):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return install


def test_every_runtime_of_the_catalogue_is_known():

    for name in RUNTIMES:
        assert installed_version(name).version or RUNTIMES[name].isolated  # installed apart for tests
        assert get_runtime(name).name == name


def test_an_unknown_runtime_is_named_with_the_known_ones():
    with pytest.raises(VariantError, match="no runtime called 'abacus'; use one of onnx"):
        get_runtime("abacus")


@pytest.mark.parametrize("name", ["onnx", "openvino", "litert", "llamacpp"])
def test_a_missing_package_names_the_extra(name, monkeypatch):
    for package in RUNTIMES[name].packages:
        monkeypatch.delitem(sys.modules, package.module, raising=False)
    monkeypatch.setattr(sys, "path", [])
    status = installed_version(name)
    assert "is not installed" in status.problem
    assert HERE.adding(name) in status.remedy
    assert status.version is None
    with pytest.raises(VariantError, match=f"runtime {name} cannot be used"):
        require(name)


def test_both_builds_of_onnx_runtime_are_a_conflict(site):
    assert conflict() == ""
    site("onnxruntime")
    site("onnxruntime-gpu")
    assert "both installed" in conflict()
    status = installed_version("onnx")
    assert "both installed" in status.problem
    assert "pip uninstall onnxruntime onnxruntime-gpu" in status.remedy
    with pytest.raises(VariantError, match="both installed"):
        get_runtime("onnx").version()


def test_a_build_in_a_folder_that_is_read_first_takes_the_place_of_the_packaged_one(site, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").touch()
    site("onnxruntime-gpu", "1.23.0")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert conflict() == ""
    assert installed_version("onnx").version == "1.23.0", "verdicts of the other build would stay"


def test_openvino_is_refused_beside_its_telemetry_unless_allowed(site, monkeypatch):
    monkeypatch.delenv(ALLOW_TELEMETRY, raising=False)
    assert installed_version("openvino").problem == ""
    site("openvino-telemetry")
    status = installed_version("openvino")
    assert "reports usage to its vendor" in status.problem
    assert "pip uninstall openvino-telemetry" in status.remedy
    with pytest.raises(VariantError, match="reports usage"):
        get_runtime("openvino").devices()
    monkeypatch.setenv(ALLOW_TELEMETRY, "1")
    assert installed_version("openvino").problem == ""


def test_tflite_runtime_is_taken_where_only_it_exists(site, tmp_path, monkeypatch):
    site("tflite-runtime", "2.14.0")
    (tmp_path / "tflite_runtime").mkdir()
    (tmp_path / "tflite_runtime" / "__init__.py").touch()
    assert installed_package("litert").module == "ai_edge_litert"
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ai_edge_litert" else find_spec(name))
    assert installed_package("litert").module == "tflite_runtime"
    assert installed_version("litert").version == "2.14.0"
