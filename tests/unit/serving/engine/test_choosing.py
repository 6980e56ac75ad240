"""Path of releases to sessions: trials, kept verdicts, fallbacks, bare models, refinement while the device is idle."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import ModelRefused, TrialFinished
from gateway.common.domain.verdict import Joining, Parallel, Verdict
from gateway.serving.engine import trial_plan
from gateway.serving.engine.settings import EngineSettings, QueueSettings
from tests.simulators.engine_rig import PASSED, Rig, bare, limits_with, manifest, measured, refused, request


@pytest.mark.asyncio
async def test_the_first_variant_that_passes_serves_and_the_rest_stay_untried() -> None:
    rig = Rig(trials={"a": Verdict(False, "died by SIGSEGV"), "b": Verdict(False, "golden set"), "c": PASSED})
    await rig.serve(manifest(variants=("a", "b", "c", "d")))
    assert rig.tried == ["a", "b", "c"]
    assert rig.engine.placement("m").variant == "c"
    passed = [(event.variant, event.passed) for event in rig.told(TrialFinished)]  # type: ignore[union-attr]
    assert passed == [("a", False), ("b", False), ("c", True)]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_release_of_which_nothing_passes_says_why_for_each_variant() -> None:
    rig = Rig(trials={"a": Verdict(False, "died by SIGSEGV"), "b": Verdict(False, "golden set failed")})
    await rig.serve(manifest(variants=("a", "b")))
    with pytest.raises(RequestError) as error:
        await rig.engine.infer(request())
    assert error.value.fault is Fault.UNAVAILABLE
    assert "a: died by SIGSEGV" in error.value.message
    assert "b: golden set failed" in error.value.message
    await rig.repository.close()


@pytest.mark.asyncio
async def test_an_unchanged_release_is_not_opened_again_and_a_kept_verdict_opens_without_a_trial() -> None:
    rig = Rig()
    await rig.serve(manifest())
    await rig.serve(manifest())
    assert rig.runtime.opened == ["a"]
    await rig.serve(manifest(), digest="d2")
    assert rig.tried == ["a"]
    assert rig.runtime.opened == ["a", "a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_proven_variant_that_will_not_open_gives_way_to_the_next() -> None:
    rig = Rig()
    rig.runtime.refuses["a"] = RuntimeError("no device left")
    await rig.serve(manifest(variants=("a", "b")))
    assert rig.engine.placement("m").variant == "b"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_refining_tries_the_rest_and_swaps_to_the_best() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": measured(95.0), "c": measured(50.0)})
    await rig.serve(manifest(variants=("a", "b", "c")))
    assert rig.engine.placement("m").variant == "a"
    await rig.repository.refine()
    assert rig.tried == ["a", "b", "c"]
    assert rig.engine.placement("m").variant == "c"
    assert rig.engine.placement("m").reason == "best latency: 50 µs, b 95"
    assert [session.closed for session in rig.runtime.sessions] == [1, 0]
    await rig.repository.refine()
    assert rig.tried == ["a", "b", "c"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_refining_keeps_what_leads_by_less_than_a_tenth() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": measured(95.0)})
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.refine()
    assert rig.runtime.opened == ["a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_objective_decides() -> None:
    trials = {"a": measured(100.0, row_us=10.0), "b": measured(50.0, row_us=40.0)}
    chosen = {}
    for objective in ("latency", "throughput"):
        rig = Rig(objective=objective, trials=trials)
        await rig.serve(manifest(variants=("a", "b")))
        await rig.repository.refine()
        chosen[objective] = rig.engine.placement("m").variant
        await rig.repository.close()
    assert chosen == {"latency": "b", "throughput": "a"}


@pytest.mark.asyncio
async def test_nothing_is_planned_or_measured_while_a_request_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, planned, plan = Rig(idle_before_trial_s=0.02), [], trial_plan.TrialPlan.next
    monkeypatch.setattr(trial_plan.TrialPlan, "next", lambda self: planned.append(self) or plan(self))
    await rig.serve(manifest(variants=("a", "b")))
    rig.session.gate.clear()
    asked = asyncio.ensure_future(rig.engine.infer(request()))
    await rig.begun()
    refining = asyncio.ensure_future(rig.repository.refine())
    done, _ = await asyncio.wait({refining}, timeout=0.1)
    assert (done, rig.tried, planned) == (set(), ["a"], [])
    rig.session.gate.set()
    await asked
    await refining
    assert rig.tried == ["a", "b"]
    await rig.repository.close()


def busy(p50_us: float, quiet_us: float, row_us: float = 0.0) -> Verdict:
    """Return a verdict whose figures were taken on a busy machine."""
    verdict = measured(p50_us, row_us)
    return replace(verdict, measured=replace(verdict.measured, quiet_us=quiet_us, disturbed="load 9"))  # type: ignore[type-var]


@pytest.fixture
def _repeats_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_plan, "REPEAT_S", 0.001)


@pytest.mark.asyncio
async def test_what_was_measured_on_a_busy_machine_is_measured_again_and_used_in_place() -> None:
    rig = Rig(trials={"a": busy(36_000.0, 36_000.0, 35_000.0)})
    await rig.serve(manifest())
    await rig.engine.infer(request())
    assert threading.get_ident() not in rig.session.threads
    rig.trials["a"] = measured(60.0, 10.0)
    await rig.repository.refine()
    assert (rig.tried, rig.runtime.opened) == (["a", "a"], ["a"])
    (kept,) = rig.verdicts.verdicts.values()
    assert kept.measured
    assert (kept.measured.p50_us, kept.measured.remark[:17]) == (60.0, "measured again at")
    assert rig.engine.placement("m").reason == "the only one that passed here, 60 µs"
    rig.session.threads.clear()
    while threading.get_ident() not in rig.session.threads:
        await asyncio.gather(*[rig.engine.infer(request(float(value))) for value in range(4)])
    assert [0.0, 1.0, 2.0, 3.0] in rig.session.runs, "joined, and on the event loop"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_session_with_other_threads_is_opened_again() -> None:
    rig = Rig(trials={"a": busy(36_000.0, 36_000.0)})
    await rig.serve(manifest())
    rig.trials["a"] = replace(measured(9_000.0), threads=2)
    await rig.repository.refine()
    assert rig.runtime.opened == ["a", "a"]
    assert [session.closed for session in rig.runtime.sessions] == [1, 0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_verdict_from_before_runs_at_a_time_serves_until_it_is_measured_again() -> None:
    rig = Rig(trials={"a": measured(9_000.0)}, runs=2)
    await rig.serve(manifest())
    assert rig.engine.placement("m").runs == 1
    again = (Parallel(1, 1, 9_000.0, 9_000.0), Parallel(1, 2, 9_000.0, 4_500.0))
    rig.trials["a"] = replace(measured(9_000.0), runs=2, parallel=again)
    await rig.repository.refine()
    assert (rig.tried, rig.runtime.opened) == (["a", "a"], ["a", "a"])
    assert rig.engine.placement("m").runs == 2
    await rig.repository.refine()
    assert rig.tried == ["a", "a"], "it is settled"
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("again", [busy(40_000.0, 8000.0), Verdict(False, "took longer than 60 s")])
@pytest.mark.usefixtures("_repeats_at_once")
async def test_a_machine_that_stays_busy_changes_nothing_and_is_asked_a_few_times(again: Verdict) -> None:
    rig = Rig(trials={"a": busy(36_000.0, 7400.0)})
    await rig.serve(manifest())
    rig.trials["a"] = again
    await rig.repository.refine()
    assert rig.tried == ["a"] * (1 + trial_plan.REPEATS)
    (kept,) = rig.verdicts.verdicts.values()
    assert kept.passed
    assert kept.measured
    assert (kept.measured.run_us, kept.measured.disturbed, kept.measured.again_s > 0) == (7400.0, "load 9", True)
    assert rig.runtime.opened == ["a"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_new_releases_are_tried_while_a_repetition_waits() -> None:
    rig = Rig(trials={"a": busy(36_000.0, 7400.0)})
    await rig.serve(manifest())
    refining = asyncio.ensure_future(rig.repository.refine())
    while rig.tried != ["a", "a"]:
        await asyncio.sleep(0.001)
    await rig.serve(manifest(variants=("a", "b")), digest="d2")
    while "b" not in rig.tried:
        await asyncio.sleep(0.001)
    refining.cancel()
    await asyncio.wait({refining})
    await rig.repository.close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("_repeats_at_once")
async def test_load_does_not_change_the_choice() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": busy(36_000.0, 50.0)})
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "b"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_refining_ends_even_where_no_verdict_can_be_kept() -> None:
    rig = Rig()
    rig.verdicts.broken = True
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.refine()
    assert rig.tried == ["a", "a", "b"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_better_variant_that_will_not_open_stays_out() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": measured(10.0)})
    await rig.serve(manifest(variants=("a", "b")))
    rig.runtime.refuses["b"] = RuntimeError("no device left")
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "a"
    assert "b stays out" in str(rig.told(ModelRefused))
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_model_unloaded_while_it_is_measured_stays_unloaded() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": measured(10.0)})
    await rig.serve(manifest(variants=("a", "b")))
    rig.trial_gate.clear()
    refining = asyncio.ensure_future(rig.repository.refine())
    while "b" not in rig.tried:
        await asyncio.sleep(0)
    await rig.repository.unload("m")
    rig.trial_gate.set()
    await refining
    assert not rig.engine.ready("m")
    assert rig.runtime.memory_bytes == 0
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_bare_model_is_completed_by_its_runtime_once() -> None:
    rig = Rig()
    release = bare("m", "model.onnx")
    await rig.repository.synchronise([release])
    assert rig.engine.describe("m").inputs == rig.signature.inputs
    assert rig.engine.placement("m").runtime == "onnx"
    await rig.repository.synchronise([])
    await rig.repository.synchronise([release])
    assert rig.inspected == ["onnx:model.onnx"]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_bare_file_its_runtime_cannot_read_is_refused() -> None:
    rig = Rig()
    await rig.repository.synchronise([bare("m", "model.tflite")])
    assert rig.repository.index()[0].reason == "model.tflite is no model"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_the_largest_batch_is_announced_only_for_models_with_rows() -> None:
    rig = Rig(EngineSettings(max_batch_rows=7))
    fixed = manifest("fixed")
    single = tuple(type(s)(s.name, s.datatype, (1, 1)) for s in fixed.inputs + fixed.outputs)
    await rig.serve(manifest(), manifest("fixed", inputs=single[:1], outputs=single[1:]))
    assert [rig.engine.placement(name).max_batch_rows for name in ("m", "fixed")] == [7, 0]
    await rig.repository.close()


@pytest.mark.asyncio
async def test_refinement_does_not_hide_that_a_newer_file_is_refused() -> None:
    rig = Rig(trials={"a": measured(100.0), "b": measured(50.0)})
    await rig.serve(manifest(variants=("a", "b")))
    await rig.repository.synchronise([refused("m")])
    await rig.repository.refine()
    assert rig.engine.placement("m").variant == "b"
    assert "a newer file is refused" in rig.repository.index()[0].reason
    await rig.repository.close()


EXERCISED = replace(PASSED, level="exercised")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("require", "released", "serves"),
    [("", "", False), ("", "exercised", True), ("exercised", "", True), ("proven", "exercised", False)],
)
async def test_what_is_signed_must_be_proven_unless_its_release_or_the_device_says_otherwise(
    require: str, released: str, serves: bool
) -> None:
    rig = Rig(trials={"a": EXERCISED}, require=require)
    await rig.commit(manifest(require=released))
    if serves:
        assert rig.engine.placement("m").level == "exercised"
    else:
        (refusal,) = rig.told(ModelRefused)
        assert "is exercised, but must be proven here" in refusal.reason  # type: ignore[union-attr]
        assert "add a golden set" in refusal.reason  # type: ignore[union-attr]
    await rig.serve(manifest(require=released))
    assert rig.engine.ready("m") == (require != "proven"), "by hand"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_file_whose_rows_depend_on_each_other_has_no_batch_dimension_and_is_never_joined() -> None:
    rig = Rig(limits_with(inline_limit_us=0))
    dependent = Joining(reason="joined answers differ by up to 3")
    rig.trials["onnx"] = replace(measured(100.0, 1.0), level="exercised", joining=dependent)
    await rig.repository.synchronise([bare("m", "model.onnx")])
    assert rig.engine.placement("m").max_batch_rows == 0
    assert rig.engine.placement("m").joining == "joined answers differ by up to 3"
    rig.session.gate.clear()
    tasks = [asyncio.ensure_future(rig.engine.infer(request(float(value)))) for value in range(4)]
    await rig.begun()
    rig.session.gate.set()
    await asyncio.gather(*tasks)
    assert rig.session.runs == [[0.0], [1.0], [2.0], [3.0]]
    assert (await rig.engine.infer(request(rows=0))).outputs["y"].array.shape == (0, 1), "the model's affair"
    await rig.repository.close()


@pytest.mark.asyncio
async def test_joining_is_switched_off_by_setting() -> None:
    rig = Rig(limits_with(queue=(QueueSettings("m", join=False),), inline_limit_us=0))
    rig.trials["a"] = measured(100.0, 1.0)
    await rig.serve(manifest())
    rig.session.gate.clear()
    tasks = [asyncio.ensure_future(rig.engine.infer(request(float(value)))) for value in range(3)]
    await rig.begun()
    rig.session.gate.set()
    await asyncio.gather(*tasks)
    assert rig.session.runs == [[0.0], [1.0], [2.0]]
    await rig.repository.close()
