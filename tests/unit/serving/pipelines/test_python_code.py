"""Python code of steps without a process: what is declared, loaded, answered and checked; the sandbox's filter."""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.pipeline import pipeline_manifest
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.tensor import DATATYPES
from gateway.serving.pipelines import python_process, triton_python
from gateway.serving.pipelines.python_child import RequestStream, load, words_of, write
from gateway.serving.pipelines.python_process import ARRAYS_BYTES, checked
from gateway.serving.runtimes import sandbox

HEAD = 'schema = 1\nname = "p"\nversion = "1"\n[input]\nx = "FP32[4]"\n[[step]]\nname = "s"\n'
STEP = 'python = "step.py"\nof = "x"\noutputs = { y = "FP32[4]" }\n'
TAIL = '[output]\ny = "s.y"\n'


def declared(step: str) -> Any:
    return read_pipeline(HEAD + step + TAIL, "pipeline.toml")


def test_a_step_and_its_files_are_read() -> None:
    whole = (
        STEP + 'class = "Fuse"\nfiles = ["table.csv"]\nparameters = { unit = "mm" }\nmemory_mib = 128\nbatch = false\n'
    )
    pipeline = declared(whole)
    (step,) = pipeline.python
    assert (step.file, step.entry, step.files, step.memory_mib, step.batch) == (
        "step.py",
        "Fuse",
        ("table.csv",),
        128,
        False,
    )
    assert dict(step.parameters) == {"unit": "mm"}
    assert pipeline.models == ()
    assert pipeline.files == ("step.py", "table.csv")
    assert pipeline_manifest(pipeline, ()).name == "p"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (STEP.replace("step.py", "../step.py"), "must name files of this folder"),
        (STEP.replace("step.py", "step.so"), "must name a .py file"),
        (STEP + 'files = ["pipeline.toml"]', "must name files of this folder"),
        (STEP + 'class = "a b"', "must be the name of a class"),
        (STEP.replace("FP32[4]", "image"), 'must be "text", or a datatype'),
        (STEP.replace('y = "FP32[4]"', ""), "must have 1 to 64 names"),
        (STEP + "parameters = { a = 1 }", "must be texts"),
        (STEP + "memory_mib = 1", "memory_mib"),
        (STEP + 'model = "m"', "it has model and python"),
        (STEP.replace('of = "x"', 'inputs = { "a b" = "x" }'), "names of letters"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(step: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        declared(step + "\n")
    assert problem in str(found.value)
    assert "step[0]" in str(found.value)


# ---- what a process answers ------------------------------------------------------------------------------------------
SPECS = (TensorSpec("y", DATATYPES["FP32"], (-1, 3)), TensorSpec("w", DATATYPES["BYTES"], (-1,)))


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        [],
        [[[2, 3], 24]],
        [[[2, 3], 24], [[2], 8], [[2], 8]],
        [[[3, 3], 36], [[2], 8]],
        [[[2, 4], 32], [[2], 8]],
        [[[2, 3], 23], [[2], 8]],
        [[[2, 3.0], 24], [[2], 8]],
        [[[2, True], 24], [[2], 8]],
        [[[2, -3], 24], [[2], 8]],
        [["23", 24], [[2], 8]],
        [[[2, 3], 24], [[2], 7]],
        [[[2, 3], 24], [[2], -1]],
        [[[2, 3], 24], [[2], ARRAYS_BYTES]],
        [[[2, 3], 24], [[2], "8"]],
    ],
)
def test_an_answer_that_does_not_fit_is_refused(said: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        checked(SPECS, said, 2)


def test_what_one_side_writes_the_other_takes() -> None:
    process = type("Process", (), {"own": python_process._memory("a"), "given": python_process._memory("b")})()
    process.given_bytes, process.limits = 0, type("Step", (), {"file": "step.py"})()
    try:
        specs = [(s.name, s.datatype.label, s.shape) for s in SPECS]
        entries = write(process.own, specs, {"y": np.arange(6.0).reshape(2, 3), "w": ["a", b"\xff\0"]}, 2)
        found = python_process.take(process, SPECS, checked(SPECS, json.loads(json.dumps(entries)), 2))
        assert found["y"].array.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert found["w"].array.tolist() == [b"a", b"\xff\0"]
        os.pwrite(process.own, struct.pack("<I", 2**31), 24)  # a length beyond what was written
        with pytest.raises(Exception, match=r"step\.py") as failed:
            python_process.take(process, SPECS, checked(SPECS, json.loads(json.dumps(entries)), 2))
        assert failed.value.fault.value == "INTERNAL"  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(process.own, 1)
    finally:
        os.close(process.own)
        os.close(process.given)


# ---- what is loaded --------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what loading changes for the process that it is meant for."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def start(**changes: Any) -> dict[str, Any]:
    """Return what a process is told."""
    given: dict[str, Any] = {
        "file": "step.py",
        "class": "Step",
        "folder": "/release",
        "parameters": {},
        "single": False,
        "batch": True,
        "rows": 8,
        "name": "p",
        "version": "3",
        "inputs": [("x", "FP32", (-1, 2))],
        "outputs": [("y", "FP32", (-1, 2))],
    }
    return given | changes


def test_a_class_gets_inputs_and_parameters_by_name() -> None:
    code = "class Step:\n  def __init__(self, by): self.by = float(by)\n  def run(self, x): return x * self.by\n"
    run = load(code.encode(), start(parameters={"by": "3"}))
    assert run([np.ones((1, 2))])["y"].tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", "step.py has no class Step"),
        ("Step = 1", "step.py has no class Step"),
        ("class Step: pass", "class Step has no method run"),
        ("import absent_module", "No module named 'absent_module' (step.py line 1)"),
        ("x = 1\n1/0", "ZeroDivisionError: division by zero (step.py line 2)"),
        ("def", "SyntaxError"),
    ],
)
def test_code_that_cannot_be_loaded_says_why(code: str, problem: str) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011  what the code raises
        load(code.encode(), start())
    assert problem in words_of(found.value, "step.py")


TRITON = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.config = config = json.loads(args["model_config"])
        self.type = pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, "y")["data_type"])
        self.by = float(config["parameters"]["by"]["string_value"])
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] < 0:
                error = pb_utils.TritonError("no", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse([], error=error))
                continue
            if x[0, 0] > 9:
                pb_utils.InferenceRequest(model_name="other", inputs=[]).exec()
            pb_utils.Logger.log_info("a line")
            made = pb_utils.Tensor("y", (x * self.by).astype(self.type))
            answers.append(pb_utils.InferenceResponse(output_tensors=[made]))
        return answers
"""


def test_a_model_of_tritons_python_backend_runs() -> None:
    told = start(parameters={"by": "2"}, **{"class": "TritonPythonModel"})
    run = load(TRITON.encode(), told)
    assert run.instance.config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert run.instance.config["max_batch_size"] == 8
    answer = run([np.ones((1, 2), np.float32)])["y"]
    assert (answer.tolist(), answer.dtype) == ([[2, 2]], np.float32)
    with pytest.raises(triton_python.TritonError) as refused:
        run([-np.ones((1, 2), np.float32)])
    assert triton_python.FAULTS[refused.value.code()] == "INVALID"
    with pytest.raises(triton_python.TritonModelException, match="calls of other models are not offered"):
        run([np.full((1, 2), 10, np.float32)])


@pytest.mark.parametrize(("text", "found"), [("7", 7), ("camera", "camera"), ("", 0)])
def test_a_model_of_tritons_python_backend_gets_its_sequence(text: str, found: object) -> None:
    code = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        self.told = [(request.correlation_id(), request.flags()) for request in requests]
        starts = requests[0].flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy() * starts)])]
"""
    run = load(code.encode(), start(**{"class": "TritonPythonModel"}))
    answer = run([np.ones((1, 2), np.float32)], RequestStream(text, "key", 3))["y"]
    assert (run.instance.told, answer.tolist()) == ([(found, 3)], [[1, 1]])


# ---- the filter of calls ---------------------------------------------------------------------------------------------
def verdict(machine: str, call: int, *arguments: int, audit: int | None = None) -> int:
    """Interpret the filter of a machine for a call, as the kernel does."""
    code = sandbox.program(machine, 77)
    words = [*struct.pack("<II", call, audit or sandbox._ARCHITECTURES[machine][0]), *bytes(8)]
    data = bytes(words) + struct.pack("<6Q", *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    place, value = 0, 0
    while True:
        operation, yes, no, operand = struct.unpack_from("<HBBI", code, 8 * place)
        place += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            value &= operand
        elif operation == 0x15:
            place += yes if value == operand else no
        elif operation == 0x35:
            place += yes if value >= operand else no
        else:
            assert operation == 0x06
            return int(operand)


EPERM, ENOSYS = sandbox.REFUSE | errno.EPERM, sandbox.REFUSE | errno.ENOSYS
WRITE = os.O_WRONLY | os.O_CREAT
BY_ARGUMENTS = [  # name, numbers, arguments, verdict
    ("clone of a thread", (56, 220), (0x3D0F00,), sandbox.ALLOW),
    ("clone of a process", (56, 220), (17,), EPERM),
    ("clone3", (435, 435), (), ENOSYS),
    ("kill itself", (62, 129), (77, 9), sandbox.ALLOW),
    ("kill another", (62, 129), (1, 9), EPERM),
    ("kill all", (62, 129), (2**32 - 1, 9), EPERM),
    ("openat to read", (257, 56), (0, 1, os.O_RDONLY | os.O_CLOEXEC), sandbox.ALLOW),
    ("openat to write", (257, 56), (0, 1, WRITE), EPERM),
    ("openat to truncate", (257, 56), (0, 1, os.O_RDONLY | os.O_TRUNC), EPERM),
    ("prlimit64 to ask", (302, 261), (0, 7, 0, 4096), sandbox.ALLOW),
    ("prlimit64 to set", (302, 261), (0, 7, 4096, 0), EPERM),
    ("prlimit64 to set, from a round address", (302, 261), (0, 7, 2**32, 0), EPERM),
    ("mmap of memory", (9, 222), (0, 4096, 3, 0x22), sandbox.ALLOW),
    ("mmap of a library", (9, 222), (0, 4096, 1, 0x01), sandbox.ALLOW),
    ("mmap of shared memory", (9, 222), (0, 4096, 3, 0x21), EPERM),
    ("mmap of what grows", (9, 222), (0, 4096, 3, 0x122), EPERM),
    ("mmap of a thread's stack", (9, 222), (0, 4096, 3, 0x20022), sandbox.ALLOW),
    ("prctl of a name", (157, 167), (15,), sandbox.ALLOW),
    ("prctl of the end with the parent", (157, 167), (1, 0), EPERM),
    ("rt_sigaction of SIGTERM", (13, 134), (15,), sandbox.ALLOW),
    ("rt_sigaction of SIGXCPU", (13, 134), (24,), EPERM),
    ("socketpair of a stream", (53, 199), (1, 1 | 0o2000000), sandbox.ALLOW),
    ("socketpair of messages in order", (53, 199), (1, 5 | 0o2000000), sandbox.ALLOW),
    ("socketpair of datagrams", (53, 199), (1, 2 | 0o2000000), EPERM),
    ("socketpair of raw packets, which are datagrams", (53, 199), (1, 3 | 0o2000000), EPERM),
    ("socketpair of another type", (53, 199), (1, 9), EPERM),
    ("mremap", (25, 216), (0, 4096, 2**31, 1), EPERM),
    ("fchmod", (91, 52), (3,), EPERM),
    ("fchown", (93, 55), (3,), EPERM),
    ("fsetxattr", (190, 7), (3,), EPERM),
    ("fremovexattr", (199, 16), (3,), EPERM),
    ("setxattrat", (463, 463), (3,), EPERM),
    ("removexattrat", (466, 466), (3,), EPERM),
    ("file_setattr", (469, 469), (3,), EPERM),
    ("inotify_init1", (294, 26), (), EPERM),
    ("fanotify_mark", (301, 263), (), EPERM),
    ("fcntl F_GETFD", (72, 25), (3, 1), sandbox.ALLOW),
    ("fcntl F_SETOWN", (72, 25), (3, 8, 1), EPERM),
    ("ioctl TIOCSTI", (16, 29), (0, 0x5412), EPERM),
    ("affinity of itself", (203, 122), (0,), sandbox.ALLOW),
    ("affinity of another", (203, 122), (1,), EPERM),
    ("read", (0, 63), (), sandbox.ALLOW),
    ("futex", (202, 98), (), sandbox.ALLOW),
    ("getrandom", (318, 278), (), sandbox.ALLOW),
]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_by_arguments(machine: str) -> None:
    column = sandbox._ARCHITECTURES[machine][1]
    found = {name: verdict(machine, numbers[column], *arguments) for name, numbers, arguments, _ in BY_ARGUMENTS}
    assert found == {name: wanted for name, _, _, wanted in BY_ARGUMENTS}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_listed_call_is_refused(machine: str) -> None:
    fields, column = sandbox._REFUSED.split(), sandbox._ARCHITECTURES[machine][1]
    calls = [(fields[n], fields[n + 1 + column]) for n in range(0, len(fields), 3)]
    assert {verdict(machine, int(number)) for _, number in calls if number != "-"} == {EPERM}
    assert len(sandbox.program(machine, 1)) // 8 < 4096  # BPF_MAXINSNS


def test_calls_of_another_architecture_end_the_process() -> None:
    assert verdict("x86_64", 0, audit=0x4000_0003) == sandbox.KILL  # 32-bit calls
    assert verdict("x86_64", 0x4000_0000 + 1) == sandbox.KILL  # x32
    assert verdict("aarch64", 63, audit=0x4000_0028) == sandbox.KILL


def test_an_unknown_processor_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(sandbox.SandboxError, match="riscv64"):
        sandbox.lacking()


def test_what_the_kernel_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_landlock_version", lambda: -1)
    assert sandbox.lacking() == ("no Landlock: it can read every file that the gateway can read",)
