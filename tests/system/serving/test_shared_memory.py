"""Programs of this device and their shared memory, with the real daemon: the guide's example, and those that die."""

import os
import re
import subprocess
import sys
import threading
import time
import uuid

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from tests.simulators.daemon import ANYWHERE, QUIET, ROOT, SHORT_TRIALS, golden, running
from tests.simulators.segments import SHARED_MEMORY, shared

ALLOWED = """[shared_memory]
allowed = true
over_tcp = true
max_regions = 4
caller_percent = 100
idle_s = 0.2
sweep_s = 0.1
"""
SWEPT_WITHIN_S = 10.0
DYING = 12
"""Programs that are killed; each registers two regions, so that they would fill the bound six times."""

CAMERA = """
import os, sys
import numpy as np, tritonclient.grpc as triton
from tritonclient.utils import shared_memory

address, name, left = sys.argv[1:]
frame = np.zeros((1, 1, 8, 8), np.float32)
for part in "ab":
    if left == "left behind":  # as programs do that have no resource tracker: the segment outlives them
        with open(f"/dev/shm/{name}-{part}", "wb") as file:
            file.write(frame.tobytes())
    else:
        globals()[part] = shared_memory.create_shared_memory_region(part, f"/{name}-{part}", frame.nbytes)
        shared_memory.set_shared_memory_region(globals()[part], [frame])
client = triton.InferenceServerClient(address)
for part in "ab":
    client.register_system_shared_memory(f"{name}-{part}", f"/{name}-{part}", frame.nbytes)
image = triton.InferInput("image", list(frame.shape), "FP32")
image.set_shared_memory(f"{name}-a", frame.nbytes)
client.infer("meter-reader", [image])
print("asking", flush=True)
while True:
    client.infer("meter-reader", [image])
"""


@pytest.fixture(scope="module")
def device(tmp_path_factory, state):
    """Yield a daemon that allows shared memory, on a UNIX socket and on TCP."""
    folder = tmp_path_factory.mktemp("shm")
    options = {"config": QUIET + SHORT_TRIALS + ALLOWED, "grpc": [f"unix:{folder}/g.sock", ANYWHERE]}
    with running(folder, state=state, **options) as daemon:
        yield daemon


@pytest.fixture
def client(device):
    with triton.InferenceServerClient(device.grpc) as client:
        yield client


def metric(device, name):
    command = ["/usr/bin/env", "curl", "-sS", f"http://{device.http}/metrics"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^edge_gateway_shared_memory_{name}\S* (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in found)


def test_the_guide_s_example_of_a_camera(device):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/pages/howto/cameras.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "set_shared_memory" in block]
    assert "unix:/run/edge-gateway/grpc.sock" in example
    example = example.replace("unix:/run/edge-gateway/grpc.sock", device.grpc)
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=False)
    digit = golden("meter-reader", 1).scores[0].argmax()
    assert (done.stdout, done.stderr) == (f"{digit}\n", "")


def test_the_guide_s_example_of_sealed_memory(tmp_path, state):
    text = (ROOT / "packaging" / "README.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "F_SEAL_SHRINK" in block]
    config = f'{QUIET}{SHORT_TRIALS}[shared_memory]\nallowed = true\nsocket = "{tmp_path}/memory.sock"\n'
    with running(tmp_path / "daemon", state=state, config=config, grpc=[f"unix:{tmp_path}/grpc.sock"]):
        example = example.replace("/run/edge-gateway", str(tmp_path))
        done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=False)
    digit = golden("meter-reader", 1).scores[0].argmax()
    assert (done.stdout, done.stderr) == (f"{digit}\n", "")


@pytest.mark.parametrize("where", [0, 1], ids=["unix", "tcp"])
def test_golden_rows_get_their_classes(device, where):
    wanted = golden("meter-reader", 32)
    with (
        shared(wanted.rows.nbytes + wanted.scores.astype("f4").nbytes) as (key, handle),
        triton.InferenceServerClient(device.addresses("grpc")[where]) as client,
    ):
        shared_memory.set_shared_memory_region(handle, [wanted.rows])
        client.register_system_shared_memory("rows", key, wanted.rows.nbytes + 1280)
        tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
        tensor.set_shared_memory("rows", wanted.rows.nbytes)
        output = triton.InferRequestedOutput("scores")
        output.set_shared_memory("rows", 1280, wanted.rows.nbytes)
        for _ in range(3):
            client.infer("meter-reader", [tensor], outputs=[output])
        client.unregister_system_shared_memory("rows")
        scores = shared_memory.get_contents_as_numpy(handle, np.float32, wanted.scores.shape, wanted.rows.nbytes).copy()
    assert (scores.argmax(axis=1) == wanted.scores.argmax(axis=1)).all()


def test_truncating_harms_no_one_else(tmp_path, state):
    """A caller that cuts its segment at any moment gets refusals, no more: inputs are copied by default."""
    options = {"config": QUIET + SHORT_TRIALS + ALLOWED, "grpc": [f"unix:{tmp_path}/g.sock"]}
    wanted = golden("meter-reader", 32)
    answered, refusals = 0, []
    stop = threading.Event()
    with (
        running(tmp_path / "daemon", state=state, **options) as daemon,
        shared(wanted.rows.nbytes) as (key, handle),
        triton.InferenceServerClient(daemon.grpc) as client,
    ):
        shared_memory.set_shared_memory_region(handle, [wanted.rows])
        client.register_system_shared_memory("rows", key, wanted.rows.nbytes)
        tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
        tensor.set_shared_memory("rows", wanted.rows.nbytes)
        cutting = threading.Thread(target=cut, args=(f"/dev/shm{key}", wanted.rows.nbytes, stop))
        cutting.start()
        try:
            while min(answered, len(refusals)) < 50:
                try:
                    client.infer("meter-reader", [tensor])
                    answered += 1
                except InferenceServerException as error:
                    refusals.append(error.message())
        finally:
            stop.set()
            cutting.join()
    assert all("was truncated" in words for words in refusals)


def cut(path, size, stop):
    """Cut a segment and make it whole again, until `stop`; whole at the end, for its maker's mapping."""
    while not stop.is_set():
        os.truncate(path, 0)
        os.truncate(path, size)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("left", ["unlinked", "left behind"])
def test_programs_that_are_killed_leave_nothing(device, client, left):
    names = [f"edge-gateway-test-{uuid.uuid4().hex}" for _ in range(DYING)]
    before = metric(device, "drops_total")
    try:
        for name in names:
            command = [sys.executable, "-c", CAMERA, device.grpc, name, left]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as camera:
                said = camera.stdout.readline()
                camera.kill()
                _, errors = (
                    camera.communicate()
                )  # Python's resource tracker has unlinked what was its when this returns
            assert said == "asking\n", errors
    finally:
        for name in names:
            for part in "ab":
                (SHARED_MEMORY / f"{name}-{part}").unlink(missing_ok=True)
    ends_s = time.monotonic() + SWEPT_WITHIN_S
    while metric(device, "regions") and time.monotonic() < ends_s:
        pass  # no request names regions any more: the daemon finds out by itself
    assert metric(device, "regions") == 0
    assert metric(device, "drops_total") == before + 2 * DYING
    wanted = golden("meter-reader", 1)
    tensor = triton.InferInput(wanted.name, [1, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(wanted.rows)
    assert client.infer("meter-reader", [tensor]).as_numpy("scores").argmax() == wanted.scores[0].argmax()
