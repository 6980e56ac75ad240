"""A new runtime is one new file and one entry of a table; everything else is derived from the entry."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as over_http

from tests.devices.build import build
from tests.devices.catalogue import TREES
from tests.simulators.daemon import QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.runtime_only import interpreter

FILE = '''
"""Scale a vector by the number in a .scale file: on the CPU, or on a chip that one process at a time can open."""
import fcntl
import os
import time
import numpy as np
from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import TensorSpec
from gateway.serving.domain.ports import RowProof
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.opening import model_file
from gateway.serving.runtimes.session import bind

X, Y = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in "xy")

class ScaleRuntime:
    name = "scale"
    version, devices = (lambda self: "1"), (lambda self: ["CPU"])
    import_engine = lambda self: None
    inspect = lambda self, file: Signature((X,), (Y,))
    operators = lambda self, variant, files: frozenset({"Scale"})
    prove_rows = lambda self, variant, files, tensors: RowProof()
    def open(self, manifest, variant, files, budget):
        return bind(Scale(model_file(variant, files, ".scale")), manifest, variant)

class Scale:
    inputs, outputs = (Port("x", Datatype.FP32, (-1, 3)),), (Port("y", Datatype.FP32, (-1, 3)),)
    def __init__(self, file): self.factor = np.float32(file.read_text())
    def run(self, feeds, wanted):
        time.sleep(0.002)  # a chip is faster by far: no noise decides for the CPU
        return [feeds["x"] * self.factor]
    def cancel(self): return False
    def close(self): pass

class ChipRuntime(ScaleRuntime):
    name, devices = "chip", (lambda self: ["hailo-10h"])
    def open(self, manifest, variant, files, budget):
        return bind(Chip(model_file(variant, files, ".scale")), manifest, variant)

class Chip(Scale):
    def __init__(self, file):
        super().__init__(file)
        self.node = open(os.environ["CHIP"], "a")
        try:
            fcntl.flock(self.node, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VariantError("the chip is in use") from None
    def run(self, feeds, wanted): return [feeds["x"] * self.factor]
    def close(self): self.node.close()
'''
ENTRY = """
    RuntimeSpec("scale", "gateway.serving.runtimes.scale:ScaleRuntime", (Package("numpy", ("numpy",)),), "",
        (".scale",)),
    RuntimeSpec("chip", "gateway.serving.runtimes.scale:ChipRuntime", (Package("numpy", ("numpy",)),),
        "pip install chip", accelerators=("hailo-10h",), exclusive=("hailo-10h",)),
"""
MANIFEST = """
schema = 1
name = "{name}"
version = "{version}"
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 3]
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
"""
VARIANT = """
[[variant]]
name = "{name}"
runtime = "{name}"
precision = "fp32"
accelerators = ["{accelerator}"]
artifacts = [{{path = "factor.scale", sha256 = "{sha256}", bytes = 1}}]
"""
AT_ONCE = f"[selection]\nidle_before_trial_s = 0.0\n{SHORT_TRIALS}"


@pytest.fixture
def tree(tmp_path):
    """Return a copy of the gateway with the new file and the new entry."""
    shutil.copytree(ROOT / "gateway", tmp_path / "tree/gateway", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "device_profiles", tmp_path / "tree/device_profiles")
    (tmp_path / "tree/gateway/serving/runtimes/scale.py").write_text(FILE)
    table = tmp_path / "tree/gateway/common/domain/runtimes.py"
    table.write_text(table.read_text().replace("_SPECS = (\n", f"_SPECS = ({ENTRY}", 1))
    return tmp_path / "tree"


def started(tree, before=""):
    """Return the command of the gateway in `tree`; `before` is run first."""
    start = f"import sys; sys.path[0] = {str(tree)!r}; sys.argv[0] = 'edge-gateway'; {before}"
    return (interpreter(), "-c", f"{start}from gateway.cli import main; main()")


def answer(daemon, model):
    """Return what a model makes of (1, 2, 3)."""
    tensor = over_http.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
    with over_http.InferenceServerClient(daemon.http) as client:
        return client.infer(model, [tensor]).as_numpy("y").tolist()


def test_a_new_runtime_is_one_file_and_one_entry(tree, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/threefold.scale").write_text("3")
    with running(
        tmp_path / "gateway", models=tmp_path / "models", config=QUIET + SHORT_TRIALS, command=started(tree)
    ) as daemon:
        assert answer(daemon, "threefold") == [[3, 6, 9]]


@pytest.fixture
def machine(tree, tmp_path):
    """Return options of a daemon on a machine with a Hailo-10H, whose library is a copy of libm."""
    root = build(tmp_path / "root", TREES["hailo10h"])
    (tmp_path / "lib").mkdir()
    shutil.copy(next(Path("/lib").glob("*-linux-gnu/libm.so.6")), tmp_path / "lib/libhailort.so")
    fake = f"import pathlib, gateway.serving.assembly as a; probe = a.probe; root = pathlib.Path({str(root)!r}); "
    fake += "a.probe = lambda _, settings=None: probe(root, settings=settings); "
    environ = {"LD_LIBRARY_PATH": str(tmp_path / "lib"), "CHIP": str(tmp_path / "chip")}
    return {"command": started(tree, fake), "environ": environ, "config": AT_ONCE, "models": tmp_path / "models"}


def released(folder, name, version, factor):
    """Write a release that runs on the chip and on the CPU."""
    (folder / name / version).mkdir(parents=True)
    (folder / name / version / "factor.scale").write_text(factor)
    sha256 = hashlib.sha256(factor.encode()).hexdigest()
    places = (("chip", "hailo-10h"), ("scale", "cpu"))
    variants = [VARIANT.format(name=variant, accelerator=place, sha256=sha256) for variant, place in places]
    text = MANIFEST.format(name=name, version=version) + "".join(variants)
    (folder / name / version / "manifest.toml").write_text(text)


def test_an_accelerator_that_one_process_at_a_time_can_hold(machine, tmp_path):
    """The trial ends before serving begins; an update passes over the CPU; a second model is told who has the chip."""
    models = machine["models"]
    released(models, "first", "1", "3")
    with running(tmp_path / "gateway", **machine) as daemon:
        daemon.wait_logged("variant chosen", model="first", version="1", variant="chip", accelerator="hailo-10h")
        assert answer(daemon, "first") == [[3, 6, 9]]

        released(models, "first", "2", "4")
        shutil.rmtree(models / "first/1")
        daemon.reload()
        tried = daemon.wait_logged("trial finished", model="first", version="2", variant="chip", passed=False)
        assert "hailo-10h is held by first/1" in tried["reason"]
        daemon.wait_logged("variant chosen", model="first", version="2", variant="scale")
        daemon.wait_logged("variant chosen", model="first", version="2", variant="chip")
        assert answer(daemon, "first") == [[4, 8, 12]]

        released(models, "second", "1", "5")
        daemon.reload()
        tried = daemon.wait_logged("trial finished", model="second", variant="chip")
        assert "hailo-10h is held by first/2, and one process at a time" in tried["reason"]
        assert answer(daemon, "second") == [[5, 10, 15]]

        shutil.rmtree(models / "first")
        daemon.reload()
        daemon.wait_logged("variant chosen", model="second", variant="chip")
        assert answer(daemon, "second") == [[5, 10, 15]]
    assert "the chip is in use" not in daemon.log


def test_probe_and_doctor_know_the_new_runtime(machine):
    told = subprocess.run(
        [*machine["command"], "probe", "--json"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **machine["environ"]},
        capture_output=True,
        check=True,
    )
    (chip,) = json.loads(told.stdout)["accelerators"]
    rungs = {rung["name"]: (rung["ok"], rung["detail"]) for rung in chip["rungs"]}
    assert rungs["runtime"][0] is True, rungs
    assert rungs["runtime"][1].startswith("chip ")
    assert rungs["runtime"][1].endswith(" lists hailo-10h")
    assert chip["usable"]
