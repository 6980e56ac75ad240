"""A process that may start no thread: a call that needs one is refused, none waits for ever, later all is well."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import RunFailed
from gateway.serving.engine import comparing, images
from gateway.serving.engine.comparing import Comparing
from gateway.serving.engine.images import decode_inputs
from gateway.serving.engine.settings import EngineSettings, QueueSettings, QuotaSettings
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, release, request, values
from tests.simulators.images_made import image_manifest, image_request
from tests.simulators.sink import Recorder

WIDE = 50
"""Rows that are too many for the loop, at 10 µs each."""

NONE = "no thread for its runs: can't start new thread"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the beginning of threads' names: none of those begins any more. "-": all do."""
    start, names = threading.Thread.start, ["-"]

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith(names[-1]):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    yield names.append
    names.append("-")


async def tiny_rig(settings: EngineSettings | None = None) -> Rig:
    """Return a rig with a model whose requests of few rows run on the loop."""
    rig = Rig(settings or EngineSettings(), trials={"a": measured(10.0, 10.0), "b": measured(10.0, 10.0)})
    await rig.commit(manifest())
    return rig


@pytest.mark.asyncio
async def test_who_needs_the_worker_is_refused_until_it_can_begin(refused: Callable[[str], None]) -> None:
    rig, sink = await tiny_rig(), Recorder()
    refused("run ")
    for token in (1, 2):
        rig.engine.submit(request(rows=WIDE, deadline_ns=2**62), sink, token)
    await sink.until(2)
    assert {error.fault for error in sink.errors.values()} == {Fault.OVERLOADED}
    assert "can't start new thread" in sink.errors[1].message
    assert "can't start new thread" in str(rig.told(RunFailed))
    assert values(await rig.engine.infer(request(3.0))) == [3.0], "the loop needs none"
    refused("-")
    assert len(values(await rig.engine.infer(request(rows=WIDE)))) == WIDE
    assert rig.engine.quiet_ns(2**62) > 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_nothing_is_compared_until_the_worker_can_begin(refused: Callable[[str], None]) -> None:
    rig = await tiny_rig()
    await rig.stage(manifest(version="2", variants=("b",)))
    rig.repository.route("m", {"1": 100}, shadow="2", lease_s=60.0)
    shadow = rig.engine.statistics("m")[1].shadow
    refused("run ")
    await rig.engine.infer(request())
    while not shadow.not_compared:
        await asyncio.sleep(0)
    assert shadow.not_compared == {"busy": 1}
    refused("-")
    await rig.engine.infer(request())
    while not shadow.compared:
        await asyncio.sleep(0)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_model_that_needs_its_own_thread_is_refused_and_the_others_come_up(
    refused: Callable[[str], None],
) -> None:
    rig = Rig(trials={"b": measured(10.0)})
    refused("run ")
    await rig.repository.synchronise([release(manifest()), release(manifest("n", variants=("b",)))])
    lines = {line.name: (line.state, line.reason) for line in rig.repository.index()}
    assert lines["m"][0] == "UNAVAILABLE"
    assert lines["m"][1].startswith(f"undecided: {NONE}; allow the gateway more (TasksMax, ulimit -u); next attempt in")
    assert lines["n"] == ("READY", "")
    with pytest.raises(VariantError, match="can't start new thread") as error:
        await rig.stage(manifest(version="2"))
    assert error.value.transient
    assert rig.runtime.memory_bytes == 1_000_000
    refused("-")
    await rig.serve(manifest())
    assert rig.engine.ready("m")
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["unloaded", "swapped", "unstaged", "stopped"])
async def test_a_model_that_ran_on_the_loop_is_closed_there(refused: Callable[[str], None], change: str) -> None:
    rig = await tiny_rig()
    await rig.stage(manifest(version="2", variants=("b",)))
    first, staged = rig.runtime.sessions
    staged.close_failure = OSError("disk on fire")
    refused("run ")
    if change == "unloaded":
        await rig.repository.unload("m")
    elif change == "swapped":
        await rig.commit(manifest(version="2", variants=("b",)))
    elif change == "unstaged":
        await rig.repository.unstage("m", "2", 5.0)
    refused("-" if change == "unloaded" else "run ")
    await rig.repository.close()
    assert (first.closed, staged.closed) == (1, 1)
    assert first.threads == {threading.get_ident()}
    assert "close: OSError: disk on fire" in str(rig.told(RunFailed))


@pytest.mark.asyncio
async def test_who_waits_for_the_loop_when_it_closes_a_model_is_refused(refused: Callable[[str], None]) -> None:
    rig, sink = await tiny_rig(limits_with(max_batch_rows=1, turn_us=1)), Recorder()
    refused("run ")
    for token in range(50):
        rig.engine.submit(request(), sink, token)
    await rig.repository.unload("m")
    await sink.until(50)
    assert sink.errors
    assert {error.fault for error in sink.errors.values()} == {Fault.UNAVAILABLE}
    assert rig.session.closed == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_model_whose_images_are_decoded_too_long_is_closed_on_the_loop(
    refused: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr(images, "decode_inputs", lambda *given: free.wait() and decode_inputs(*given))
    rig, sink = Rig(EngineSettings(drain_s=0.1), trials={"a": measured(10.0, 10.0)}), Recorder()
    await rig.serve(image_manifest())
    rig.engine.submit(image_request(1), sink, 0)
    refused("run ")
    try:
        await rig.repository.unload("m")
    finally:
        free.set()
    assert sink.errors[0].fault is Fault.UNAVAILABLE
    assert rig.session.closed == 1
    refused("-")
    await rig.repository.close()
    assert rig.session.closed == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", ["reject", "oldest"])
async def test_an_image_that_no_thread_decodes_costs_nobody_a_place(
    refused: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    free = threading.Event()
    monkeypatch.setattr(images, "decode_inputs", lambda *given: free.wait() and decode_inputs(*given))
    queue, quota = QueueSettings("m", policy, requests=1), QuotaSettings("*", in_flight=1)
    rig, sink = Rig(limits_with(queue=(queue,), quota=(quota,), image_threads=2)), Recorder()
    await rig.serve(image_manifest())
    if policy == "oldest":
        rig.engine.submit(image_request(1, caller="ann"), sink, "first")
    refused("decode")
    for _ in range(2):
        with pytest.raises(RequestError, match="can't start new thread") as error:
            rig.engine.submit(image_request(1, caller="bob"), sink, "second")
        assert error.value.fault is Fault.OVERLOADED
    refused("-")
    free.set()
    if policy == "oldest":
        await sink.until(1)
    assert (await rig.engine.infer(image_request(1, caller="bob"))).outputs["y"].array.shape == (1, 1, 2, 2)
    assert not sink.errors
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_image_that_no_thread_decodes_is_not_decoded_later(
    refused: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(images, "decode_inputs", lambda *given: decoded.append(given) or decode_inputs(*given))
    rig, sink = Rig(), Recorder()
    await rig.serve(image_manifest())
    refused("decode")
    for token in range(9):
        with pytest.raises(RequestError, match="can't start new thread"):
            rig.engine.submit(image_request(1), sink, token)
    refused("-")
    await rig.engine.infer(image_request(1))
    assert len(decoded) == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_session_that_no_thread_opens_is_not_opened_later(refused: Callable[[str], None]) -> None:
    rig = Rig()
    refused("")
    for version in "12":
        with pytest.raises(VariantError, match="can't start new thread"):
            await rig.stage(manifest(version=version))
    refused("-")
    await rig.stage(manifest(version="3"))
    assert len(rig.runtime.opened) == 1
    await rig.repository.close()
    assert rig.runtime.memory_bytes == 0


@pytest.mark.asyncio
async def test_answers_that_no_thread_compares_are_not_compared_later(
    refused: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    monkeypatch.setattr(comparing, "compare", lambda _, others, count: rows.append(count))
    work, answers, told = Comparing(1), {"y": np.zeros(1, np.float32)}, asyncio.Event()
    refused("compare")
    assert not work.begin(answers, answers, 1, lambda _: told.set())
    refused("-")
    assert work.begin(answers, answers, 2, lambda _: told.set())
    await told.wait()
    assert rows == [2]
    work.close()
    assert not work.begin(answers, answers, 3, lambda _: told.set())
