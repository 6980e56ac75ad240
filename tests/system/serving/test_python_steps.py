"""Python code in pipelines of the real daemon: what it may not do, and that its failures cost its own requests only."""

import json
import os
import re
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from gateway.serving.runtimes.sandbox import lacking
from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.simulators.models import dense, write_release

ROOT = Path(__file__).parents[3]
CONFIG = QUIET + SHORT_TRIALS + "[limits]\nrun_limit_s = 2.0\n[pipelines]\npython = true\n"
PIPELINE = """
schema = 1
name = "{name}"
version = "1"
[input]
x = "FP32[4]"
[[step]]
name = "code"
python = "step.py"
class = "{case}"
files = ["table.txt"]
memory_mib = 256
inputs = {{ x = "x" }}
outputs = {{ y = "FP32[-1]" }}
[output]
y = "code.y"
"""
CODE = '''
import ctypes, gc, mmap, os, signal, socket, subprocess, sys, threading, time
import numpy as np

class Base:
    """Doubles; what a case does comes before, if the first number is not 0."""
    def run(self, x):
        if x[0, 0]:
            found = self.do()
            if found is not None:
                return found
        return x * 2

class Plain(Base):
    def do(self): assert open("table.txt").read() == "known"
class Hangs(Base):
    def do(self):
        while True: pass
class IgnoresTerm(Base):
    def do(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
class Forks(Base):
    def do(self): os.fork()
class Runs(Base):
    def do(self): subprocess.run(["true"])
class Writes(Base):
    def do(self): open("written", "w")
class Connects(Base):
    def do(self): socket.socket()
class Allocates(Base):
    def do(self):
        kept = []
        while True: kept.append(bytearray(10_000_000))
class Maps(Base):
    def do(self): mmap.mmap(-1, 2**30)
class Grows(Base):
    def do(self): mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100)
class Reserves(Base):
    def do(self): mmap.mmap(-1, 2**40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
class Leaks(Base):
    kept = []
    def do(self): self.kept.append(np.ones(5_000_000))
class Aborts(Base):
    def do(self): os.abort()
class Faults(Base):
    def do(self): ctypes.string_at(0)
class Exits(Base):
    def do(self): sys.exit(3)
class Prints(Base):
    def do(self): print("words " * 200_000)
class Garbles(Base):
    def do(self):
        for place in range(3, 64):
            try: socket.socket(fileno=place).send(b"{not json")
            except OSError: pass
class Answers(Base):
    def do(self):
        said = (1).to_bytes(8, "little") + b'{"outputs": [[[9999999999, 4], 160000000000]]}'
        for place in range(3, 64):
            try: socket.socket(fileno=place).send(said)
            except OSError: pass
        time.sleep(100)
class Blanks(Base):
    def do(self):
        for place in range(3, 64):
            try: socket.socket(fileno=place).send((1).to_bytes(8, "little"))
            except OSError: pass
        time.sleep(100)
class Misshapes(Base):
    def do(self): return np.zeros((3, 4, 5))
class Mistypes(Base):
    def do(self): return {"y": [["a", "b"]]}
class Misnames(Base):
    def do(self): return {"z": 1}
class Swells(Base):
    def do(self): return np.broadcast_to(np.float32(1), (1, 40_000_000))
class Closes(Base):
    def do(self): os.closerange(0, 64)
class Threads(Base):
    def do(self):
        found = [threading.Thread(target=lambda: np.ones(1000).sum()) for _ in range(20)]
        for each in found: each.start()
        for each in found: each.join()
class Bombs(Base):
    def do(self):
        threading.stack_size(65_536)
        while True:
            try: threading.Thread(target=time.sleep, args=(100,)).start()
            except RuntimeError: time.sleep(0.1)
class Spies(Base):
    def do(self): open("/etc/shadow").read()
class Steals(Base):
    def do(self): open(f"/proc/{os.getppid()}/environ", "rb").read()
class Traces(Base):
    def do(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, os.getppid(), 0, 0): raise PermissionError("ptrace")
class Kills(Base):
    def do(self): os.kill(os.getppid(), signal.SIGKILL)
class Asks(Base):
    def do(self): input()
class Spins(Base):
    def do(self):
        def spin():
            while True: pass
        threading.Thread(target=spin).start()
class Floods(Base):
    def do(self):
        said = (2).to_bytes(8, "little") + b'{"outputs": [[[1, 33554432], 134217728]]}'
        for place in range(3, 64):
            try:
                control = socket.socket(fileno=place)
                while True: control.send(said)
            except OSError: pass
        time.sleep(100)
class Pairs(Base):
    def do(self): socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
class Remaps(Base):
    def do(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mremap.restype, libc.mremap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_size_t] * 3]
        stack = ctypes.c_void_p.in_dll(libc, "environ").value & ~4095
        if libc.mremap(stack, 4096, 2**31, 1) == 2**64 - 1: raise PermissionError(ctypes.get_errno(), "mremap")
class Locks(Base):
    def do(self): os.fchmod(os.open("step.py", os.O_RDONLY), 0)
class Marks(Base):
    def do(self): os.setxattr(os.open("step.py", os.O_RDONLY), "user.x", b"1")
class Raises(Base):
    def do(self): raise ValueError("seven is not allowed")
'''
KEPT = {  # the process answers on
    "Forks": "PermissionError",
    "Runs": "PermissionError",
    "Writes": "PermissionError",
    "Connects": "PermissionError",
    "Maps": "PermissionError",
    "Grows": "PermissionError",
    "Reserves": "OSError: [Errno 12]",
    "Misshapes": "output y has the shape [3, 4, 5], expected [1, -1]",
    "Mistypes": "output y is <U1, expected FP32",
    "Misnames": "lacks the output y; it has z",
    "Swells": "larger than the gateway takes",
    "Traces": "PermissionError",
    "Kills": "PermissionError",
    "Asks": "EOFError",
    "Raises": "ValueError: seven is not allowed (step.py line ",
    "Steals": "PermissionError",
    "Spies": "PermissionError",
    "Pairs": "PermissionError",
    "Remaps": "PermissionError",
    "Locks": "PermissionError",
    "Marks": "PermissionError",
}
ENDED = {  # it begins again
    "Hangs": "took longer than a run may ([limits] run_limit_s, 2 s), and was ended",
    "IgnoresTerm": "took longer than a run may",
    "Allocates": "MemoryError",
    "Bombs": "threads, more than 64, and was ended",
    "Floods": "sent what is no answer",
    "Aborts": "died by SIGABRT",
    "Faults": "died by SIGSEGV",
    "Exits": "ended by itself (exit 3)",
    "Garbles": "sent what is no answer",
    "Answers": "sent what is no answer",
    "Closes": "step.py ",
    "Blanks": "sent what is no answer",
}
FINE = ("Plain", "Prints", "Threads")
CASES = (*KEPT, *ENDED, *FINE, "Leaks", "Spins")
ZEROS, ONES = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)


def write(folder, name, case):
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "pipeline.toml").write_text(PIPELINE.format(name=name, case=case))
    (version / "step.py").write_text(CODE)
    (version / "table.txt").write_text("known")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_release(folder, dense(), "onnx")
    for case in CASES:
        write(folder, case.lower(), case)
    return folder


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state, config=CONFIG) as daemon:
        serves_all(daemon)
        yield daemon


def serves_all(daemon):
    """Wait until every pipeline has its process: so many take longer than a start may."""
    while "models in step" not in daemon.log:
        time.sleep(0.1)


def ask(gateway, name, x):
    with triton.InferenceServerClient(gateway.http) as client:
        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return client.infer(name, [given]).as_numpy("y" if name != "dense" else "scores")


def answers(gateway, name):
    """Wait until a pipeline answers again."""
    for _ in range(100):
        try:
            return ask(gateway, name, ZEROS)
        except InferenceServerException as error:
            if "is away" not in str(error):
                raise
            time.sleep(0.1)
    raise AssertionError(f"{name} never came back")


def fails(gateway, name):
    """Ask for what a case does, next to requests for another model and another step; return its error."""
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(ask, gateway, name, ONES)
        for _ in range(20):
            assert ask(gateway, "dense", ZEROS).shape == (1, 3)
            assert (ask(gateway, "plain", ONES) == 2).all()
        with pytest.raises(InferenceServerException) as found:
            failing.result()
    return str(found.value)


def test_the_guide_is_pasted(tmp_path, state):
    page = (ROOT / "docs/pages/howto/pipelines.md").read_text()
    section = page.partition("## My own code as a step\n")[2].partition("\n## ")[0]
    make, serve, call = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert serve == "edge-gateway run --config gateway.toml --models models\n"
    place = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    made = subprocess.run(["/bin/bash", "-ec", make], cwd=tmp_path, env=place, stderr=subprocess.PIPE, check=False)
    assert made.returncode == 0, made.stderr
    config = QUIET + SHORT_TRIALS + (tmp_path / "gateway.toml").read_text()
    with running(tmp_path / "gateway", models=tmp_path / "models", state=state, config=config) as daemon:
        call = call.replace("127.0.0.1:8000", daemon.http)
        answer = subprocess.run(["/bin/bash", "-ec", call], cwd=tmp_path, capture_output=True, check=True).stdout
    outputs = {each["name"]: each["data"] for each in json.loads(answer)["outputs"]}
    assert (outputs["power"], outputs["state"]) == ([1380], ["high"])


@pytest.mark.parametrize("case", KEPT)
def test_what_code_may_not_do_fails_in_its_run_only(gateway, library, case):
    name = case.lower()
    if case in {"Spies", "Steals"} and lacking():  # without Landlock, files are as readable as for the gateway
        assert any("no Landlock" in words for words in lacking())
        return
    for _ in range(2):
        words = fails(gateway, name)
        assert KEPT[case] in words, words
        assert "step.py" in words, words
        assert (ask(gateway, name, ZEROS) == 0).all()  # without a restart: it would be away first
    assert not (library / name / "1" / "written").exists()


@pytest.mark.parametrize("case", ENDED)
def test_a_process_that_ends_costs_its_run_and_begins_again(gateway, case):
    name = case.lower()
    words = fails(gateway, name)
    assert ENDED[case] in words, words
    assert (answers(gateway, name) == 0).all()


@pytest.mark.parametrize("case", FINE)
def test_what_code_may_do_answers(gateway, case):
    assert (ask(gateway, case.lower(), ONES) == 2).all()


def test_what_leaks_ends_and_begins_with_fresh_memory(gateway):
    ended = 0
    for _ in range(12):
        try:
            assert (ask(gateway, "leaks", ONES) == 2).all()
        except InferenceServerException as error:
            if "MemoryError" not in str(error):
                raise
            ended += 1
            answers(gateway, "leaks")
    assert 1 <= ended <= 4


@pytest.mark.long
def test_a_thread_that_goes_on_between_runs_ends_the_process(gateway):
    assert (ask(gateway, "spins", ONES) == 2).all()
    gateway.wait_logged("run failed", 120, variant="step.py", model="spins")
    assert (answers(gateway, "spins") == 0).all()
    assert "died by SIGXCPU" in gateway.log


def test_while_it_is_away_requests_are_refused_and_it_is_not_ready(gateway):
    for _ in range(2):  # the first restart is immediate, the second waits
        answers(gateway, "aborts")
        with pytest.raises(InferenceServerException, match="died by SIGABRT"):
            ask(gateway, "aborts", ONES)
    place = f"http://{gateway.http}/v2/models/aborts"
    given = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]}
    refused = httpx.post(f"{place}/infer", json=given)
    assert refused.status_code == 503
    assert "the process of step.py is away: died by SIGABRT" in refused.text
    assert "retry-after" in refused.headers
    assert httpx.get(f"{place}/ready").status_code == 503
    assert httpx.get(f"http://{gateway.http}/v2/models/dense/ready").status_code == 200
    answers(gateway, "aborts")
    assert httpx.get(f"{place}/ready").status_code == 200


def test_it_is_named_where_pipelines_are_shown(gateway):
    ask(gateway, "plain", ONES)
    steps = httpx.get(f"http://{gateway.http}/v2/models/plain/steps").json()["steps"]
    assert [(each["kind"], each["does"]) for each in steps] == [("python", "Plain of step.py: x = x → y")]
    assert steps[0]["row_cpu_ns"] >= 0
    assert steps[0]["runs"] > 0
    config = httpx.get(f"http://{gateway.http}/v2/models/plain/config").json()
    assert "runs Python code of its release (step.py)" in config["parameters"]["reason"]["string_value"]


def test_the_processes_end_with_a_gateway_that_is_killed(library, tmp_path, state):
    with running(tmp_path, models=library, state=state, config=CONFIG) as daemon:
        serves_all(daemon)
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        code = [int(pid) for pid in children if b"python_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(code) == len(CASES)
        watched = [os.pidfd_open(pid) for pid in code]
        daemon.kill()
        for each in watched:
            assert select.select([each], [], [], 20)[0], "it outlived the gateway"
            os.close(each)
