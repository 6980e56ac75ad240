"""A new runtime is one new file and one entry of a table; everything else is derived from the entry."""

import shutil

import numpy as np
import pytest
import tritonclient.http as over_http

from tests.simulators.daemon import QUIET, ROOT, SHORT_TRIALS, running
from tests.simulators.runtime_only import interpreter

FILE = '''
"""Scale a vector by the number in a .scale file."""
import numpy as np
from gateway.domain.manifest import TensorSpec
from gateway.domain.rows.proof import RowProof
from gateway.domain.tensor import Datatype
from gateway.domain.verdict import Signature
from gateway.runtimes.binding import Port
from gateway.runtimes.opening import model_file
from gateway.runtimes.session import bind

X, Y = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in "xy")

class ScaleRuntime:
    name = "scale"
    version, devices = (lambda self: "1"), (lambda self: ["CPU"])
    inspect = lambda self, file: Signature((X,), (Y,))
    operators = lambda self, variant, files: frozenset({"Scale"})
    prove_rows = lambda self, variant, files, tensors: RowProof()
    def open(self, manifest, variant, files, budget):
        return bind(Scale(model_file(variant, files, ".scale")), manifest, variant)

class Scale:
    inputs, outputs = (Port("x", Datatype.FP32, (-1, 3)),), (Port("y", Datatype.FP32, (-1, 3)),)
    def __init__(self, file): self.factor = np.float32(file.read_text())
    def run(self, feeds, wanted): return [feeds["x"] * self.factor]
    def cancel(self): return False
    def close(self): pass
'''
PLACE = "gateway.runtimes.scale:ScaleRuntime"
ENTRY = f'    RuntimeSpec("scale", "{PLACE}", (Package("numpy", ("numpy",)),), "", (".scale",)),\n'


@pytest.fixture
def tree(tmp_path):
    """Return a copy of the gateway with the new file and the new entry."""
    shutil.copytree(ROOT / "gateway", tmp_path / "tree/gateway", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "device_profiles", tmp_path / "tree/device_profiles")
    (tmp_path / "tree/gateway/runtimes/scale.py").write_text(FILE)
    table = tmp_path / "tree/gateway/domain/runtimes.py"
    table.write_text(table.read_text().replace("_SPECS = (\n", f"_SPECS = (\n{ENTRY}", 1))
    return tmp_path / "tree"


def test_a_new_runtime_is_one_file_and_one_entry(tree, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/threefold.scale").write_text("3")
    start = (
        f"import sys; sys.path[0] = {str(tree)!r}; sys.argv[0] = 'edge-gateway'; from gateway.cli import main; main()"
    )
    command = (interpreter(), "-c", start)
    with running(
        tmp_path / "gateway", models=tmp_path / "models", config=QUIET + SHORT_TRIALS, command=command
    ) as daemon:
        tensor = over_http.InferInput("x", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
        client = over_http.InferenceServerClient(daemon.http)
        np.testing.assert_array_equal(client.infer("threefold", [tensor]).as_numpy("y"), [[3, 6, 9]])
        client.close()
