"""Runs in parts in real worker processes: parts as they come, stops, and ends of the worker in the midst of a text."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.isolation import WorkerPolicy
from gateway.serving.runtimes import isolated, worker_child
from gateway.serving.runtimes.isolated import IsolatedSession
from tests.simulators import writer
from tests.simulators.writer import inputs, words

WAIT_S = 60.0
LONG = {"max_tokens": 10**6, "pause_s": 0.01}


class Listener:
    """Receiver of parts that keeps their text, and wants no more after `most` of them."""

    def __init__(self, most: int = 10**9) -> None:
        self.text, self.count, self.most, self.came = "", 0, most, threading.Event()

    def __call__(self, outputs: Tensors) -> bool:
        if outputs:
            self.text += outputs["text_output"][0].decode()
            self.count += 1
            self.came.set()
        return self.count < self.most


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedSession]:
    """Return a session of two runs at a time."""
    for name, value in writer.given_to(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(isolated, "WAIT_S", WAIT_S)  # a start takes long on a busy machine
    manifest, folder = writer.write_release(tmp_path), tmp_path / "writer" / "1"
    policy = WorkerPolicy(spare=False)
    variant, budget = manifest.variants[0], SessionBudget(runs=2)
    session = IsolatedSession(manifest, variant, lambda: nullcontext(folder), budget, policy)
    session.widen(2)
    yield session
    session.close()


def said(outputs: Tensors) -> tuple[str, str]:
    return outputs["text_output"][0].decode(), outputs["finish_reason"][0].decode()


def answers(session: Any) -> bool:
    listener = Listener()
    outputs = session.run_in_parts(inputs("ß", max_tokens=3), listener)
    return listener.text == words(3, "ß") and said(outputs) == (words(3, "ß"), "length")


def test_parts_come_from_a_worker_and_so_does_the_whole(opened: IsolatedSession) -> None:
    assert opened.in_parts
    assert answers(opened)
    assert answers(opened.peers[0])
    assert said(opened.run(inputs(max_tokens=2))) == (words(2), "length")
    assert opened.run(inputs(max_tokens=2))["num_output_tokens"] == np.array([2], np.uint32)


def test_a_run_ends_when_nobody_wants_more_and_its_worker_lives(opened: IsolatedSession) -> None:
    (worker,) = opened.keeper.workers
    for most in (1, 3):
        listener = Listener(most)
        text, finish = said(opened.run_in_parts(inputs(**LONG), listener))
        assert finish == "cancelled"
        assert text.startswith(listener.text)
        assert answers(opened)  # a stop that came late is not of the next run
    listener = Listener(3)
    assert said(opened.run_in_parts(inputs(max_tokens=3), listener))[0] == words(3)  # it ends while it is stopped
    assert answers(opened)
    assert opened.keeper.workers == [worker]


def test_a_killed_worker_ends_all_texts_that_have_begun_and_none_is_repeated(opened: IsolatedSession) -> None:
    (worker,) = opened.keeper.workers
    listeners = [Listener(), Listener()]
    with ThreadPoolExecutor(2) as pool:
        lanes = (opened, opened.peers[0])
        runs = [
            pool.submit(lane.run_in_parts, inputs(**LONG), each) for lane, each in zip(lanes, listeners, strict=True)
        ]
        for each in listeners:
            assert each.came.wait(WAIT_S)
        os.kill(worker.pid, signal.SIGKILL)
        for run in runs:
            with pytest.raises(VariantError, match="SIGKILL") as caught:
                run.result(WAIT_S)
            assert caught.value.transient
    assert all(each.text == words(each.count) for each in listeners)
    assert answers(opened)
    assert answers(opened.peers[0])


def test_a_run_without_a_part_is_repeated_if_its_worker_is_killed(opened: IsolatedSession) -> None:
    (worker,) = opened.keeper.workers
    with ThreadPoolExecutor(1) as pool:
        listener = Listener()
        run = pool.submit(opened.run_in_parts, inputs(max_tokens=2, pause_s=2.0), listener)
        while not worker.busy:
            pass
        os.kill(worker.pid, signal.SIGKILL)
        assert said(run.result(WAIT_S)) == (words(2), "length")
    assert listener.text == words(2)


def test_a_cancelled_run_that_takes_no_step_ends_with_its_worker(opened: IsolatedSession) -> None:
    listener = Listener()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(opened.run_in_parts, inputs(max_tokens=3, hang_after=1), listener)
        assert listener.came.wait(WAIT_S)
        opened.cancel()
        with pytest.raises(VariantError, match="took longer than it may"):
            run.result(WAIT_S)
    assert answers(opened)


def test_a_part_that_is_too_large_fails_its_run(opened: IsolatedSession) -> None:
    (worker,) = opened.keeper.workers
    with pytest.raises(VariantError, match="a part of its answer has"):
        opened.run_in_parts(inputs(part_bytes=100_000), Listener())
    assert answers(opened)
    assert opened.keeper.workers == [worker]


def test_an_error_of_the_engine_comes_with_its_words(opened: IsolatedSession) -> None:
    listener = Listener()
    with pytest.raises(VariantError, match="the engine failed"):
        opened.run_in_parts(inputs(max_tokens=3, fail_after=1), listener)
    assert listener.text == words(1)
    with pytest.raises(VariantError, match="nothing to say") as caught:
        opened.run(inputs("bad"))
    assert caught.value.reason.startswith("the request: ")


def test_a_stop_that_meets_the_end_of_its_run_is_not_taken_for_memory() -> None:
    """The worker asks for a slab just when the gateway says that nobody wants more."""
    gateway, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.memfd_create("slab")
    os.truncate(descriptor, 1 << 16)
    gateway.send(worker_child.ASK.pack(1, 0, worker_child.STOP))
    socket.send_fds(gateway, [b"1"], [descriptor])
    manifest = ModelManifest("m", "1", TEXT_INPUTS, TEXT_OUTPUTS, ())
    worker_child._Lane(cast("Any", None), manifest, worker)._answer(1, 0, [np.zeros(4, np.float32)])
    said = [worker_child.ANSWER.unpack(gateway.recv(65_536)[: worker_child.ANSWER.size])[1] for _ in range(2)]
    assert said == [worker_child.WANTS, worker_child.SHAPES]
    for each in (gateway, worker):
        each.close()
    os.close(descriptor)
