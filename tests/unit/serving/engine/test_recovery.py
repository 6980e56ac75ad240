"""Failover of a version in service: nothing is lost, nothing flaps, and the first candidate comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import (
    AcceleratorChanged,
    CandidateFailed,
    CandidateRecovered,
    FailedOver,
    ModelRefused,
    ModelUndecided,
)
from gateway.common.domain.inventory import Accelerator
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import Verdict
from gateway.serving.domain.infer import InferResponse
from gateway.serving.engine.settings import FailoverSettings, QueueSettings
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, release, request, values, variant
from tests.simulators.session import Gate

pytestmark = pytest.mark.asyncio
GONE = VariantError("the chip: [Errno 19] No such device")
SOON = FailoverSettings(retry_s=0.01)
CHIP = Accelerator("hailo-8", "chip", "/dev/hailo0", ())
LATER = FailoverSettings(retry_s=3600.0)


async def failing_rig(failover: FailoverSettings = LATER, p50_us: float = 1000.0, **limits: object) -> Rig:
    """Return a rig whose variant `a` serves, and `b`, which is slower and answers twice as much, has passed."""
    rig = Rig(limits_with(**limits), failover=failover)  # type: ignore[arg-type]
    rig.trials |= {"a": measured(p50_us), "b": measured(5 * p50_us)}
    rig.runtime.factors["b"] = 2.0
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "a"
    return rig


def ask(rig: Rig, value: float = 1.0, **changes: object) -> asyncio.Task[InferResponse]:
    return asyncio.create_task(rig.engine.infer(request(value, **changes)))  # type: ignore[arg-type]


def on_chip(version: str) -> ModelManifest:
    """Return a model with a variant `a` on the accelerator and `b` on the CPU."""
    chip = variant("a", runtime="onnx", accelerators=("hailo-8",))
    return replace(manifest(version=version), variants=(chip, variant("b")))


async def until(done: Callable[[], object]) -> None:
    """Wait for what happens on threads."""
    while not done():
        await asyncio.sleep(0.001)


async def opens(rig: Rig) -> None:
    """Wait until the second variant is being opened."""
    await asyncio.to_thread(rig.runtime.opening.acquire)
    await asyncio.to_thread(rig.runtime.opening.acquire)


@pytest.mark.parametrize("p50_us", [10.0, 1000.0])
@pytest.mark.parametrize("failure", [GONE, VariantError("status 26")])
async def test_no_request_is_lost_when_a_variant_fails(p50_us: float, failure: VariantError) -> None:
    rig = await failing_rig(p50_us=p50_us)
    rig.session.failure = failure
    answers = await asyncio.gather(*(ask(rig, float(number)) for number in range(1, 9)))
    assert [values(each) for each in answers] == [[2.0 * number] for number in range(1, 9)]
    (failed,), (over,) = rig.told(CandidateFailed), rig.told(FailedOver)
    assert (failed.variant, failed.reason) == ("a", failure.reason)  # type: ignore[union-attr]
    assert (over.variant, over.requests > 0) == ("b", True)  # type: ignore[union-attr]
    placed = rig.engine.placement("m")
    assert placed.variant == "b"
    assert f"a on cpu is out: {failure.reason}" in placed.degraded
    (line,) = rig.repository.index()
    assert (line.state, placed.degraded in line.reason) == ("READY", True)
    assert rig.engine.ready()
    await until(lambda: rig.runtime.sessions[0].closed)
    assert rig.engine.statistics("m")[0].fail.count == 0
    await rig.repository.close()


async def test_one_failure_of_a_run_is_repeated_on_the_same_variant() -> None:
    rig = await failing_rig()
    session = rig.session
    session.gate.clear()
    session.failure = VariantError("status 26")
    asked = ask(rig)
    await rig.begun()
    session.gate.let(2)  # the run fails, and so does its witness
    await rig.begun()
    await rig.begun()
    session.failure = None
    session.gate.set()
    assert values(await asked) == [1.0]
    assert not rig.told(CandidateFailed)
    await rig.repository.close()


@pytest.mark.parametrize("limits", [{"queue_requests": 2}, {"queue": (QueueSettings("m", requests=2),)}])
async def test_requests_wait_while_the_next_variant_opens_within_bounds_and_their_deadlines(
    limits: dict[str, object],
) -> None:
    rig = await failing_rig(**limits)  # type: ignore[arg-type]
    rig.runtime.gate.clear()
    rig.session.failure = GONE
    first = ask(rig)
    await opens(rig)
    late, full = ask(rig, 3.0, deadline_ns=time.monotonic_ns() + 20_000_000), ask(rig, 4.0)
    for asked, fault in ((full, Fault.OVERLOADED), (late, Fault.EXPIRED)):
        with pytest.raises(RequestError) as caught:
            await asked
        assert caught.value.fault is fault
    left = ask(rig, 5.0)
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    waiting = ask(rig, 2.0)
    await asyncio.sleep(0)
    rig.runtime.gate.set()
    assert (values(await first), values(await waiting)) == ([2.0], [4.0])
    await rig.repository.close()


async def test_a_hang_costs_the_run_that_hangs_only() -> None:
    rig = await failing_rig(run_limit_s=0.05, run_end_s=0.01, run_overruns=1)
    hung = rig.session
    hung.gate.clear()
    first = ask(rig)
    await rig.begun()
    waiting = ask(rig, 2.0)
    with pytest.raises(RequestError) as caught:
        await first
    assert caught.value.fault is Fault.EXPIRED
    assert values(await waiting) == [4.0]
    assert rig.engine.placement("m").variant == "b"
    hung.gate.set()
    await rig.repository.close()


@pytest.mark.parametrize("cancels", [True, False])
async def test_an_accelerator_has_no_longer_than_the_limit_of_a_run(cancels: bool) -> None:
    rig = Rig(limits_with(run_limit_s=0.05, run_end_s=3600.0), accelerators=(CHIP,), failover=LATER)
    rig.runtime.factors["b"] = 2.0
    await rig.serve(on_chip("1"))
    hung = rig.session
    hung.gate.clear()
    hung.cancels = cancels
    asked = ask(rig)
    await rig.begun()
    with pytest.raises(RequestError) as caught:
        await asked
    assert caught.value.fault is Fault.EXPIRED
    assert values(await ask(rig)) == [2.0]
    counted = rig.engine.statistics("m")[0]
    assert (counted.overlong_runs, counted.hung_runs, counted.failovers) == (1, int(not cancels), 1)
    hung.gate.set()
    await rig.repository.close()


async def test_the_first_variant_serves_again_once_its_trial_passes() -> None:
    rig = await failing_rig(SOON)
    rig.trials["a"] = Verdict(False, "no answer")
    rig.session.failure = GONE
    await ask(rig)
    await until(lambda: rig.tried.count("a") >= 3)
    assert rig.engine.placement("m").variant == "b"
    rig.trials["a"] = measured(1000.0)
    await until(lambda: rig.told(CandidateRecovered))
    placed = rig.engine.placement("m")
    assert (placed.variant, placed.degraded) == ("a", "")
    assert values(await ask(rig)) == [1.0]
    await until(lambda: rig.runtime.sessions[1].closed)
    await rig.repository.close()


async def test_measurements_in_the_background_do_not_bring_back_what_is_out() -> None:
    rig = await failing_rig()
    rig.session.failure = GONE
    await ask(rig)
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "b"
    await rig.serve(manifest(variants=("a", "b")), digest="d2")
    assert rig.engine.placement("m").variant == "a", "other files begin without a record"
    await rig.repository.close()


async def test_when_all_variants_fail_the_last_one_stays_says_so_and_recovers() -> None:
    rig = await failing_rig(SOON)
    rig.trials |= {"a": Verdict(False, "no answer"), "b": Verdict(False, "no answer")}
    rig.session.failure = GONE
    await ask(rig)
    rig.session.failure = VariantError("status 26")
    for _ in range(5):
        with pytest.raises(RequestError) as caught:
            await ask(rig)
        assert caught.value.fault is Fault.INTERNAL
    assert len(rig.told(FailedOver)) == 1
    assert [each.variant for each in rig.told(CandidateFailed)] == ["a", "b"]  # type: ignore[attr-defined]
    assert rig.engine.ready("m")
    degraded = rig.engine.placement("m").degraded
    assert "a on cpu is out" in degraded
    assert "b on cpu is out" in degraded
    rig.trials["b"] = measured(5000.0)
    await until(lambda: rig.told(CandidateRecovered))
    assert values(await ask(rig)) == [2.0]
    await rig.repository.close()


async def test_a_next_variant_that_does_not_open_leaves_the_first_one_in_service() -> None:
    rig = await failing_rig()
    rig.runtime.refuses["b"] = VariantError("status 26")
    rig.session.failure = GONE
    with pytest.raises(RequestError) as caught:
        await ask(rig)
    assert caught.value.fault is Fault.INTERNAL
    rig.session.failure = None
    assert values(await ask(rig)) == [1.0]
    await rig.repository.close()


async def test_failures_of_callers_and_of_memory_are_no_evidence() -> None:
    rig = await failing_rig()
    rig.session.failure = VariantError("bad_alloc")
    for _ in range(5):
        with pytest.raises(RequestError) as caught:
            await ask(rig)
        assert caught.value.fault is Fault.OVERLOADED
    rig.session.failure = None
    rig.session.rejected = 7.0
    for _ in range(5):
        with pytest.raises(RequestError) as caught:
            await ask(rig, 7.0)
        assert caught.value.fault is Fault.INVALID
    assert not rig.told(CandidateFailed)
    await rig.repository.close()


async def test_an_accelerator_that_is_gone_takes_every_version_on_it_along_staged_ones_too() -> None:
    rig = Rig(accelerators=(CHIP,), failover=SOON)
    rig.runtime.factors["b"] = 2.0
    await rig.serve(on_chip("1"))
    await rig.stage(on_chip("2"), digest="d2")
    rig.repository.route("m", {"1": 50, "2": 50}, lease_s=60.0)
    recovery = rig.repository.recovery
    recovery.accelerator_changed("hailo-8", "/dev/hailo0", is_there=False)
    answers = await asyncio.gather(*(ask(rig) for _ in range(4)))
    assert sorted((each.version, *values(each)) for each in answers) == [("1", 2.0)] * 2 + [("2", 2.0)] * 2
    assert len(rig.told(FailedOver)) == 2
    assert "a on hailo-8 is out: hailo-8 at /dev/hailo0 is gone" in rig.engine.placement("m", "1").degraded
    recovery.accelerator_changed("hailo-8", "/dev/hailo0", is_there=True)
    await until(lambda: len(rig.told(CandidateRecovered)) == 2)
    answers = await asyncio.gather(*(ask(rig) for _ in range(4)))
    assert sorted((each.version, *values(each)) for each in answers) == [("1", 1.0)] * 2 + [("2", 1.0)] * 2
    assert [each.state for each in rig.told(AcceleratorChanged)] == ["gone", "returned"]  # type: ignore[attr-defined]
    await rig.repository.close()


async def test_a_version_that_is_unloaded_during_a_failover_stays_unloaded() -> None:
    rig = await failing_rig()
    rig.runtime.gate.clear()
    rig.session.failure = GONE
    asked = ask(rig)
    await opens(rig)
    await rig.repository.unload("m")
    rig.runtime.gate.set()
    with pytest.raises(RequestError) as caught:
        await asked
    assert caught.value.fault is Fault.UNAVAILABLE
    await until(lambda: all(each.closed for each in rig.runtime.sessions))
    assert not rig.engine.ready("m")
    await rig.repository.close()


async def test_a_stop_during_a_failover_leaves_no_session_open() -> None:
    rig = await failing_rig()
    rig.runtime.gate.clear()
    rig.session.failure = GONE
    asked = ask(rig)
    await opens(rig)
    closing = asyncio.create_task(rig.repository.close())
    await asyncio.sleep(0)
    rig.runtime.gate.set()
    await closing
    with pytest.raises(RequestError):
        await asked
    await until(lambda: all(each.closed for each in rig.runtime.sessions))


async def test_a_load_by_hand_tries_what_is_out_again_and_a_refused_update_forgets_nothing() -> None:
    rig = await failing_rig()
    rig.session.failure = GONE
    await ask(rig)
    good, rig.trials = rig.trials, dict.fromkeys("ab", Verdict(False, "bad file"))
    rig.verdicts.verdicts.clear()
    await rig.serve(manifest(variants=("a", "b")), digest="d2")
    placed = rig.engine.placement("m")
    assert (placed.variant, "a on cpu is out" in placed.degraded) == ("b", True)
    rig.trials, rig.disk["m"] = good, (release(manifest(variants=("a", "b"))),)
    rig.verdicts.verdicts.clear()
    await rig.repository.load("m")
    await until(lambda: rig.told(CandidateRecovered))
    placed = rig.engine.placement("m")
    assert (placed.variant, placed.degraded) == ("a", "")
    await rig.repository.close()


async def test_an_untried_next_variant_serves_once_its_trial_passes() -> None:
    rig = Rig(accelerators=(CHIP,), failover=SOON)
    rig.runtime.factors["b"] = 2.0
    await rig.serve(on_chip("1"))
    unable = Verdict(False, "no memory for the child", transient=True)
    rig.trials |= {"a": unable, "b": unable}
    rig.session.failure = GONE
    with pytest.raises(RequestError):
        await ask(rig)
    assert rig.engine.placement("m").variant == "a"
    rig.trials["b"] = measured(1000.0)
    await until(lambda: rig.engine.placement("m").variant == "b")
    assert values(await ask(rig)) == [2.0]
    await rig.repository.close()


async def test_the_same_version_served_and_staged_leaves_an_accelerator_twice() -> None:
    rig = Rig(accelerators=(CHIP,), failover=LATER)
    rig.runtime.factors["b"] = 2.0
    await rig.serve(on_chip("1"))
    await rig.stage(on_chip("1"), digest="d2")
    rig.repository.recovery.accelerator_changed("hailo-8", "/dev/hailo0", is_there=False)
    await until(lambda: len(rig.told(FailedOver)) == 2)
    assert [target.placement.variant for target in rig.registry.targets()] == ["b", "b"]
    await rig.repository.close()


async def test_an_opening_that_hangs_leaves_the_version_to_the_next_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.serving.engine.recovery.OPENING_S", 0.05)
    rig = Rig(failover=LATER)
    rig.trials |= {"a": measured(1000.0), "b": measured(2000.0), "c": measured(5000.0)}
    rig.runtime.factors["c"] = 3.0
    await rig.serve(manifest(variants=("a", "b", "c")))
    await rig.repository.refine()
    gate = rig.runtime.gates["b"] = Gate()
    gate.clear()
    rig.session.failure = GONE
    assert values(await ask(rig)) == [3.0]
    assert "b on cpu is out: its opening took longer than" in rig.engine.placement("m").degraded
    gate.set()
    await rig.repository.close()


async def test_a_hang_leaves_out_the_other_variants_on_its_accelerator_while_one_is_left_elsewhere() -> None:
    rig = Rig(limits_with(run_limit_s=0.05, run_end_s=3600.0), accelerators=(CHIP,), failover=LATER)
    chips = [variant(name, runtime="onnx", accelerators=("hailo-8",)) for name in "ac"]
    rig.trials |= {"a": measured(1000.0), "b": measured(9000.0), "c": measured(2000.0)}
    await rig.serve(replace(manifest(), variants=(*chips, variant("b"))))
    await rig.repository.refine()
    hung = rig.session
    hung.gate.clear()
    with pytest.raises(RequestError):
        await ask(rig)
    await ask(rig)
    placed = rig.engine.placement("m")
    assert placed.variant == "b"
    assert "c on hailo-8 is out: a hangs on hailo-8" in placed.degraded
    hung.gate.set()
    await rig.repository.close()


async def test_unexpected_errors_end_neither_a_failover_nor_the_trials_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await failing_rig(SOON)
    good, rig.trials = rig.trials, {"a": Verdict(False, "no answer"), "b": Verdict(False, "no answer")}

    def broken(*_: object) -> None:
        raise OSError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(rig.repository.recovery, "_swap", broken)
        rig.session.failure = GONE
        with pytest.raises(RequestError):
            await ask(rig)
        assert "no other variant could be opened: OSError: disk I/O error" in str(rig.told(CandidateFailed)[-1])
        rig.trials = good
        tried = len(rig.tried)
        await until(lambda: len(rig.tried) >= tried + 2)  # the swap of one fails, and the other one is tried
    rig.runtime.sessions[0].failure = None
    await until(lambda: not rig.engine.placement("m").degraded)
    await rig.repository.close()


async def test_a_request_is_repeated_a_bounded_number_of_times() -> None:
    rig = await failing_rig(FailoverSettings(failures=2, window_s=1e-9, retry_s=3600.0))
    rig.session.failure = VariantError("status 26")
    with pytest.raises(RequestError) as caught:
        await ask(rig)
    assert caught.value.fault is Fault.INTERNAL
    assert rig.engine.statistics("m")[0].failed_runs == 3
    await rig.repository.close()


async def test_runs_that_fail_do_not_plan_each_time() -> None:
    rig = Rig(failover=LATER)
    await rig.serve(manifest())
    rig.session.failure = VariantError("status 26")
    read, verdict = list[str](), rig.verdicts.verdict

    def counted(key: str) -> Verdict | None:
        read.append(key)
        return verdict(key)

    rig.verdicts.verdict = counted  # type: ignore[method-assign]
    began_s, asked = time.monotonic(), 40
    for _ in range(asked):
        with pytest.raises(RequestError):
            await ask(rig)
    assert len(read) <= 4 + 2 * (time.monotonic() - began_s), "by time, not by failures"
    await rig.repository.close()


async def test_a_hang_counts_once_if_the_next_variant_does_not_open() -> None:
    rig = await failing_rig(run_limit_s=0.05, run_end_s=0.01, run_overruns=1)
    rig.runtime.refuses["b"] = VariantError("status 26")
    hung = rig.session
    hung.gate.clear()
    with pytest.raises(RequestError):
        await ask(rig)
    await until(lambda: rig.session is not hung)
    assert rig.registry.record("m", "1").hangs == 1
    hung.gate.set()
    await rig.repository.close()


async def test_what_is_loaded_while_an_accelerator_is_gone_says_so_and_goes_back() -> None:
    rig = Rig(accelerators=(CHIP,), failover=SOON)
    rig.runtime.factors["b"] = 2.0
    await rig.serve(on_chip("1"))
    recovery = rig.repository.recovery
    recovery.accelerator_changed("hailo-8", "/dev/hailo0", is_there=False)
    await until(lambda: rig.told(FailedOver))
    for model, digest in ((on_chip("1"), "d2"), (on_chip("2"), "d3")):  # other files, and a version never tried there
        await rig.serve(model, digest=digest)
        placed = rig.engine.placement("m")
        assert (placed.variant, "hailo-8 at /dev/hailo0 is gone" in placed.degraded) == ("b", True)
    recovery.accelerator_changed("hailo-8", "/dev/hailo0", is_there=True)
    await until(lambda: rig.told(CandidateRecovered))
    placed = rig.engine.placement("m")
    assert (placed.variant, placed.degraded) == ("a", "")
    await rig.repository.close()


@pytest.fixture
def exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one process at a time hold the accelerator of this file."""
    specs = {"onnx": replace(RUNTIMES["onnx"], exclusive=("hailo-8",))}
    monkeypatch.setattr("gateway.serving.engine.exclusive.RUNTIMES", specs)


async def out_on_an_exclusive_chip() -> Rig:
    """Return a rig whose only variant is out on an exclusive accelerator."""
    rig = Rig(accelerators=(CHIP,), failover=FailoverSettings(retry_s=0.2))
    chip = variant("a", runtime="onnx", accelerators=("hailo-8",))
    await rig.serve(replace(manifest(), variants=(chip,)))
    rig.session.failure = VariantError("status 26")
    for _ in range(3):
        with pytest.raises(RequestError):
            await ask(rig)
    assert "a on hailo-8 is out" in rig.engine.placement("m").degraded
    return rig


@pytest.mark.usefixtures("exclusive")
async def test_what_works_again_by_itself_on_an_exclusive_accelerator_stays_open() -> None:
    rig = await out_on_an_exclusive_chip()
    rig.session.failure = None
    assert values(await ask(rig)) == [1.0]
    rig.runtime.refuses["a"] = VariantError("failed to load the delegate")
    await until(lambda: rig.told(CandidateRecovered))
    assert rig.engine.placement("m").degraded == ""
    assert [each.closed for each in rig.runtime.sessions] == [False]
    await rig.repository.close()


@pytest.mark.usefixtures("exclusive")
async def test_what_does_not_open_again_on_an_exclusive_accelerator_is_tried_until_it_does() -> None:
    rig = await out_on_an_exclusive_chip()
    rig.runtime.refuses["a"] = VariantError("failed to load the delegate")
    await until(lambda: rig.told(ModelUndecided))
    assert not rig.told(ModelRefused)
    rig.runtime.refuses.clear()
    await rig.repository.synchronise([rig.registry.record("m", "1").retry.release])  # type: ignore[union-attr]
    assert values(await ask(rig)) == [1.0]
    assert rig.engine.placement("m").degraded == ""
    await rig.repository.close()
