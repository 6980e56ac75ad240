"""Shadow requests: what one version answered is asked of another and compared, at no caller's cost."""

from __future__ import annotations

import asyncio
import mmap
import threading
import time

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.profile import Budget
from gateway.common.domain.statistics import ServableStatistics, ShadowStatistics
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, request, values
from tests.simulators.images_made import image_manifest, image_request
from tests.simulators.session import SimulatedSession
from tests.simulators.sink import Recorder

OWN_LIMITS = limits_with(inline_limit_us=0)


def version(number: str, variant: str, **changes: object) -> ModelManifest:
    return manifest(version=number, variants=(variant,), **changes)


async def shadowed_rig(
    old: ModelManifest | None = None, new: ModelManifest | None = None, *, factor: float = 1.0, **changes: object
) -> tuple[Rig, SimulatedSession, SimulatedSession]:
    """Return a rig in which version 1 answers everything, version 2 is compared; and the session of each."""
    rig = Rig(**changes)  # type: ignore[arg-type]
    rig.runtime.factors["b"] = factor
    await rig.commit(old or version("1", "a"))
    await rig.stage(new or version("2", "b"))
    rig.repository.route("m", {"1": 100}, shadow="2", lease_s=60.0)
    return rig, *rig.runtime.sessions  # type: ignore[return-value]


def counted(rig: Rig) -> ServableStatistics:
    return next(one for one in rig.engine.statistics("m") if one.version == "2")


async def settled(rig: Rig, count: int) -> ShadowStatistics:
    """Return the counts once so many requests were compared or left out (in rows of one)."""
    shadow = counted(rig).shadow
    while shadow.compared + sum(shadow.not_compared.values()) < count:
        await asyncio.sleep(0.001)
    return shadow


async def left_out(rig: Rig, asked: InferRequest) -> dict[str, int]:
    await rig.engine.infer(asked)
    reasons = (await settled(rig, 1)).not_compared
    await rig.repository.close()
    return reasons


@pytest.mark.asyncio
@pytest.mark.parametrize(("factor", "disagreed"), [(1.001, 0), (2.0, 3)])
@pytest.mark.parametrize("p50_us", [10.0, 5000.0])
async def test_answers_are_compared_and_nothing_else_counts(factor: float, disagreed: int, p50_us: float) -> None:
    trials = {"a": measured(p50_us), "b": measured(p50_us)}
    rig, old, new = await shadowed_rig(factor=factor, trials=trials)
    answer = await rig.engine.infer(request(5.0, rows=3))
    assert (answer.version, values(answer)) == ("1", [5.0, 5.0, 5.0])
    shadow = await settled(rig, 3)
    assert (shadow.compared, shadow.disagreed, shadow.not_compared) == (3, disagreed, {})
    assert shadow.difference == pytest.approx(3 * 5.0 * (factor - 1.0), rel=1e-3)
    assert (old.runs, new.runs) == ([[5.0] * 3], [[5.0] * 3])
    two = counted(rig)
    assert (two.executions, two.success.count, two.fail.count, two.queue.count, two.lanes) == (0, 0, 0, 0, {})
    await rig.repository.close()


@pytest.mark.asyncio
async def test_one_comparison_follows_another() -> None:
    rig, *_ = await shadowed_rig(settings=limits_with(comparisons=1))
    for count in (1, 2, 3):
        await rig.engine.infer(request())
        assert (await settled(rig, count)).compared == count
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_shadow_never_runs_on_the_loop_and_gives_its_queue_back() -> None:
    rig, _, new = await shadowed_rig(trials={"a": measured(10.0), "b": measured(10.0)})
    for _ in range(3):
        await rig.engine.infer(request())
        await settled(rig, len(new.runs))
    await settled(rig, 3)
    assert threading.get_ident() not in new.threads
    servable = rig.registry.record("m", "2").staged.target
    while servable._worker.owns:
        await asyncio.sleep(0)
    assert not servable.busy
    assert (await rig.engine.infer(request(7.0))).version == "1"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_has_its_answer_before_the_shadow_hears_of_the_request() -> None:
    rig, _, new = await shadowed_rig(settings=OWN_LIMITS)
    new.gate.clear()
    sink = Recorder()
    rig.engine.submit(request(2.0), sink, "token")
    await sink.until(1)
    assert sink.told == [("answer", "token"), ("flush", None)]
    await rig.begun(new)
    new.gate.set()
    assert (await settled(rig, 1)).compared == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_run_for_one_connection_flushes_once_whoever_is_compared() -> None:
    rig, *_ = await shadowed_rig(trials={"a": measured(10.0, row_us=1.0)})
    sink = Recorder()
    for token, name in enumerate(["", "1", "", "1"]):
        rig.engine.submit(request(float(token), version=name), sink, token)
    await sink.until(4)
    assert [what for what, _ in sink.told] == ["answer"] * 4 + ["flush"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_shadow_that_hangs_disturbs_nobody_and_is_asked_once() -> None:
    rig, _, new = await shadowed_rig(settings=limits_with(drain_s=0.01, inline_limit_us=0))
    new.gate.clear()
    try:
        answers = [await rig.engine.infer(request(0.0))]
        await rig.begun(new)
        answers += [await rig.engine.infer(request(float(n))) for n in range(1, 10)]
        assert [values(answer) for answer in answers] == [[float(n)] for n in range(10)]
        assert (await settled(rig, 9)).not_compared == {"busy": 9}
        assert len(new.runs) == 1
        await rig.repository.unstage("m", "2", 0.01)
        assert (await rig.engine.infer(request())).version == "1"
        await rig.repository.close()
    finally:
        new.gate.set()


@pytest.mark.asyncio
async def test_a_shadow_that_raises_is_counted_against_its_version() -> None:
    rig, _, new = await shadowed_rig()
    new.failure = RuntimeError("no such kernel")
    assert values(await rig.engine.infer(request(3.0))) == [3.0]
    shadow = await settled(rig, 1)
    assert (shadow.compared, shadow.not_compared, counted(rig).failed_runs) == (0, {"failed": 1}, 1)
    assert "no such kernel" in str(rig.events)
    assert rig.engine.statistics("m", "1")[0].failed_runs == 0
    new.failure = None
    await rig.engine.infer(request(3.0))
    assert (await settled(rig, 2)).compared == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_failed_run_of_the_version_that_answers_is_counted_once_and_not_compared() -> None:
    rig, old, new = await shadowed_rig()
    old.failure = RuntimeError("device lost")
    with pytest.raises(RequestError):
        await rig.engine.infer(request())
    assert rig.engine.statistics("m", "1")[0].failed_runs == 1
    assert new.runs == []
    await rig.repository.close()


@pytest.mark.asyncio
async def test_callers_of_the_shadow_itself_go_first_and_are_not_compared() -> None:
    rig, old, new = await shadowed_rig(settings=OWN_LIMITS)
    rig.repository.route("m", {"1": 50, "2": 50}, shadow="2", lease_s=60.0)
    new.gate.clear()
    waiting = asyncio.ensure_future(rig.engine.infer(request(8.0, version="2")))
    await rig.begun(new)
    await rig.engine.infer(request(1.0, version="1"))
    first, second = (asyncio.ensure_future(rig.engine.infer(request(2.0))) for _ in range(2))
    assert (await first).version == "1"
    assert (await settled(rig, 1)).not_compared == {"busy": 1}
    new.gate.set()
    assert {(await waiting).version, (await second).version} == {"2"}
    assert old.runs == [[1.0], [2.0]]
    assert new.runs == [[8.0], [2.0]]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_who_comes_while_the_shadow_runs_is_answered_next() -> None:
    trials = {"a": measured(10.0), "b": measured(10.0)}
    rig, _, new = await shadowed_rig(trials=trials)
    rig.repository.route("m", {"1": 50, "2": 50}, shadow="2", lease_s=60.0)
    new.gate.clear()
    assert (await rig.engine.infer(request(1.0))).version == "1"
    await rig.begun(new)
    asked = asyncio.ensure_future(rig.engine.infer(request(2.0)))
    await asyncio.sleep(0)
    new.gate.set()
    assert (await asked).version == "2"
    assert new.runs == [[1.0], [2.0]]
    assert (await settled(rig, 1)).compared == 1
    await rig.repository.close()


def beside(rig: Rig, ended: list[object]) -> bool:
    """Send a shadow request to version 2, without a caller."""
    servable, asked = rig.registry.entry("m").loaded["2"], request(1.0)
    return servable.ask_beside(asked.inputs, None, ended.append)


@pytest.mark.asyncio
@pytest.mark.parametrize("p50_us", [10.0, 5000.0])
async def test_a_caller_who_comes_before_the_shadow_has_begun_goes_first(p50_us: float) -> None:
    rig, _, new = await shadowed_rig(trials={"b": measured(p50_us)})
    rig.repository.route("m", {"2": 100}, lease_s=60.0)
    servable, sink, ended = rig.registry.entry("m").loaded["2"], Recorder(), []
    with servable._worker._changed:  # its thread does nothing meanwhile
        assert beside(rig, ended)
        assert not beside(rig, ended), "one at a time"
        rig.engine.submit(request(2.0), sink, 1)
    await sink.until(1)
    while not ended:
        await asyncio.sleep(0)
    short = p50_us < 300  # such a queue goes back to the loop
    assert new.runs == ([[2.0]] if short else [[2.0], [1.0]])
    assert (ended == [None]) is short
    assert not servable.busy
    await rig.repository.close()
    shares = rig.repository._context.worker_settings.limiter._shares
    assert (shares.free, shares.waiting) == (shares.threads, [])


class HeldWorker(threading.Condition):
    """A worker's lock that its thread, having let go of it, does not leave before `goes_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go, self.goes_on = threading.Event(), threading.Event()

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)  # type: ignore[arg-type]
        if threading.current_thread() is not threading.main_thread():
            self.let_go.set()
            self.goes_on.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("held", [True, False])
async def test_a_shadow_that_waits_for_threads_gives_way_to_callers(held: bool) -> None:
    limits = limits_with(thread_wait_s=600.0)
    rig, _, new = await shadowed_rig(settings=limits, budget=Budget(threads=1), trials={"b": measured(10.0)})
    await rig.stage(manifest("n", variants=("n",)))
    rig.repository.route("n", {"1": 100}, lease_s=60.0)
    other, ended = rig.session, []
    other.gate.clear()
    busy = asyncio.ensure_future(rig.engine.infer(request(model="n")))
    await rig.begun(other)
    lock = rig.registry.record("m", "2").staged.target._worker._changed = HeldWorker()
    if not held:
        lock.goes_on.set()
    assert beside(rig, ended)
    await asyncio.to_thread(lock.let_go.wait)
    rig.repository.route("m", {"2": 100}, lease_s=60.0)
    asked = asyncio.ensure_future(rig.engine.infer(request(2.0)))
    await asyncio.sleep(0)
    lock.goes_on.set()
    assert values(await asked) == [2.0]
    assert (ended, new.runs) == ([None], [[2.0]])
    other.gate.set()
    await busy
    await rig.repository.close()


@pytest.mark.asyncio
async def test_nothing_is_compared_while_the_devices_threads_are_wanted() -> None:
    rig, old, new = await shadowed_rig(budget=Budget(threads=1))
    await rig.stage(manifest("n"))
    rig.repository.route("n", {"1": 100}, lease_s=60.0)
    other = rig.session
    other.gate.clear()
    busy = asyncio.ensure_future(rig.engine.infer(request(model="n")))
    await rig.begun(other)
    new_ran = len(new.runs)
    rig.repository._context.worker_settings.limiter.wait_s = 0.01
    await rig.engine.infer(request(version=""))
    assert (await settled(rig, 1)).not_compared == {"busy": 1}
    assert (len(old.runs), len(new.runs)) == (1, new_ran)
    other.gate.set()
    await busy
    await rig.repository.close()


@pytest.mark.asyncio
async def test_inputs_in_a_callers_memory_are_not_read_again() -> None:
    rig, *_ = await shadowed_rig()
    memory = mmap.mmap(-1, 4096)
    view = memoryview(memory)[16:]
    array = np.frombuffer(view[:8], np.float32).reshape(2, 1)
    assert await left_out(rig, InferRequest("m", {"x": Tensor(Datatype.FP32, array)})) == {"shared_memory": 1}


@pytest.mark.asyncio
async def test_inputs_in_a_message_are_compared() -> None:
    rig, *_ = await shadowed_rig()
    array = np.frombuffer(memoryview(bytes(8))[4:], np.float32).reshape(1, 1)
    await rig.engine.infer(InferRequest("m", {"x": Tensor(Datatype.FP32, array)}))
    assert (await settled(rig, 1)).compared == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_classes_as_text_are_not_compared() -> None:
    rig, *_ = await shadowed_rig()
    assert await left_out(rig, request(outputs=(RequestedOutput("y", 1),))) == {"classification": 1}


@pytest.mark.asyncio
async def test_a_version_with_other_inputs_or_outputs_is_not_compared() -> None:
    wide = TensorSpec("x", Datatype.FP32, (-1, 2))
    rig, *_ = await shadowed_rig(new=version("2", "b", inputs=(wide,)))
    assert await left_out(rig, request()) == {"refused": 1}
    other = TensorSpec("z", Datatype.FP32, (-1, 1))
    rig, *_ = await shadowed_rig(new=version("2", "b", outputs=(other,)))
    assert await left_out(rig, request()) == {"unlike": 1}


@pytest.mark.asyncio
async def test_images_are_decoded_once_and_only_where_both_would_do_the_same() -> None:
    old = image_manifest()
    rig, _, session = await shadowed_rig(old, version("2", "b", inputs=old.inputs, outputs=old.outputs))
    await rig.engine.infer(image_request(1))
    assert (await settled(rig, 1)).compared == 1
    assert len(session.runs) == 1
    await rig.repository.close()
    plain = version("2", "b", inputs=(TensorSpec("x", Datatype.FP32, (-1, 1, 2, 2)),), outputs=old.outputs)
    rig, *_ = await shadowed_rig(old, plain)
    assert await left_out(rig, image_request(1)) == {"encoded": 1}


@pytest.mark.asyncio
async def test_only_so_many_comparisons_are_pending() -> None:
    rig, *_ = await shadowed_rig(settings=limits_with(comparisons=1))
    rig.repository._comparing._pending = 1
    assert await left_out(rig, request()) == {"pending": 1}


@pytest.mark.asyncio
async def test_a_deadline_is_the_callers_and_not_the_shadows() -> None:
    rig, *_ = await shadowed_rig()
    await rig.engine.infer(request(deadline_ns=time.monotonic_ns() + 10**10))
    assert (await settled(rig, 1)).compared == 1
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_caller_who_leaves_is_not_compared() -> None:
    rig, old, new = await shadowed_rig(settings=OWN_LIMITS)
    old.gate.clear()
    asked = asyncio.ensure_future(rig.engine.infer(request()))
    await rig.begun(old)
    asked.cancel()
    await asyncio.wait({asked})
    old.gate.set()
    assert (await rig.engine.infer(request(2.0))).version == "1"
    assert (await settled(rig, 1)).compared == 1
    assert new.runs == [[2.0]]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_shadow_that_is_unloaded_ends_the_comparison_only() -> None:
    rig, *_ = await shadowed_rig()
    await rig.repository.unstage("m", "2", 1.0)
    assert (await rig.engine.infer(request())).version == "1"
    assert rig.registry.entry("m").route is None
    await rig.repository.close()
