"""Threads that a trial settles on.

One for quick models, several only where they pay, and never at the price of the verdict.
"""

import errno
import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, Variant
from gateway.common.domain.verdict import Measurement, SessionBudget, read_verdict
from gateway.serving.domain.ports import RowInput, RowProof, RowTensors
from gateway.serving.runtimes import trial_child
from gateway.serving.runtimes.job import ChildTask, Trial
from gateway.serving.runtimes.settings import TrialSettings
from tests.simulators import models
from tests.simulators.constants import settings_with

SLOW = settings_with(TrialSettings(measure_runs=5), one_thread_below_us=0.0)
VARIANT = Variant("v", "simulated", "fp32", (Artifact("m", "0" * 64, 1),))


class Session:
    """Session that returns its input after `pause_s`."""

    remarks, rows, peers, most = (), None, (), 99

    def __init__(self, pause_s, runs):
        self.pause_s, self.runs = pause_s, runs

    def run(self, inputs):
        self.runs.append(self.pause_s)
        time.sleep(self.pause_s)
        return {"y": inputs["x"]}

    def widen(self, runs):
        if runs > self.most:
            raise VariantError("no more")
        self.peers = [self] * (runs - 1)

    def close(self):
        pass


class Serial(Session):
    """Session whose runs take place one after the other, whatever the number of threads that ask."""

    lock = threading.Lock()

    def run(self, inputs):
        with self.lock:
            return super().run(inputs)


class Runtime:
    """Runtime. `pauses_s`: what a run takes by number of threads; an exception instead is raised by `open`."""

    session = Session

    def __init__(self, pauses_s):
        self.pauses_s, self.opened, self.runs = pauses_s, [], []

    def open(self, manifest, variant, files, budget):
        del manifest, variant, files
        self.opened.append(budget.threads)
        behaviour = self.pauses_s[budget.threads]
        if isinstance(behaviour, Exception):
            raise behaviour
        return self.session(behaviour, self.runs)

    def operators(self, variant, files):
        del variant, files
        return frozenset()


@pytest.fixture
def answered(monkeypatch, tmp_path):
    def answer(runtime, settings=SLOW, budget=SessionBudget(4)):  # noqa: B008 - frozen
        monkeypatch.setattr(trial_child, "get_runtime", lambda _name: runtime)
        lines = []
        trial_child.answer(ChildTask(Trial(models.identity(), VARIANT, tmp_path, budget), settings), lines.append)
        return lines[-1]

    return answer


@pytest.fixture
def exact(monkeypatch):
    """Replace clocks by what a run of the session is said to take; Serial sessions run one after the other."""

    def together(session, _row, runs, _longest_s, *, single):
        del single
        pause_us = session.pause_s * 1e6
        return (pause_us * runs, pause_us) if isinstance(session, Serial) else (pause_us, pause_us / runs)

    def measured(session, *_, **__):
        pause_us = session.pause_s * 1e6
        return Measurement(pause_us, pause_us, pause_us, 2**20)

    monkeypatch.setattr(trial_child.measure, "together", together)
    monkeypatch.setattr(trial_child.measure, "measured", measured)
    monkeypatch.setattr(trial_child.measure, "once_us", lambda session, _row, **_: session.pause_s * 1e6)


def test_a_quick_model_is_opened_once_with_one_thread(answered):
    runtime = Runtime({1: 0.0})
    line = answered(runtime, settings_with(SLOW, one_thread_below_us=1e9))
    assert runtime.opened == [1]
    assert line.result["threads"] == 1
    assert line.result["passed"]


@pytest.mark.usefixtures("exact")
def test_a_slow_model_gets_the_threads_that_pay(answered):
    line = answered(Runtime({1: 0.005, 4: 0.001}))
    assert line.result["threads"] == 4
    assert line.result["measured"]["p50_us"] == pytest.approx(1000)


@pytest.mark.usefixtures("exact")
def test_a_slow_model_keeps_one_thread_where_more_do_not_pay(answered):
    line = answered(Runtime({1: 0.001, 4: 0.005}))
    assert line.result["threads"] == 1
    assert line.result["measured"]["p50_us"] == pytest.approx(1000)


@pytest.mark.parametrize("budget", [SessionBudget(1), SessionBudget(4, "intel-gpu")])
def test_one_thread_where_no_more_are_allowed_or_an_accelerator_computes(answered, budget):
    runtime = Runtime({1: 0.0})
    assert answered(runtime, budget=budget).result["threads"] == 1
    assert runtime.opened == [1]


def test_a_variant_that_passed_with_one_thread_passes_whatever_more_threads_do(answered):
    line = answered(Runtime({1: 0.001, 4: VariantError("cannot open it with so many")}))
    assert line.result["passed"], line
    assert line.result["threads"] == 1


def test_a_model_is_not_given_up_because_one_thread_would_take_too_long(answered):
    """A golden set that ends in time with four threads need not do so with one."""
    runtime = Runtime({1: 0.05, 4: 0.0})
    assert answered(runtime).result["threads"] == 4
    assert runtime.runs.count(0.05) == 4, "tried twice and timed twice with one thread, not judged with it"


def test_half_the_deadline_spent_is_enough_of_trying(answered):
    runtime = Runtime({1: 0.0, 4: 0.001})
    line = answered(runtime, replace(SLOW, deadline_s=0.0))
    assert runtime.opened == [1, 4]
    assert line.result["passed"]
    assert line.result["threads"] == 4


@pytest.mark.parametrize(
    "fault",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        OSError(errno.ENODEV, os.strerror(errno.ENODEV), "/dev/accel0"),
        VariantError("ONNX Runtime failed: std::bad_alloc"),
        VariantError("ONNX Runtime failed: CUDA failure 100: no CUDA-capable device is detected"),
    ],
)
def test_a_lack_of_memory_or_of_a_device_is_a_fault_of_the_moment(answered, fault):
    assert answered(Runtime({1: fault}), budget=SessionBudget(1)).transient


def test_an_unknown_fault_is_the_variants(answered):
    assert not answered(Runtime({1: ValueError("odd")}), budget=SessionBudget(1)).transient


def test_a_joined_run_that_lacks_memory_decides_nothing(answered, monkeypatch):
    def run(session, inputs):
        if len(inputs["x"]) > 1:
            raise VariantError("Failed to allocate memory for requested buffer of size 1000")
        return {"y": inputs["x"]}

    monkeypatch.setattr(Session, "rows", RowTensors({"x": RowInput((-1, 3))}, {"y": 0}))
    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(Runtime, "prove_rows", lambda *_: RowProof(), raising=False)
    verdict = read_verdict(answered(Runtime({1: 0.0}), budget=SessionBudget(1)).result)
    assert (verdict.passed, verdict.transient) == (True, True)
    assert (verdict.joining.basis, verdict.joining.allowed, verdict.joining.difference) == ("proved", False, "")


def chosen(line):
    verdict = read_verdict(line.result)
    return verdict.threads, verdict.runs


def tried(line):
    return [(each.threads, each.runs) for each in read_verdict(line.result).parallel]


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8])
@pytest.mark.usefixtures("exact")
def test_runs_at_a_time_that_gain_are_chosen(answered, cores):
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=cores))
    assert chosen(line) == (1, cores)
    assert tried(line) == [(1, runs) for runs in (1, 2, 3, 4, 8) if runs == cores or (runs < cores and runs != 3)]
    assert read_verdict(line.result).measured.busy_us == pytest.approx(5000 / cores)


@pytest.mark.usefixtures("exact")
def test_runs_at_a_time_that_gain_nothing_are_left(answered, monkeypatch):
    monkeypatch.setattr(Runtime, "session", Serial)
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=4))
    assert chosen(line) == (1, 1)
    assert tried(line) == [(1, 1), (1, 2)], "no more are tried"


@pytest.mark.usefixtures("exact")
def test_a_quick_model_is_tried_with_one_run(answered):
    line = answered(Runtime({1: 0.0005}), budget=SessionBudget(1, runs=4))
    assert (chosen(line), tried(line)) == ((1, 1), [(1, 1)])


@pytest.mark.usefixtures("exact")
def test_as_many_runs_as_the_engine_allows(answered, monkeypatch):
    monkeypatch.setattr(Session, "most", 2)
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=4))
    assert chosen(line) == (1, 2)


@pytest.mark.usefixtures("exact")
def test_a_session_that_cannot_be_widened_keeps_one_run(answered, monkeypatch):
    monkeypatch.delattr(Session, "widen")
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=4))
    assert (chosen(line), tried(line)) == ((1, 1), [(1, 1)])


@pytest.mark.parametrize("fault", [VariantError("ONNX Runtime failed: bad allocation"), MemoryError()])
@pytest.mark.usefixtures("exact")
def test_runs_at_a_time_that_fail_are_left(answered, monkeypatch, fault):
    together = trial_child.measure.together

    def failing(session, row, runs, longest_s, *, single):
        if runs > 2:
            raise fault
        return together(session, row, runs, longest_s, single=single)

    monkeypatch.setattr(trial_child.measure, "together", failing)
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=4))
    assert (chosen(line), tried(line)) == ((1, 2), [(1, 1), (1, 2)])


@pytest.mark.usefixtures("exact")
def test_runs_that_take_too_much_memory_are_left(answered, monkeypatch):
    resident = iter(range(0, 2**40, 2**30))
    monkeypatch.setattr(trial_child.measure, "resident_bytes", lambda: next(resident))
    line = answered(Runtime({1: 0.005}), budget=SessionBudget(1, runs=4, memory_bytes=2**30 + 2**20))
    assert chosen(line) == (1, 2)
    assert read_verdict(line.result).measured.memory_bytes == 2**30 + 2**20


@pytest.mark.usefixtures("exact")
def test_demanded_runs_are_honoured_within_the_budget(answered, monkeypatch):
    monkeypatch.setattr(Runtime, "session", Serial)
    demanded = replace(models.identity(), runs=3)
    monkeypatch.setattr(models, "identity", lambda: demanded)
    line = answered(Runtime({1: 0.0}), budget=SessionBudget(1, runs=3))
    assert (chosen(line), tried(line)) == ((1, 3), [(1, 1), (1, 3)])


@pytest.mark.parametrize(
    ("several_s", "objective", "expected"),
    [
        (0.010, "latency", (1, 2)),  # 1.5 times as fast alone, but 1.3 times as slow under load
        (0.009, "latency", (2, 1)),
        (0.009, "throughput", (1, 2)),
        (0.006, "throughput", (2, 1)),
    ],
)
@pytest.mark.usefixtures("exact")
def test_threads_and_runs_are_weighed_by_the_objective(answered, several_s, objective, expected):
    budget = SessionBudget(2, runs=2, objective=objective)
    line = answered(Runtime({1: 0.015, 2: several_s}), budget=budget)
    assert chosen(line) == expected
    assert set(tried(line)) == {(1, 1), (1, 2), (2, 1)}


def test_runs_are_measured_while_others_take_place():
    """Each run waits for two others, which have begun only if they take place at a time."""
    meeting, runs = threading.Barrier(3), []

    def run(inputs):
        if len(runs) >= 3:  # after one of each session, which warms it up
            meeting.wait(60)
        runs.append(inputs)

    session, *peers = (SimpleNamespace(run=run) for _ in range(3))
    session.peers = peers
    run_us, busy_us = trial_child.measure.together(session, {}, 3, 0.0, single=True)
    assert len(runs) == 3 + 3 * trial_child.measure.LEAST_TOGETHER
    assert busy_us == pytest.approx(run_us / 3)


def test_a_plugin_must_answer_as_the_runtime_itself_does(answered):
    class Differing(Runtime):
        def open(self, manifest, variant, files, budget):
            session = super().open(manifest, variant, files, budget)
            if budget.provider:
                session.run = lambda inputs: {"y": inputs["x"] + np.float32(self.error)}
            return session

    for error, passed in ((0.0, True), (1.0, False)):
        runtime = Differing({1: 0.0})
        runtime.error = error
        result = answered(runtime, budget=SessionBudget(1, provider="P")).result
        assert result["passed"] is passed
    assert "answers differ by up to 1 from those of the runtime itself (output 'y')" in result["reason"]
