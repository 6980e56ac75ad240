"""Sessions in real worker processes that misbehave: each fault costs its own run only, and the next one is answered."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.isolation import MIB, WorkerPolicy
from gateway.serving.runtimes import isolated, worker_process
from gateway.serving.runtimes.isolated import IsolatedSession, samples
from tests.simulators import faulty
from tests.simulators.faulty import asking

WAIT_S = 60.0
NARROW = """
import gateway.serving.runtimes.session as session
from gateway.common.domain.errors import VariantError
def refuse(self, runs):
    raise VariantError("out of memory")
for each in list(vars(session).values()):
    if isinstance(each, type) and "widen" in vars(each):
        each.widen = refuse
"""


class Rig:
    """Files of the faulty model, and sessions over them. `obstacle`: why they cannot be copied now."""

    def __init__(self, folder: Path) -> None:
        self.manifest, self.folder, self.obstacle = faulty.write_release(folder), folder / "faulty" / "1", ""
        self.sessions = list[IsolatedSession]()

    @contextmanager
    def copies(self) -> Iterator[Path]:
        if self.obstacle:
            raise VariantError(self.obstacle, transient=True)
        yield self.folder

    def open(self, runs: int = 1, **policy: Any) -> IsolatedSession:
        budget, variant = SessionBudget(runs=runs), self.manifest.variants[0]
        session = IsolatedSession(self.manifest, variant, self.copies, budget, WorkerPolicy(**policy))
        self.sessions.append(session)
        return session


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name, value in faulty.given_to(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(isolated, "WAIT_S", WAIT_S)  # a start takes long on a busy machine
    made = Rig(tmp_path)
    yield made
    for session in made.sessions:
        session.close()


def answers(session: Any) -> bool:
    asked = asking("good", 2)
    return bool((session.run(asked)["y"] == 2 * asked["x"]).all())


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def has_spare(session: IsolatedSession) -> Callable[[], bool]:
    return lambda: session.keeper.spare is not None


FAULTS = {
    "crashes": (r"died by SIGSEGV", "crashed"),
    "aborts": (r"died by SIGABRT", "crashed"),
    "exits": (r"ended without an answer \(exit 3", "exited"),
    "answers itself": ("answered garbage: run 1 of 2", "garbage"),
    "answers garbage": ("answered garbage", "garbage"),
    "answers twice": ("answered garbage: run 1 of 2", "garbage"),
    "other shape": (r"output y has the shape \[2, 7\]", "garbage"),
    "other type": ("output y has the type <i8", "garbage"),
    "closes its sockets": ("closed its socket, and was ended|ended without an answer|died by", ""),
}
"""Words and reason of the end that a fault leads to."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("spare", [False, True])
def test_a_fault_costs_its_run_and_a_worker(rig: Rig, fault: str, spare: bool) -> None:
    session = rig.open(spare=spare)
    assert answers(session)
    if spare:
        wait(has_spare(session))
    words, reason = FAULTS[fault]
    with pytest.raises(VariantError, match=words) as raised:
        session.run(asking(fault))
    assert not raised.value.transient
    assert answers(session)
    assert sum(session.keeper.ends.values()) == 1
    assert not reason or session.keeper.ends[reason] == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("forks", "PermissionError"),
        ("executes", "PermissionError"),
        ("opens a socket", "PermissionError"),
        ("writes a file", "PermissionError"),
        ("lacks memory", "MemoryError"),
        ("raises", "ZeroDivisionError"),
    ],
)
def test_what_is_refused_costs_its_run(rig: Rig, fault: str, words: str) -> None:
    session = rig.open(spare=False)
    with pytest.raises(VariantError, match=words):
        session.run(asking(fault))
    assert answers(session)
    assert not session.keeper.ends


def test_prints_are_read_and_the_last_words_logged_and_not_answered(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    session = rig.open(spare=False)
    assert session.run(asking("prints"))
    with pytest.raises(VariantError, match="SIGABRT") as raised:
        session.run(asking("aborts"))
    assert "xx" not in str(raised.value)
    assert "last words: xxx" in caplog.text


def test_values_that_are_no_numbers_pass(rig: Rig) -> None:
    assert np.isnan(rig.open(spare=False).run(asking("not a number"))["y"]).all()


@pytest.mark.parametrize("fault", ["hangs", "loops"])
def test_a_run_that_hangs_is_ended_with_its_worker(rig: Rig, fault: str) -> None:
    session = rig.open(spare=False)
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(session.run, asking(fault))
        wait(lambda: session.keeper.active is not None and session.keeper.active.busy)
        assert session.cancel()
        with pytest.raises(VariantError, match="longer than it may"):
            hung.result(WAIT_S)
    assert answers(session)
    assert session.keeper.ends == {"overlong": 1}


def test_a_run_that_hangs_costs_no_other_run_of_the_model(rig: Rig) -> None:
    session = rig.open(runs=2, spare=False)
    session.widen(2)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(session.peers[0].run, asking("sleeps"))
        hung = pool.submit(session.run, asking("hangs"))
        wait(lambda: session.keeper.active is not None and all(lane.busy for lane in session.keeper.active.lanes))
        session.cancel()
        with pytest.raises(VariantError, match="longer than it may"):
            hung.result(WAIT_S)
        assert (other.result(WAIT_S)["y"] == 2 * asking("sleeps")["x"]).all()


def test_a_crash_costs_no_other_run_of_the_model(rig: Rig) -> None:
    session = rig.open(runs=2, spare=False)
    session.widen(2)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(session.peers[0].run, asking("sleeps long"))
        wait(lambda: session.keeper.active is not None and session.keeper.active.busy)
        crashed = pool.submit(session.run, asking("crashes"))
        assert (other.result(WAIT_S)["y"] == 2 * asking("sleeps long")["x"]).all()
        assert "SIGSEGV" in str(crashed.exception(WAIT_S))
    assert answers(session)


def test_a_worker_that_crashes_before_it_reads_a_request_costs_none(rig: Rig) -> None:
    session = rig.open(spare=False)
    worker = session.keeper.active
    assert worker is not None
    os.kill(worker.pid, signal.SIGSTOP)
    wait(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(answers, session)
        wait(lambda: worker.busy)
        os.kill(worker.pid, signal.SIGSEGV)
        os.kill(worker.pid, signal.SIGCONT)
        assert run.result(WAIT_S)
    assert session.keeper.ends == {"crashed": 1}


def test_a_lack_of_descriptors_passes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "WAIT_S", 0.5)
    session = rig.open(runs=2, spare=False)
    bounds, held = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    assert session.keeper.active is not None
    most = max(int(each) for each in os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 1, bounds[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.kill(session.keeper.active.pid, 9)
        wait(lambda: session.keeper.ends["unopened"] >= 2)
        with pytest.raises(VariantError, match="Too many open files") as raised:
            session.run(asking("good"))
        assert raised.value.transient
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
    wait(lambda: session.keeper.active is not None)
    assert answers(session)


def test_a_fault_of_the_keeper_passes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "CHECK_S", 0.01)
    session, faults = rig.open(spare=False), [OSError("no"), MemoryError()]

    def fails(_: object) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr(type(session.keeper), "_start_due", fails)
    session.keeper.wake()
    wait(lambda: not faults)
    monkeypatch.undo()
    session.keeper.wake()
    assert answers(session)


def test_what_a_closed_session_raises_keeps_no_inputs(rig: Rig) -> None:
    session = rig.open(spare=False)
    session.close()
    for _ in range(3):
        with pytest.raises(VariantError, match="the session is closed") as raised:
            session.run(asking("good"))
    assert len(raised.traceback) < 8


def test_a_worker_with_fewer_lanes_serves_all_runs(rig: Rig, tmp_path: Path) -> None:
    session = rig.open(runs=2, spare=False)
    session.widen(2)
    assert session.keeper.lanes == 2
    with (tmp_path / "site" / "sitecustomize.py").open("a") as site:
        site.write(NARROW)
    assert session.keeper.active is not None
    os.kill(session.keeper.active.pid, 9)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(each.run, asking("sleeps")) for each in (session, *session.peers) * 2]
        assert all((run.result(WAIT_S)["y"] == 2 * asking("sleeps")["x"]).all() for run in runs)
    assert session.keeper.lanes == 1


def test_a_lack_of_memory_for_outputs_costs_its_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    session = rig.open(spare=False)
    assert answers(session)
    made, sizes = worker_process.Slab, list[int]()

    def slab(size: int) -> worker_process.Slab:
        sizes.append(size)
        if len(sizes) == 2:  # after that for the inputs
            raise VariantError("there is no memory", transient=True)
        return made(size)

    monkeypatch.setattr(worker_process, "Slab", slab)
    x = np.full((20_000, 3), 100.0, np.float32)
    with pytest.raises(VariantError, match="no memory for its outputs"):
        session.run({"x": x})
    assert answers(session)
    assert (session.run({"x": x})["y"] == 200.0).all()
    assert not session.keeper.ends


def test_a_worker_that_others_kill_costs_no_run(rig: Rig) -> None:
    session = rig.open()
    wait(has_spare(session))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(session.run, asking("sleeps"))
        wait(lambda: session.keeper.active is not None and session.keeper.active.busy)
        assert session.keeper.active is not None
        os.kill(session.keeper.active.pid, 9)
        assert (run.result(WAIT_S)["y"] == 2 * asking("sleeps")["x"]).all()
    assert session.keeper.ends == {"killed": 1}


def test_a_run_that_kills_its_worker_each_time_fails_for_now(rig: Rig) -> None:
    session = rig.open()
    with pytest.raises(VariantError, match="SIGKILL") as raised:
        session.run(asking("is killed"))
    assert raised.value.transient
    assert answers(session)


def test_a_worker_that_leaks_is_replaced_and_costs_no_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "CHECK_S", 0.02)
    session = rig.open(memory_bytes=400 * MIB)
    for _ in range(40):
        if session.keeper.ends["memory"]:
            break
        asked = asking("leaks")
        assert (session.run(asked)["y"] == 2 * asked["x"]).all()
        time.sleep(0.05)
    assert session.keeper.ends["memory"]
    assert answers(session)


def test_a_worker_that_cannot_be_replaced_says_so_and_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "WAIT_S", 0.1)
    session = rig.open(spare=False)
    rig.obstacle = "there is no memory for that"
    with pytest.raises(VariantError, match="SIGSEGV"):
        session.run(asking("crashes"))
    wait(lambda: session.keeper.ends["unopened"] >= 2)
    with pytest.raises(VariantError, match=r"is away, and is .*: there is no memory for that") as raised:
        session.run(asking("good"))
    assert raised.value.transient
    rig.obstacle = ""
    wait(lambda: session.keeper.active is not None)
    assert answers(session)


def test_a_variant_that_does_not_open_is_refused_with_its_words(rig: Rig) -> None:
    (rig.folder / "model.faulty").write_bytes(b"3\n")
    with pytest.raises(VariantError, match="the file is damaged"):
        rig.open()


def test_large_outputs_are_lent_and_stay_as_they_are(rig: Rig) -> None:
    session = rig.open(spare=False)
    rows = 20_000
    held = []
    for count in range(8):
        x = np.full((rows, 3), 100.0 + count, np.float32)
        held.append((session.run({"x": x})["y"], count))
    for array, count in held:
        assert (array == 2 * (100.0 + count)).all()
    assert sum(array.base is not None for array, _ in held) == 2  # the others are copies
    del held, array
    assert session.run({"x": x})["y"].base is not None


def test_rows_and_sizes_may_differ_from_run_to_run(rig: Rig) -> None:
    session = rig.open(spare=False)
    for rows in (1, 5000, 0, 3, 70_000, 1):
        x = np.full((rows, 3), 200.0, np.float32)
        assert (session.run({"x": x})["y"] == 400.0).all()


def test_nothing_is_left_of_sessions_and_workers(rig: Rig) -> None:
    def left() -> tuple[int, int, int]:
        gc.collect()
        mine = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                mine += int(file.read_text().rpartition(")")[2].split()[1]) == os.getpid()
        return len([*Path("/proc/self/fd").iterdir()]), mine, threading.active_count()

    def cycle() -> None:
        session = rig.open()
        for fault in ("crashes", "good", "exits", "answers garbage", "good"):
            try:
                session.run(asking(fault))
            except VariantError:
                assert fault != "good"
        session.close()
        rig.sessions.clear()

    cycle()
    before = left()
    for _ in range(4):
        cycle()
    assert left() == before


def test_metrics_count_workers(rig: Rig) -> None:
    session = rig.open()
    wait(has_spare(session))
    with pytest.raises(VariantError):
        session.run(asking("exits"))
    wait(lambda: session.keeper.ends["exited"] == 1)
    found = {
        (each.name, each.labels.get("reason")): each.value for each in samples() if each.labels["model"] == "faulty"
    }
    assert found["worker_ends_total", "exited"] == 1
    assert found["worker_memory_bytes", None] > 10 * MIB
