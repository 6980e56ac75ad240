"""Naming a runtime does not import it; only its own module ever does."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import gateway.serving.runtimes
from tests.simulators import models

ROOT = Path(gateway.serving.runtimes.__file__).parents[3]
ENGINES = ("onnxruntime", "openvino", "ai_edge_litert", "tflite_runtime", "xllamacpp")


def loaded(code):
    """Return the engines in sys.modules of a fresh interpreter after `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps([name for name in {ENGINES!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, check=True, text=True, cwd=ROOT, timeout=30
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_whole_room_loads_no_engine():
    modules = [
        f"gateway.serving.runtimes.{module.name}" for module in pkgutil.iter_modules(gateway.serving.runtimes.__path__)
    ]
    assert loaded("\n".join(f"import {name}" for name in modules)) == []


def test_naming_runtimes_and_asking_for_their_versions_loads_no_engine():
    code = f"from gateway.serving.runtimes.catalog import *\n[get_runtime(n).version() for n in {[*models.FILES]}]"
    assert loaded(code) == []


@pytest.mark.parametrize("runtime", models.FILES)
def test_an_engine_loads_no_other(runtime, small_files):
    code = (
        "from pathlib import Path\nfrom gateway.serving.runtimes.catalog import get_runtime\n"
        f"get_runtime({runtime!r}).inspect(Path({str(small_files[runtime])!r}))"
    )
    own = {"onnx": ["onnxruntime"], "openvino": ["openvino"], "litert": ["ai_edge_litert"], "reference": []}
    assert loaded(code) == own[runtime]


@pytest.mark.parametrize("runtime", models.FILES)
def test_an_engine_opens_no_socket(runtime, small_files):
    code = (
        "import sys\nfrom pathlib import Path\nfrom gateway.serving.runtimes.catalog import get_runtime\n"
        "sys.addaudithook(lambda event, _: event.startswith('socket.') and print('EVENT', event, flush=True))\n"
        f"get_runtime({runtime!r}).inspect(Path({str(small_files[runtime])!r}))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT, timeout=30)
    assert "EVENT" not in done.stdout


@pytest.fixture
def small_files(tmp_path):
    manifest = models.dense()
    for runtime in models.FILES:
        manifest = models.write_variant(tmp_path, manifest, runtime)
    return {variant.runtime: tmp_path / variant.artifacts[0].path for variant in manifest.variants}
