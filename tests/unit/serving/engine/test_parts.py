"""Answers in parts: when they come, what the last one has, and that nobody computes what nobody wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import CandidateFailed, RunHung, RunOverlong
from gateway.serving.domain.infer import InferResponse
from gateway.serving.engine import parts
from gateway.serving.engine.settings import CacheSettings, QuotaSettings, ResidencySettings
from tests.simulators.engine_rig import Rig
from tests.simulators.sink import Recorder
from tests.simulators.writer import asking, inputs, words
from tests.simulators.writing import sessions, until, writing

pytestmark = pytest.mark.asyncio


class PartsRecorder(Recorder):
    """Sink that keeps the texts of parts, by token, too."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[Any, str] = {}

    def part(self, token: Any, response: InferResponse) -> None:
        assert token not in self.ended
        assert list(response.outputs) == ["text_output"]
        self.texts[token] = self.texts.get(token, "") + text_of(response)
        self._tell("part", token)

    async def until_part(self, token: Any, text: str) -> None:
        while self.texts.get(token) != text:
            self._changed.clear()
            await self._changed.wait()


def text_of(response: InferResponse) -> str:
    return str(response.outputs["text_output"].array[0].decode())


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    made = await writing()
    yield made
    for session in sessions(made):
        session.gate.set()
    await made.repository.close()


async def test_parts_come_as_they_are_written_and_the_answer_has_the_rest(rig: Rig) -> None:
    sink = PartsRecorder()
    (session,) = sessions(rig)
    rig.engine.submit(asking(max_tokens=3, in_parts=True), sink, 1)
    for count in (1, 2):
        session.gate.let(1)
        await sink.until_part(1, words(count))
        assert not sink.ended
    session.gate.let(1)
    await sink.until(1)
    assert sink.texts[1] == words(3)
    outputs = sink.answers[1].outputs
    assert text_of(sink.answers[1]) == ""
    assert outputs["finish_reason"].array[0] == b"length"
    assert outputs["num_output_tokens"].array[0] == 3
    assert [what for what, _ in sink.told] == ["part", "flush"] * 3 + ["answer", "flush"]
    (statistics,) = rig.engine.statistics("writer")
    assert statistics.parts == 3
    texts = statistics.texts
    assert (texts.given, texts.written, sum(texts.first.counts)) == (1, 3, 1)
    assert 0 < texts.writing_ns < statistics.success.ns - texts.first.ns


async def test_a_caller_without_parts_gets_one_whole_answer(rig: Rig) -> None:
    sessions(rig)[0].gate.set()
    answer = await rig.engine.infer(asking(max_tokens=3))
    assert text_of(answer) == words(3)
    (statistics,) = rig.engine.statistics("writer")
    assert (statistics.parts, statistics.texts.written, sum(statistics.texts.first.counts)) == (0, 3, 1)


@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_caller_that_leaves_ends_its_run_with_the_next_step(rig: Rig, in_parts: bool) -> None:
    sink = PartsRecorder()
    (session,) = sessions(rig)
    pending = rig.engine.submit(asking(max_tokens=10**9, in_parts=in_parts), sink, 1)
    session.gate.let(1)
    await until(lambda: session.steps == 1)
    pending.cancel()
    session.gate.set()
    answer = await rig.engine.infer(asking("next", max_tokens=1))
    assert text_of(answer) == words(1, "next")
    assert session.steps <= 3  # one after the request was cancelled, and that of the next one
    assert not sink.ended


@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_caller_that_leaves_pays_for_what_was_written(in_parts: bool) -> None:
    rig = await writing(quota=(QuotaSettings("*", tokens_per_minute=2.0),))
    (session,) = sessions(rig)
    pending = rig.engine.submit(asking(max_tokens=10**9, in_parts=in_parts), PartsRecorder(), 1)
    session.gate.let(2)
    await until(lambda: session.steps == 2)
    pending.cancel()
    session.gate.set()
    while True:
        try:
            await rig.engine.infer(asking("next", max_tokens=1))
        except RequestError as error:
            assert error.by_quota == "tokens"  # noqa: PT017  the run ends some time after the caller has left
            break
    await rig.repository.close()


async def test_a_deadline_that_passes_while_it_writes_ends_the_run(rig: Rig) -> None:
    sink = PartsRecorder()
    (session,) = sessions(rig)
    request = asking(max_tokens=10**9, in_parts=True)
    request.deadline_ns = time.monotonic_ns() + 300_000_000
    rig.engine.submit(request, sink, 1)
    session.gate.let(1)
    await sink.until(1)
    assert sink.errors[1].fault is Fault.EXPIRED
    session.gate.set()
    assert text_of(await rig.engine.infer(asking(max_tokens=1))) == words(1)
    assert session.steps <= 3


async def test_a_long_answer_is_no_hang_as_long_as_it_goes_on() -> None:
    rig, sink = await writing(run_limit_s=1.0, run_end_s=60.0), PartsRecorder()
    (session,) = sessions(rig)
    session.gate.set()
    began_s = time.monotonic()
    rig.engine.submit(asking(max_tokens=10**9, in_parts=True, pause_s=0.01), sink, 1)
    await until(lambda: time.monotonic() - began_s > 3.0)  # three times the limit
    assert not sink.ended
    assert not rig.told(RunOverlong)
    session.gate.clear()
    await sink.until(1)
    assert sink.errors[1].fault is Fault.EXPIRED
    assert "[limits] run_limit_s" in sink.errors[1].message
    assert len(rig.told(RunOverlong)) == 1
    session.gate.set()
    assert text_of(await rig.engine.infer(asking(max_tokens=1))) == words(1)
    await rig.repository.close()


async def test_a_run_that_takes_no_step_is_ended_by_its_session_then_left_behind() -> None:
    rig, sink = await writing(run_limit_s=0.1, run_end_s=0.05, retry_after_s=0.1), PartsRecorder()
    (session,) = sessions(rig)
    rig.engine.submit(asking(max_tokens=2, in_parts=True), sink, 1)
    await sink.until(1)
    await until(lambda: rig.told(RunHung))
    assert session.cancels == 1  # not before it had time to end by itself
    session.gate.set()
    await rig.repository.close()


async def test_answers_of_one_caller_do_not_wait_for_each_other() -> None:
    rig, sink = await writing(runs=2), PartsRecorder()
    first, second = sessions(rig)
    rig.engine.submit(asking("a", max_tokens=2, in_parts=True, caller="one"), sink, "a")
    await until(lambda: first.begun + second.begun == 1)
    rig.engine.submit(asking("b", max_tokens=2, in_parts=True, caller="one"), sink, "b")
    await until(lambda: first.begun + second.begun == 2)
    late = first if first.begun and not second.steps else second
    (second if late is first else first).gate.set()
    await sink.until(1)
    assert len(sink.ended) == 1
    late.gate.set()
    await sink.until(2)
    await rig.repository.close()


async def test_a_process_that_ends_for_another_run_costs_those_who_have_read_a_part_only(rig: Rig) -> None:
    (session,), sink = sessions(rig), PartsRecorder()
    session.gate.set()
    session.ends = 1
    assert text_of(await rig.engine.infer(asking(max_tokens=3))) == words(3)
    for token in (1, 2, 3, 4):  # more than `[failover] failures`
        session.ends = 1
        rig.engine.submit(asking(max_tokens=3, in_parts=True), sink, token)
        await sink.until(token)
        assert sink.errors[token].fault is Fault.UNAVAILABLE
    assert not rig.told(CandidateFailed)


async def test_a_failure_after_a_part_is_told_and_not_repeated(rig: Rig) -> None:
    sink = PartsRecorder()
    (session,) = sessions(rig)
    session.gate.set()
    rig.engine.submit(asking(max_tokens=5, fail_after=2, in_parts=True), sink, 1)
    await sink.until(1)
    assert sink.texts[1] == words(2)
    assert sink.errors[1].in_run
    assert session.begun == 1


@pytest.mark.parametrize("in_parts", [True, False])
async def test_a_fault_of_the_model_is_repeated_only_if_its_caller_has_no_part(in_parts: bool) -> None:
    rig, sink = await writing(variants=("a", "b"), witness=inputs(fail_after=0)), PartsRecorder()
    (session,) = sessions(rig)
    session.gate.set()
    rig.engine.submit(asking(max_tokens=5, fail_after=2, in_parts=in_parts), sink, 1)
    await sink.until(1)
    assert sink.errors[1].fault is Fault.INTERNAL
    assert sink.texts == ({1: words(2)} if in_parts else {})
    runs = session.steps // 2  # a witness takes none
    assert (runs == 1) is in_parts
    await rig.repository.close()


async def test_answers_in_parts_are_not_kept() -> None:
    settings = ResidencySettings(cache=(CacheSettings("writer", mib=1),))
    rig = await writing(residency=settings)
    sessions(rig)[0].gate.set()
    for _ in range(2):
        found = [text_of(each) async for each, _ in rig.engine.infer_in_parts(asking(max_tokens=2))]
        assert found == ["w0 ", "w1 ", ""]
    for _ in range(2):
        assert text_of(await rig.engine.infer(asking(max_tokens=2))) == words(2)
    assert sessions(rig)[0].steps == 6
    await rig.repository.close()


async def test_a_request_at_fault_is_its_callers(rig: Rig) -> None:
    with pytest.raises(RequestError, match="nothing to say") as caught:
        await rig.engine.infer(asking("bad"))
    assert caught.value.fault is Fault.INVALID
    assert rig.engine.statistics("writer")[0].failed_runs == 0


async def test_a_caller_takes_parts_one_by_one(rig: Rig) -> None:
    sessions(rig)[0].gate.set()
    found = [(text_of(each), is_last) async for each, is_last in rig.engine.infer_in_parts(asking(max_tokens=2))]
    assert found == [("w0 ", False), ("w1 ", False), ("", True)]


async def test_a_caller_that_takes_no_parts_is_refused_and_its_run_ends(rig: Rig) -> None:
    (session,) = sessions(rig)
    session.gate.set()
    size = parts.UNTAKEN_BYTES // 4
    async with aclosing(rig.engine.infer_in_parts(asking(max_tokens=10**9, part_bytes=size))) as taken:
        await anext(taken)
        await until(lambda: rig.engine.statistics("writer")[0].drops == {"cancelled": 1})
        got, refusal = 1, None
        while refusal is None:
            try:
                await anext(taken)
                got += 1
            except RequestError as error:
                refusal = error
    assert refusal.fault is Fault.OVERLOADED
    assert "has not taken" in refusal.message
    assert got <= 5
    await until(lambda: not rig.engine.statistics("writer")[0].busy)


async def test_a_run_waits_for_an_event_loop_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "UNDELIVERED_PARTS", 16)
    rig, sink = await writing(), PartsRecorder()
    (session,) = sessions(rig)
    session.gate.set()
    rig.engine.submit(asking(max_tokens=50, in_parts=True), sink, 1)
    deadline_s = time.monotonic() + 60.0
    while session.steps < 17:  # the event loop is busy here
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    time.sleep(0.05)
    assert session.steps == 17
    await sink.until(1)
    assert sink.texts[1] == words(50)
    await rig.repository.close()


async def test_closing_ends_what_is_written() -> None:
    rig, sink = await writing(drain_s=0.1), PartsRecorder()
    (session,) = sessions(rig)
    rig.engine.submit(asking(max_tokens=10**9, in_parts=True), sink, 1)
    session.gate.let(1)
    await sink.until_part(1, words(1))
    closing = asyncio.create_task(rig.repository.close())
    await asyncio.sleep(0)
    session.gate.set()
    await closing
    assert sink.ended == {1}
    assert session.closed == 1
