"""The throw-away process itself: its privacy, its death with its parent, and what is said to it and by it."""

import asyncio
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.noise import busy_share
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import (
    Joining,
    Measurement,
    SessionBudget,
    Signature,
    Verdict,
    read_signature,
    read_verdict,
    signature_document,
    verdict_document,
)
from gateway.serving.domain.golden import GoldenSet
from gateway.serving.runtimes import child, job, measure, trial
from gateway.serving.runtimes.child import ChildEnd, child_environment
from gateway.serving.runtimes.job import ChildLine
from gateway.serving.runtimes.settings import TrialSettings
from tests.simulators import models

ROOT = Path(__file__).resolve().parents[4]


def test_a_job_survives_the_pipe(tmp_path):
    manifest = models.write_variant(tmp_path, models.identity(Datatype.BF16), "reference")
    sent = job.ChildTask(
        job.Trial(manifest, manifest.variants[0], tmp_path, SessionBudget(2, "cpu", {"a": "b"})), TrialSettings()
    )
    assert job.read_job(io.BytesIO(job.write_job(sent))) == sent


def test_a_problem_of_the_moment_survives_the_pipe():
    said = job.ChildLine(problem="busy", remedy="wait", transient=True)
    assert job.read_line(said.encode()) == said


@pytest.mark.parametrize("measured", [None, Measurement(1.0, 2.0, 3.0, 4, 5.0)])
def test_a_verdict_survives_the_pipe(measured):
    joining = Joining("declared", "the model has state (Assign)", "differs")
    verdict = Verdict(
        True, "fine", measured, 0.5, level="exercised", joining=joining, unbounded="x", sample=3, remarks=("a", "b")
    )
    line = job.read_line(job.ChildLine(result=verdict_document(verdict)).encode())
    assert read_verdict(line.result) == verdict


def test_a_signature_survives_the_pipe():
    signature = Signature(
        (TensorSpec("x", Datatype.BF16, (-1, 3), axes=("N", "")),), (TensorSpec("y", Datatype.BYTES, ()),)
    )
    line = job.read_line(job.ChildLine(result=signature_document(signature)).encode())
    assert read_signature(line.result) == signature


@pytest.mark.parametrize("raw", [b"", b"hello\n", b"[]\n", b"{}\n", b"\xff\n", b"[" * 100_000])
def test_nonsense_from_a_child_is_refused(raw):
    with pytest.raises(VariantError, match="nonsense"):
        job.read_line(raw)


def test_what_an_engine_prints_does_not_reach_the_answers():
    code = (
        "import os, ctypes\n"
        "from gateway.serving.runtimes.trial_child import private_stdout\nanswers = private_stdout()\n"
        "print('noise', flush=True)\nos.write(1, b'noise')\nctypes.CDLL(None).puts(b'noise')\n"
        "os.write(answers, b'answer')\nctypes.CDLL(None).fflush(None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT, timeout=30)
    assert done.stdout == b"answer"
    assert done.stderr.count(b"noise") == 3


def test_a_child_dies_with_its_parent(tmp_path):
    models.write_onnx_endless(tmp_path / "model.onnx")
    code = (
        "import asyncio\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        "from gateway.common.domain.manifest import Artifact, Variant\n"
        "from gateway.common.domain.verdict import SessionBudget\n"
        "from gateway.serving.runtimes.settings import TrialSettings\n"
        "from gateway.serving.runtimes.trial import try_variant\n"
        "from tests.simulators import models\nmanifest = models.identity()\n"
        "x, y = (replace(spec, shape=(1,)) for spec in (*manifest.inputs, *manifest.outputs))\n"
        "manifest = replace(manifest, inputs=(x,), outputs=(y,))\n"
        "variant = Variant('endless', 'onnx', 'fp32', (Artifact('model.onnx', '0' * 64, 1),))\n"
        f"asyncio.run(try_variant(manifest, variant, Path({str(tmp_path)!r}), SessionBudget(), TrialSettings()))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as parent:
        while not any(map(is_lost_in_its_job, (children := psutil.Process(parent.pid).children(recursive=True)))):
            assert parent.poll() is None
        parent.kill()
        assert len(children) == 2, "the fork server and the process of the trial"
        for child in children:
            child.wait(timeout=30)


def is_lost_in_its_job(child):
    """Return whether the child is in the endless loop, where no end of its caller is noticed.

    Starting takes a third of this CPU time.
    """
    return child.cpu_times().user > 1.0


@pytest.mark.parametrize("runtime", models.FILES)
def test_an_engine_may_be_forked_after_its_import(runtime):
    """A second thread would not exist in a forked process; OpenMP would have read the number of its threads."""
    code = (
        "import os\nfrom pathlib import Path\nfrom gateway.serving.runtimes.catalog import get_runtime\n"
        f"get_runtime({runtime!r}).import_engine()\n"
        "print(len(os.listdir('/proc/self/task')), 'omp' in Path('/proc/self/maps').read_text())"
    )
    environment = child_environment("1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment, timeout=60)
    assert done.stdout == b"1 False\n"


@pytest.mark.parametrize(
    ("cpu_s", "busy", "held_up"),
    [
        (2.0, 0.98, True),
        (58.0, 0.98, False),  # it had a core of its own
        (2.0, 0.03, False),  # it waited for nothing that others had
        (58.0, 0.51, False),
        (2.0, 0.0, False),  # a kernel that does not say
    ],
)
def test_a_process_that_others_held_up(cpu_s, busy, held_up):
    assert ChildEnd(-9, cpu_s, 0, 60.0, 2, busy).held_up is held_up


@pytest.mark.parametrize("held_up", [True, False])
def test_a_verdict_after_a_part_that_others_held_up_is_not_kept(monkeypatch, tmp_path, held_up):
    manifest = models.write_variant(tmp_path, models.identity(), "reference")
    late = ChildLine(stage="running", part="sample 0", limit_s=15.0)
    answers = iter([child.UnendingPartError(late, transient=held_up), verdict_document(Verdict(True, "fine"))])

    async def ask(task, _deadline_s, _settings):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        assert task.left_out == ("sample 0",)
        return answer

    monkeypatch.setattr(trial, "ask_child", ask)
    tried = trial.try_variant(manifest, manifest.variants[0], tmp_path, SessionBudget(), TrialSettings())
    assert asyncio.run(tried) == Verdict(True, "fine", transient=held_up)


def test_the_busy_share_of_the_machine():
    first, last = "cpu  100 200 300 4000 500 60 70 80 90 0\ncpu0 1 2\n", "cpu  110 200 320 4050 510 60 70 90 90 0\n"
    assert busy_share(first, last) == pytest.approx(0.5)
    assert busy_share(first, first) == busy_share("", last) == busy_share("", "") == 0.0


@pytest.mark.parametrize(
    ("code", "words"), [(1, "ended without an answer (exit 1"), (-6, "died by SIGABRT"), (-60, "60")]
)
def test_the_end_of_a_process_in_words(code, words):
    end = ChildEnd(code, 0.0, 3 * 2**20, 1.0)
    assert words in end.words
    assert "3 MiB" in end.words
    assert not end.killed


class Echo:
    """A session that hands its input back and counts its rows."""

    def __init__(self):
        self.rows = []

    def run(self, inputs):
        self.rows.append(inputs["x"].shape)
        return {"y": inputs["x"]}

    def close(self):
        pass


def test_golden_rows_are_fed_in_bounded_batches():
    session, x = Echo(), np.arange(30, dtype=np.float32).reshape(10, 3)
    verdict = measure.judged(models.identity(), session, GoldenSet({"x": x}, {"y": x}), "reference", 4)
    assert verdict.passed, verdict.reason
    assert session.rows == [(4, 3), (4, 3), (2, 3)]


def test_golden_answers_are_copied_before_the_next_run():
    class Lender(Echo):
        buffer = np.zeros((4, 3), np.float32)

        def run(self, inputs):
            lent = self.buffer[: len(inputs["x"])]
            lent[:] = inputs["x"]
            return {"y": lent}

    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    verdict = measure.judged(models.identity(), Lender(), GoldenSet({"x": x}, {"y": x}), "reference", 4)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("shape", "fed"), [((2, 3), [(2, 3)]), ((3,), [(3,), (3,)])])
def test_golden_rows_of_a_model_without_batches(shape, fed):
    manifest = models.identity()
    x, y = (replace(spec, shape=shape) for spec in (*manifest.inputs, *manifest.outputs))
    session, values = Echo(), np.ones((2, 3), np.float32)
    golden = GoldenSet({"x": values}, {"y": values})
    verdict = measure.judged(replace(manifest, inputs=(x,), outputs=(y,)), session, golden, "reference", 4)
    assert verdict.passed, verdict.reason
    assert session.rows == fed


def test_an_empty_golden_set_proves_nothing():
    x = np.zeros((0, 3), np.float32)
    with pytest.raises(VariantError, match="no rows"):
        measure.judged(models.identity(), Echo(), GoldenSet({"x": x}, {"y": x}), "reference", 4)


def test_at_least_five_runs_are_measured_however_little_time_there_is():
    session = Echo()
    rows = [{"x": np.zeros((1, 3), np.float32)}] * 4
    measure.measured(session, rows, TrialSettings(measure_s=0.0), 0, joined=False, single=True)
    assert session.rows == [(1, 3)] * (measure.WARMUP_RUNS + measure.LEAST_RUNS)
