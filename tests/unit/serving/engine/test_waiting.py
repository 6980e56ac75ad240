"""Waiting requests: policies of full queues, priorities, delays, images in preparation, the worker's own priority."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import PriorityRefused
from gateway.common.domain.profile import WORKER_NICE, Budget
from gateway.serving.engine.priority import stepped_back
from gateway.serving.engine.settings import EngineSettings, QueueSettings
from gateway.serving.engine.threads import begin
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, request, values
from tests.simulators.images_made import image_manifest, image_request
from tests.simulators.sink import Recorder


async def held_rig(sink: Recorder, *, limits: EngineSettings | None = None, **queue: object) -> Rig:
    """Return a rig with a model that has a queue of its own, whose session is held by request 0; it joins rows."""
    limits = limits or limits_with(queue=(QueueSettings("m", **queue),), inline_limit_us=0)  # type: ignore[arg-type]
    rig = Rig(limits)
    rig.trials["a"] = measured(100.0, row_us=10.0)
    await rig.serve(manifest())
    rig.session.gate.clear()
    rig.engine.submit(request(0.0), sink, 0)
    await rig.begun()
    return rig


async def release(rig: Rig, sink: Recorder, count: int) -> None:
    rig.session.gate.set()
    await sink.until(count)
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "reason", "words"),
    [
        ("oldest", "oldest", "more requests than it may keep waiting; the oldest was dropped"),
        ("latest", "superseded", "a newer request of the same stream took this one's place"),
    ],
)
async def test_an_older_request_makes_room_and_hears_why(policy: str, reason: str, words: str) -> None:
    sink = Recorder()
    rig = await held_rig(sink, policy=policy, requests=1)
    rig.engine.submit(request(1.0), sink, 1)
    told = len(sink.told)
    rig.engine.submit(request(2.0), sink, 2)
    assert len(sink.told) == told, "nobody is told within another's submit"
    await sink.until(1)
    error = sink.errors[1]
    assert (error.fault, error.retry_after_s) == (Fault.OVERLOADED, 1.0)
    assert words in error.message
    await release(rig, sink, 3)
    assert values(sink.answers[2]) == [2.0]
    assert rig.session.runs == [[0.0], [2.0]]


@pytest.mark.asyncio
async def test_each_stream_keeps_its_newest_frame() -> None:
    sink = Recorder()
    rig = await held_rig(sink, policy="latest", requests=4)
    for token, stream in enumerate(["front", "back", "front", "front"], 1):
        rig.engine.submit(request(float(token), stream=stream), sink, token)
    counted = rig.engine.statistics("m")[0]
    await release(rig, sink, 5)
    assert rig.session.runs == [[0.0], [4.0, 2.0]]
    assert (counted.drops, counted.fail.count) == ({"superseded": 2}, 2)


@pytest.mark.asyncio
async def test_a_dropped_request_that_left_meanwhile_is_told_nothing() -> None:
    sink = Recorder()
    rig = await held_rig(sink, policy="oldest", requests=1)
    older = rig.engine.submit(request(1.0), sink, 1)
    rig.engine.submit(request(2.0), sink, 2)
    older.cancel()
    await release(rig, sink, 2)
    assert sink.ended == {0, 2}


@pytest.mark.asyncio
async def test_urgent_requests_go_first_and_callers_take_turns() -> None:
    sink = Recorder()
    limits = limits_with(queue=(QueueSettings("m", priority=5),), inline_limit_us=0, batch_rows=1)
    rig = await held_rig(sink, limits=limits)
    asked = [("eve", 0), ("eve", 0), ("ann", 0), ("bob", 1)]
    for token, (caller, priority) in enumerate(asked, 1):
        rig.engine.submit(request(float(token), caller=caller, priority=priority), sink, token)
    await release(rig, sink, 5)
    assert rig.session.runs == [[0.0], [4.0], [1.0], [3.0], [2.0]]


@pytest.mark.asyncio
async def test_requests_wait_for_each_other_until_the_rows_are_enough() -> None:
    limits = limits_with(queue=(QueueSettings("m", delay_us=1_000_000),), batch_rows=3)
    rig, sink = Rig(limits), Recorder()
    rig.trials["a"] = measured(10.0, row_us=1.0)
    await rig.serve(manifest())
    for token in (1.0, 2.0, 3.0):
        rig.engine.submit(request(token), sink, token)
        await asyncio.sleep(0)
    await sink.until(3)
    assert rig.session.runs == [[1.0, 2.0, 3.0]]
    assert threading.get_ident() not in rig.session.threads
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_request_that_waited_long_enough_goes_alone_and_closing_waits_for_nobody() -> None:
    rig, sink = Rig(EngineSettings(queue=(QueueSettings("m", delay_us=2_000),))), Recorder()
    rig.trials["a"] = measured(10.0, row_us=1.0)
    await rig.serve(manifest())
    rig.engine.submit(request(1.0), sink, 1)
    await sink.until(1)
    assert rig.registry.find("m").statistics.queue.ns >= 2_000_000
    await rig.repository.close()
    late = Rig(EngineSettings(queue=(QueueSettings("m", delay_us=1_000_000),), drain_s=60.0))
    late.trials["a"] = measured(10.0, row_us=1.0)
    await late.serve(manifest())
    late.engine.submit(request(2.0), sink, 2)
    await asyncio.wait_for(late.repository.close(), 0.9)
    assert values(sink.answers[2]) == [2.0]


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """Set it, and the decoder is free."""
    event = threading.Event()
    yield event
    event.set()


async def decoding_rig(free: threading.Event, **queue: object) -> Rig:
    """Return a rig with a model that takes images, whose only decoder is busy until the event is set."""
    rig = Rig(limits_with(queue=(QueueSettings("m", **queue),), image_threads=1))  # type: ignore[arg-type]
    await rig.serve(image_manifest())
    rig.repository._decoders.submit(free.wait)
    return rig


@pytest.mark.asyncio
@pytest.mark.parametrize(("policy", "dropped"), [("oldest", 1), ("latest", 1)])
async def test_frames_that_are_not_decoded_yet_make_room_too(free: threading.Event, policy: str, dropped: int) -> None:
    sink = Recorder()
    rig = await decoding_rig(free, policy=policy, requests=2)
    for token, stream in ((1, "front"), (2, "back"), (3, "front")):
        rig.engine.submit(image_request(1, stream=stream), sink, token)
    assert rig.registry.find("m").pending == 2
    await sink.until(1)
    assert sink.errors.keys() == {dropped}
    free.set()
    await sink.until(3)
    assert sink.answers.keys() == {2, 3}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_images_in_preparation_hold_places_and_free_them_when_their_caller_leaves(free: threading.Event) -> None:
    sink = Recorder()
    rig = await decoding_rig(free, requests=1)
    first = rig.engine.submit(image_request(1), sink, 1)
    with pytest.raises(RequestError) as error:
        rig.engine.submit(image_request(1), sink, 2)
    assert error.value.fault is Fault.OVERLOADED
    first.cancel()
    rig.engine.submit(image_request(1), sink, 3)
    free.set()
    await sink.until(1)
    assert sink.answers.keys() == {3}
    counted = rig.registry.find("m").statistics
    assert counted.drops == {"queue_full": 1, "cancelled": 1}
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_deadline_that_passes_while_an_image_is_decoded_is_told_in_time(free: threading.Event) -> None:
    sink = Recorder()
    rig = await decoding_rig(free)
    rig.engine.submit(image_request(1, deadline_ns=time.monotonic_ns() + 200_000_000), sink, 1)
    await sink.until(1)
    assert sink.errors[1].fault is Fault.EXPIRED
    free.set()
    await rig.repository.close()
    assert rig.session.runs == []


async def two_models(limits: EngineSettings) -> tuple[Rig, Recorder]:
    """Return a rig with models m and n on workers of a device with one thread; m's session is held."""
    rig, sink = Rig(limits, budget=Budget(threads=1)), Recorder()
    await rig.serve(manifest("m"))
    await rig.serve(manifest("m"), manifest("n"))
    rig.runtime.sessions[0].gate.clear()
    rig.engine.submit(request(1.0), sink, 1)
    await rig.begun(rig.runtime.sessions[0])
    rig.engine.submit(request(2.0, model="n"), sink, 2)
    return rig, sink


@pytest.mark.asyncio
async def test_models_share_the_profiles_threads() -> None:
    rig, sink = await two_models(limits_with(thread_wait_s=60.0))
    waiting = rig.repository._context.worker_settings.limiter._shares.waiting
    while not waiting:
        await asyncio.sleep(0)
    assert rig.runtime.sessions[1].runs == []
    rig.runtime.sessions[0].gate.set()
    await sink.until(2)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_model_whose_run_hangs_does_not_stop_the_others() -> None:
    rig, sink = await two_models(limits_with(thread_wait_s=0.01))
    await sink.until(1)
    assert sink.answers.keys() == {2}
    rig.runtime.sessions[0].gate.set()
    await sink.until(2)
    await rig.repository.close()


async def worker_nice(rig: Rig) -> int:
    """Return the nice value of the thread that runs the model."""
    sink, seen = Recorder(), []
    await rig.serve(manifest())
    session, run = rig.session, rig.session.run

    def spying(inputs: dict[str, np.ndarray]) -> object:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return run(inputs)

    session.run = spying  # type: ignore[assignment,method-assign]
    rig.engine.submit(request(), sink, 1)
    await sink.until(1)
    await rig.repository.close()
    return seen[0]


LEAST_PRIORITY = 19
"""The kernel's greatest nice value."""


@pytest.mark.asyncio
async def test_workers_step_back_as_far_as_the_profile_says() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert await worker_nice(Rig()) == min(own + WORKER_NICE, LEAST_PRIORITY)
    assert await worker_nice(Rig(budget=Budget(worker_nice=7))) == min(own + 7, LEAST_PRIORITY)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_threads_that_an_engine_starts_while_it_is_opened_step_back_too() -> None:
    def nice_of_a_child() -> int:
        with ThreadPoolExecutor(1) as child:
            return child.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()

    own = os.getpriority(os.PRIO_PROCESS, 0)
    opened = [begin("open", stepped_back, nice, nice_of_a_child).result() for nice in (0, 5)]
    assert opened == [own, min(own + 5, LEAST_PRIORITY)]
    with pytest.raises(ZeroDivisionError):
        begin("open", stepped_back, 1, lambda: 1 // 0).result()
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.asyncio
async def test_a_kernel_that_refuses_is_told_of_once_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    rig = Rig(budget=Budget(worker_nice=7))
    await worker_nice(rig)
    assert [event.reason for event in rig.told(PriorityRefused)] == ["[Errno 1] Operation not permitted"]  # type: ignore[union-attr]
