"""Pipelines in trouble: one request fails, with the names of pipeline and step, or is answered by a fallback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype, Tensors
from gateway.serving.domain.infer import RequestedOutput
from gateway.serving.engine.images import open_image, views_as_input
from gateway.serving.engine.settings import QueueSettings, QuotaSettings
from gateway.serving.engine.threads import Threads
from gateway.serving.pipelines import outputs, passage, plan
from gateway.serving.pipelines.slices import Slices, begin_slices
from tests.simulators.images_made import encoded
from tests.simulators.pipelines import PIXELS, PipelineRig, asked, detector, spec

pytestmark = pytest.mark.asyncio
X, Y = (spec("x"),), (spec("y"),)
TWO = """
[input]
x = "FP32[]"
[[step]]
name = "one"
model = "first"
of = "x"
[[step]]
name = "two"
model = "second"
of = "one.y"
{more}
[output]
y = "two.y"
"""


def add_one(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] + 1}


def double(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] * 2}


async def two_steps(more: str = "", **changes: object) -> PipelineRig:
    """Return a rig with a pipeline of two models, of which `slow` ones are on workers: (x + 1) · 2."""
    rig = PipelineRig(**changes)  # type: ignore[arg-type]
    rig.model("first", add_one, X, Y)
    rig.model("second", double, X, Y)
    rig.pipeline(TWO.format(more=more))
    await rig.begin()
    return rig


async def y(rig: PipelineRig, value: float = 3.0, **changes: object) -> float:
    """Return the answer to a request of one row."""
    answer = await rig.ask({"x": np.array([value])}, "y", **changes)  # type: ignore[arg-type]
    return float(answer["y"][0])


async def refusal(rig: PipelineRig, value: float = 3.0, **changes: object) -> RequestError:
    """Return the error of a request."""
    with pytest.raises(RequestError) as caught:
        await y(rig, value, **changes)
    return caught.value


def assert_idle(rig: PipelineRig) -> None:
    """Check that nothing of a request is left."""
    assert not rig.target().busy
    assert all(not session.pending for session in rig.registry.targets() if hasattr(session, "pending"))


# ---- models that are away --------------------------------------------------------------------------------------------
async def test_a_model_that_is_gone_is_named_with_its_step() -> None:
    rig = await two_steps()
    second = rig.manifests.pop("second")
    await rig.begin()
    error = await refusal(rig)
    assert error.fault is Fault.UNAVAILABLE
    assert "pipeline 'chain'" in error.message
    assert "step 'two'" in error.message
    assert "'second'" in error.message
    assert rig.target().statistics.fail.count == 1
    rig.manifests["second"] = second
    await rig.begin()
    assert await y(rig) == 8


async def test_a_pipeline_waits_for_a_model_that_is_not_there_yet() -> None:
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.pipeline(TWO.format(more=""))
    await rig.begin()
    assert "second" in rig.reason()
    assert (await refusal(rig)).is_loading
    rig.model("second", double, X, Y)
    await rig.begin()
    assert await y(rig) == 8


async def test_the_time_of_failed_runs_is_counted() -> None:
    rig = await two_steps(slow=("second",))
    session = rig.session_of("second")
    session.failure, before = RuntimeError("broken"), rig.target().steps[1].ns
    session.gate.clear()
    asked = asyncio.create_task(refusal(rig))
    await asyncio.sleep(0.05)
    session.gate.set()
    await asked
    statistics = rig.target().steps[1]
    assert (statistics.runs, statistics.failures, before) == (1, 1, 0)
    assert 0.04 < statistics.ns / 1e9 < 5


async def test_a_fallback_does_not_help_at_the_start() -> None:
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.pipeline(TWO.format(more="fallback = { y = -1 }"))
    await rig.begin()
    assert "Request for unknown model: 'second' is not found; add or mend that model; next attempt" in rig.reason()


async def test_a_step_with_a_fallback_needs_no_model() -> None:
    rig = await two_steps(more="fallback = { y = -1 }")
    rig.manifests.pop("second")
    await rig.begin()
    assert await y(rig) == -1


@pytest.mark.parametrize("of", ["page", "turn(page, 0)"])
async def test_no_fallback_answers_bad_input(of: str) -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [])
    step = f'[[step]]\nname = "cars"\nmodel = "find"\nof = "{of}"\nfallback = {{}}\n'
    rig.pipeline(f'[input]\npage = "image"\n{step}[output]\nn = "count(cars)"\n')
    await rig.begin()
    with pytest.raises(RequestError) as refused:
        await rig.ask({"page": np.array([b"no image"], object)})
    assert refused.value.fault is Fault.INVALID
    assert rig.target().steps[-1].fallbacks == 0


async def test_a_fallback_answers_for_a_pipeline_whose_model_fails_in_its_run() -> None:
    rig = await two_steps()
    step = '[[step]]\nname = "a"\nmodel = "chain"\nof = "x"\nfallback = { y = 5 }\n'
    rig.pipeline(f'[input]\nx = "FP32[]"\n{step}[output]\ny = "a.y"\n', "outer")
    await rig.begin()
    rig.session_of("second").failure = RuntimeError("broken")
    assert (await rig.ask({"x": np.array([1.0, 2.0])}, "y", name="outer"))["y"].tolist() == [5, 5]


async def test_a_refused_model_refuses_the_pipeline_with_words() -> None:
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.model("second", double, (spec("x", 4),), (spec("y", 4),))
    rig.pipeline(TWO.format(more=""))
    await rig.begin()
    assert "pipeline.toml:12" in rig.reason()
    assert "'two'" in rig.reason()
    assert "[4]" in rig.reason()


async def test_a_model_of_the_same_signature_takes_over_in_the_middle() -> None:
    rig = await two_steps(slow=("first",))
    rig.session_of("first").gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(rig.session_of("first"))
    rig.model("second", lambda inputs: {"y": inputs["x"] * 100}, X, Y, digest="d2")
    await rig.begin()
    rig.session_of("first").gate.set()
    assert await request == 400


async def test_a_model_of_another_signature_in_the_middle_fails_one_request() -> None:
    rig = await two_steps(slow=("first",))
    rig.session_of("first").gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(rig.session_of("first"))
    rig.model("second", double, (spec("x", 4),), (spec("y", 4),), digest="d2")
    begun = asyncio.create_task(rig.begin())
    while rig.registry.find("second", "").manifest.inputs == X:
        await asyncio.sleep(0)
    rig.session_of("first").gate.set()
    with pytest.raises(RequestError, match="pipeline 'chain', step 'two': model 'second' was replaced") as caught:
        await request
    assert caught.value.fault is Fault.UNAVAILABLE
    await begun
    assert "a model was replaced" in (await refusal(rig)).message
    rig.model("second", double, X, Y, digest="d3")
    await rig.begin()
    assert await y(rig) == 8


async def test_outputs_follow_a_model_of_another_signature() -> None:
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.model("second", double, X, (spec("y"),))
    rig.pipeline(TWO.format(more=""))
    await rig.begin()
    rig.model("second", lambda of: {"y": np.repeat(of["x"][:, None], 3, axis=1)}, X, (spec("y", 3),), digest="d2")
    await rig.begin()
    assert (await rig.ask({"x": np.array([1.0])}, "y"))["y"].tolist() == [[2, 2, 2]]
    assert rig.target().manifest.output("y") == spec("y", 3)


async def test_many_swaps_under_load_fail_no_request() -> None:
    rig = await two_steps()
    stop, counted = asyncio.Event(), [0]

    async def call() -> None:
        while not stop.is_set():
            assert await y(rig, 1.0) == 4
            counted[0] += 1

    callers = [asyncio.create_task(call()) for _ in range(8)]
    for swap in range(50):
        rig.model("second", double, X, Y, digest=f"s{swap}")
        await rig.begin()
    stop.set()
    await asyncio.gather(*callers)
    assert counted[0] > 50
    assert rig.target().statistics.fail.count == 0


# ---- slow and hung models --------------------------------------------------------------------------------------------
async def test_a_hung_run_ends_at_its_limit() -> None:
    rig = await two_steps(slow=("second",), run_limit_s=0.1, run_end_s=0.05)
    rig.session_of("second").gate.clear()
    hung = rig.session_of("second")
    error = await refusal(rig)
    assert error.fault is Fault.EXPIRED
    assert error.message.startswith("pipeline 'chain', step 'two': model 'second' took longer")
    hung.gate.set()


async def test_a_late_step_uses_its_fallback() -> None:
    rig = await two_steps(more="deadline_s = 0.05\nfallback = { y = 7 }", slow=("second",))
    rig.session_of("second").gate.clear()
    assert await y(rig) == 7
    rig.session_of("second").gate.set()
    assert rig.target().steps[-1].fallbacks == 1
    rig.target()._under_way._passages.clear()


async def test_a_late_step_without_a_fallback_fails_with_its_name() -> None:
    rig = await two_steps(more="deadline_s = 0.05", slow=("second",))
    rig.session_of("second").gate.clear()
    error = await refusal(rig)
    rig.session_of("second").gate.set()
    assert error.fault is Fault.EXPIRED
    assert "step 'two'" in error.message
    assert rig.target().statistics.drops == {"expired": 1}


async def test_what_is_late_in_step_one_never_reaches_step_two() -> None:
    rig = await two_steps(slow=("first",), more="fallback = { y = 7 }")
    rig.session_of("first").gate.clear()
    error = await refusal(rig, deadline_ns=time.monotonic_ns() + 1_000_000_000)
    rig.session_of("first").gate.set()
    assert error.fault is Fault.EXPIRED
    assert "step 'one'" in error.message
    assert rig.session_of("second").rows_run == []


async def test_a_deadline_of_a_millisecond_is_an_answer_or_one_refusal() -> None:
    rig = await two_steps(slow=("first", "second"))
    for _ in range(30):
        asking = y(rig, deadline_ns=time.monotonic_ns() + 1_000_000)
        (found,) = await asyncio.gather(asking, return_exceptions=True)
        assert found == 8 or (isinstance(found, RequestError) and found.fault is Fault.EXPIRED)
    assert (await refusal(rig, deadline_ns=time.monotonic_ns() - 1)).fault is Fault.EXPIRED
    assert await y(rig) == 8


@pytest.mark.parametrize("step", ["first", "second"])
async def test_a_cancelled_request_leaves_nothing(step: str) -> None:
    rig = await two_steps(slow=("first", "second"))
    session = rig.session_of(step)
    session.gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(session)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert not rig.target().busy
    session.gate.set()
    assert await y(rig) == 8
    counted = rig.target().statistics
    assert (counted.success.count, counted.fail.count, counted.drops) == (1, 0, {"cancelled": 1})


async def test_a_request_cancelled_before_its_first_step_runs_none() -> None:
    rig = await two_steps()

    class Sink:
        def answer(self, *_: object) -> None:
            raise AssertionError

        refuse = answer

        def flush(self) -> None:
            raise AssertionError

    pending = rig.engine.submit(asked({"x": np.array([1.0])}), Sink(), 0)
    pending.cancel()
    assert await y(rig) == 8
    assert rig.session_of("first").rows_run == [1]


@pytest.mark.parametrize("failing", ["first", "second"])
async def test_a_failing_run_is_one_failed_request(failing: str) -> None:
    rig = await two_steps()
    rig.session_of(failing).failure = RuntimeError("broken")
    error = await refusal(rig)
    assert error.fault in {Fault.INTERNAL, Fault.INVALID}  # the engine may blame the values
    assert f"step '{'one' if failing == 'first' else 'two'}'" in error.message
    rig.session_of(failing).failure = None
    assert await y(rig) == 8


# ---- unloading -------------------------------------------------------------------------------------------------------
async def test_requests_under_way_finish_when_the_pipeline_is_unloaded() -> None:
    rig = await two_steps(slow=("second",))
    session = rig.session_of("second")
    session.gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(session)
    unloading = asyncio.create_task(rig.repository.unload("chain"))
    while rig.repository.index()[0].state == "READY":
        await asyncio.sleep(0)
    assert (await refusal(rig)).fault is Fault.UNAVAILABLE
    session.gate.set()
    assert await request == 8
    await unloading
    assert (await refusal(rig)).fault is Fault.UNAVAILABLE
    await rig.repository.unload("second")


async def test_a_model_of_a_pipeline_is_not_unloaded_without_a_word() -> None:
    rig = await two_steps()
    with pytest.raises(RequestError, match="is run by the pipeline chain; unload that first"):
        await rig.repository.unload("second")
    assert await y(rig) == 8


async def test_everything_that_vanishes_at_once_finishes_first() -> None:
    rig = await two_steps(slow=("first", "second"))
    session = rig.session_of("first")
    session.gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(session)
    gone = asyncio.create_task(rig.repository.synchronise([]))
    await asyncio.sleep(0)
    session.gate.set()
    assert await request == 8
    await gone


async def test_closing_finishes_requests_under_way() -> None:
    rig = await two_steps(slow=("first", "second"))
    session = rig.session_of("first")
    session.gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(session)
    closing = asyncio.create_task(rig.repository.close())
    await asyncio.sleep(0.01)
    session.gate.set()
    assert await request == 8
    await closing


async def test_closing_refuses_what_takes_too_long() -> None:
    rig = await two_steps(slow=("first", "second"), drain_s=0.05)
    session = rig.session_of("first")
    session.gate.clear()
    request = asyncio.create_task(y(rig))
    await rig.begun(session)
    closing = asyncio.create_task(rig.repository.close())
    with pytest.raises(RequestError, match="pipeline 'chain'") as caught:
        await request
    assert caught.value.fault is Fault.UNAVAILABLE
    session.gate.set()
    await closing


# ---- queues, callers, quotas -----------------------------------------------------------------------------------------
async def test_a_full_queue_of_a_step_is_one_overload() -> None:
    rig = await two_steps(slow=("second",), queue=(QueueSettings("second", requests=1),))
    session = rig.session_of("second")
    session.gate.clear()
    asking = [asyncio.create_task(y(rig, float(value))) for value in range(4)]
    done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    session.gate.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    refused = [each for each in results if isinstance(each, RequestError)]
    assert done
    assert {each.fault for each in refused} == {Fault.OVERLOADED}
    assert all("step 'two'" in each.message and each.retry_after_s for each in refused)
    assert {each for each in results if isinstance(each, float)} < {2.0, 4.0, 6.0, 8.0}
    assert rig.target().statistics.fail.count == len(refused)


async def test_a_caller_with_fewer_requests_gets_the_place_of_one_with_more() -> None:
    rig = await two_steps(slow=("second",), queue=(QueueSettings("chain", requests=4),))
    session = rig.session_of("second")
    session.gate.clear()
    greedy = [asyncio.create_task(y(rig, caller="greedy")) for _ in range(4)]
    await rig.begun(session)
    assert (await refusal(rig, caller="greedy")).fault is Fault.OVERLOADED
    others = [asyncio.create_task(y(rig, caller="other")) for _ in range(2)]
    with pytest.raises(RequestError, match="another caller has fewer; try again later") as caught:
        await greedy[3]
    assert caught.value.retry_after_s
    assert (await refusal(rig, caller="other")).fault is Fault.OVERLOADED
    assert rig.target().statistics.drops == {"queue_full": 2, "share": 2}
    session.gate.set()
    assert await asyncio.gather(*greedy[:2], *others) == [8] * 4
    assert isinstance((await asyncio.gather(greedy[2], return_exceptions=True))[0], RequestError)
    assert_idle(rig)


async def test_a_more_urgent_request_keeps_its_place() -> None:
    rig = await two_steps(slow=("second",), queue=(QueueSettings("chain", requests=2, priority=2),))
    session = rig.session_of("second")
    session.gate.clear()
    greedy = [asyncio.create_task(y(rig, caller="greedy", priority=1)) for _ in range(2)]
    await rig.begun(session)
    assert (await refusal(rig, caller="other")).fault is Fault.OVERLOADED
    session.gate.set()
    assert await asyncio.gather(*greedy) == [8, 8]


async def test_a_policy_for_a_pipeline_is_refused() -> None:
    rig = await two_steps(queue=(QueueSettings("chain", policy="latest"),))
    assert "the queue of a pipeline has no policy 'latest'; give it to the queues of its models" in rig.reason()


async def test_a_pipeline_has_a_limit_of_requests_under_way() -> None:
    rig = await two_steps(slow=("second",), queue=(QueueSettings("chain", requests=2),))
    session = rig.session_of("second")
    session.gate.clear()
    asking = [asyncio.create_task(y(rig)) for _ in range(2)]
    await rig.begun(session)
    error = await refusal(rig)
    assert error.fault is Fault.OVERLOADED
    assert rig.target().statistics.drops == {"queue_full": 1}
    session.gate.set()
    assert await asyncio.gather(*asking) == [8, 8]


async def test_a_queue_that_keeps_the_latest_keeps_all_parts() -> None:
    rig = PipelineRig(slow=("first",), queue=(QueueSettings("first", policy="latest"),))
    rig.model("first", add_one, X, Y, max_batch_rows=1)
    rig.model("second", double, X, Y)
    rig.pipeline(TWO.format(more=""))
    await rig.begin()
    answer = await rig.ask({"x": np.arange(20.0)}, "y")
    np.testing.assert_array_equal(answer["y"], (np.arange(20.0) + 1) * 2)


async def test_priority_caller_and_deadline_are_those_of_the_request() -> None:
    rig = await two_steps()
    seen = list[tuple[object, ...]]()
    submit = rig.registry.find("second", "").submit

    def watched(request: object, *more: object) -> object:
        seen.append((request.priority, request.caller, request.deadline_ns, request.stream))  # type: ignore[attr-defined]
        return submit(request, *more)  # type: ignore[arg-type]

    rig.registry.find("second", "").submit = watched  # type: ignore[method-assign, assignment]
    deadline_ns = time.monotonic_ns() + 10**10
    await y(rig, priority=3, caller="camera", deadline_ns=deadline_ns, stream="s")
    assert seen == [(3, "camera", deadline_ns, "s/two/0")]


async def test_quotas_count_the_caller_once() -> None:
    rig = await two_steps(quota=(QuotaSettings("*", in_flight=1),), slow=("second",))
    assert await y(rig, caller="a") == 8
    session = rig.session_of("second")
    session.gate.clear()
    request = asyncio.create_task(y(rig, caller="a"))
    await rig.begun(session)
    while session.started.acquire(blocking=False):
        pass
    assert (await refusal(rig, caller="a")).fault is Fault.OVERLOADED
    session.gate.set()
    assert await request == 8
    assert await y(rig, caller="a") == 8


async def test_statistics_continue_with_a_new_version_of_the_same_form() -> None:
    rig = await two_steps()
    await y(rig)
    rig.pipeline(TWO.format(more="deadline_s = 5"), digest="p2")
    await rig.begin()
    await y(rig)
    assert rig.target().statistics.success.count == 2
    assert rig.target().statistics.inferences == 2


async def test_classes_of_an_output_are_named_as_for_a_model() -> None:
    rig = PipelineRig()
    rig.model("first", lambda of: {"y": of["x"]}, (spec("x", 3),), (spec("y", 3),))
    text = '[input]\nx = "FP32[3]"\n[[step]]\nname = "one"\nmodel = "first"\nof = "x"\n[output]\ny = "one.y"'
    rig.pipeline(text)
    await rig.begin()
    request = asked({"x": np.array([[0.25, 2.0, 1.0]])})
    request.outputs = (RequestedOutput("y", 2),)
    response = await rig.engine.infer(request)
    assert response.outputs["y"].datatype is Datatype.BYTES
    assert response.outputs["y"].array.tolist() == [[b"2.000000:1", b"1.000000:2"]]


# ---- values ----------------------------------------------------------------------------------------------------------
RULE = """
[input]
a = "FP32[]"
b = "FP32[]"
[[step]]
name = "one"
model = "first"
of = "a"
[[step]]
name = "rate"
rule = {{ value = "{rule}" }}
[output]
value = "rate.value"
"""


async def ruled(rule: str, a: float, b: float) -> object:
    """Return what a rule makes of two numbers; `one.y` is a + 1."""
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.pipeline(RULE.format(rule=rule))
    await rig.begin()
    assert not rig.reason()
    answer = await rig.ask({"a": np.array([a]), "b": np.array([b])})
    json.loads(answer["result"][0])
    return answer["value"][0]


async def test_division_by_zero_is_one_failed_request() -> None:
    with pytest.raises(RequestError, match="pipeline 'chain', step 'rate': a rule divides by zero") as caught:
        await ruled("one.y / b", 1.0, 0.0)
    assert caught.value.fault is Fault.INVALID


async def test_guarded_division_by_zero_is_fine() -> None:
    assert await ruled("one.y / b if b > 0 else 0", 1.0, 0.0) == 0
    assert await ruled("b > 0 and one.y / b > 1", 1.0, 0.0) == False  # noqa: E712  numpy's
    assert await ruled("'much' if one.y / b > 1 else 'little'", 1.0, 0.0) == b"much"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_values_that_are_no_numbers_pass_or_are_refused(value: float) -> None:
    assert not np.isfinite(await ruled("one.y + b", value, 0.0))  # type: ignore[call-overload]
    assert await ruled("one.y > 0.5 or b > 0", value, 1.0) == True  # noqa: E712  numpy's
    assert await ruled("'none' if not (one.y > 0 or one.y <= 0) else 'some'", np.nan, 0.0) == b"none"


DETECT = """
[input]
image = "image"
[[step]]
name = "cars"
model = "find"
of = "image"
[[step]]
name = "best"
select = "cars"
where = "score >= 0"
by = "score"
top = 1000
[[step]]
name = "once"
merge = ["best"]
nms_iou = 0.5
[[step]]
name = "kind"
model = "mean"
of = "crop(image, best.box, 1.5)"
[output]
boxes = "once.box"
means = "kind.y"
cars = "count(cars)"
first = "first(cars.label, default='none')"
"""


async def seen(found: list[tuple[object, float, int]], image: bytes | None = None) -> dict[str, np.ndarray]:
    """Return what is made of objects that a detector finds."""
    rig = PipelineRig()
    detector(rig, "find", lambda _: found)
    mean = lambda of: {"y": of["image"].reshape(len(of["image"]), -1).mean(axis=1).astype(np.float32)}  # noqa: E731
    rig.model("mean", mean, (PIXELS,), Y)
    rig.pipeline(DETECT)
    await rig.begin()
    assert not rig.reason()
    content = encoded(np.full((20, 30, 3), 9, np.uint8)) if image is None else image
    answer = await rig.ask({"image": np.array([content], object)})
    json.loads(answer["result"][0])
    return answer


async def test_odd_boxes_are_cut_to_the_picture() -> None:
    boxes = [
        (-50, -50, -10, -10),
        (100, 100, 200, 200),
        (5, 5, 5, 5),
        (10, 10, 2, 2),
        (0, 0, 30, 20),
        (29.9, 19.9, 30, 20),
    ]
    answer = await seen([(box, 0.5, 0) for box in boxes])
    assert answer["means"].tolist() == [[9.0] * len(boxes)]


async def test_boxes_and_scores_that_are_no_numbers_are_left_out_or_cut() -> None:
    boxes = [(np.nan, 0, 10, 10), (0, np.inf, 5, 5), (-np.inf, -np.inf, np.inf, np.inf), (3e38, -3e38, 3e38, 3e38)]
    found: list[tuple[object, float, int]] = [(box, score, 0) for box in boxes for score in (0.5, np.nan)]
    answer = await seen(found)
    assert answer["cars"].tolist() == [8]
    assert answer["means"].shape == (1, 4)


async def test_ten_thousand_boxes_are_answered() -> None:
    places = np.random.default_rng(1).uniform(0, 20, (10_000, 2))
    found: list[tuple[object, float, int]] = [
        ((x, y, x + 2, y + 2), float(n) / 1e4, n % 3) for n, (x, y) in enumerate(places)
    ]
    answer = await seen(found)
    assert answer["cars"].tolist() == [10_000]
    assert answer["means"].shape == (1, 1000)
    assert 0 < answer["boxes"].shape[1] < 1000


async def test_nothing_found_is_an_empty_answer() -> None:
    answer = await seen([])
    assert (answer["boxes"].shape, answer["means"].shape) == ((1, 0, 4), (1, 0))
    assert answer["first"].tolist() == [b"none"]


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
async def test_a_broken_picture_is_refused(content: bytes) -> None:
    with pytest.raises(
        RequestError, match=r"pipeline 'chain', step '(image|cars)': image 0 of input 'image'"
    ) as caught:
        await seen([], content)
    assert caught.value.fault is Fault.INVALID


async def test_the_pixels_of_a_request_are_those_of_all_its_images() -> None:
    rig = PipelineRig(image_pixels=1000)
    detector(rig, "find", lambda _: [])
    rig.pipeline(
        '[input]\na = "image"\nb = "image"\n[[step]]\nname = "one"\nmodel = "find"\nof = "turn(a, 90)"\n'
        '[[step]]\nname = "two"\nmodel = "find"\nof = "turn(b, 90)"\n[output]\nn = "count(one)"\nm = "count(two)"'
    )
    await rig.begin()
    image = np.array([encoded(np.zeros((20, 20, 3), np.uint8))], object)
    assert (await rig.ask({"a": image, "b": image}, "n"))["n"].tolist() == [0]
    for rows in (2, 3):
        with pytest.raises(RequestError, match="400 pixels, at most 200 more are decoded") as caught:
            await rig.ask({"a": np.repeat(image, rows), "b": np.repeat(image, rows)})
        assert caught.value.fault is Fault.TOO_LARGE


@pytest.mark.parametrize("begun", [False, True])
async def test_work_on_threads_ends_with_its_request(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not begun never does; what has begun has the place of a request until it ends."""
    free, begins, opened = threading.Event(), threading.Event(), list[str]()

    def opening(content: bytes, where: str, *more: Any) -> object:
        opened.append(where)
        begins.set()
        assert free.wait(10)
        return open_image(content, where, *more)

    rig = PipelineRig(queue_requests=1)
    detector(rig, "find", lambda _: [])
    rig.pipeline(
        '[input]\na = "image"\n[[step]]\nname = "one"\nmodel = "find"\nof = "turn(a, 90)"\n[output]\nn = "count(one)"'
    )
    await rig.begin()
    monkeypatch.setattr("gateway.serving.pipelines.tensors.open_image", opening)
    if not begun:
        rig.target().preparing.submit(free.wait)
    image = np.array([encoded(np.zeros((20, 20, 3), np.uint8))] * 3, object)
    request = asyncio.create_task(rig.ask({"a": image}))
    await asyncio.to_thread(begins.wait, 10 if begun else 0.05)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    if begun:
        with pytest.raises(RequestError, match="as many requests under way as it may"):
            await rig.ask({"a": image})
    free.set()
    while rig.target()._lingering:
        await asyncio.sleep(0.001)
    earlier = len(opened)
    assert (await rig.ask({"a": image[:1]}, "n"))["n"].tolist() == [0]
    assert (earlier, len(opened) - earlier) == (begun, 1)


async def test_requests_for_models_do_not_wait_for_the_work_of_pipelines() -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [])
    rig.pipeline(
        '[input]\na = "image"\n[[step]]\nname = "one"\nmodel = "find"\nof = "turn(a, 90)"\n[output]\nn = "count(one)"'
    )
    await rig.begin()
    free, image = threading.Event(), np.array([encoded(np.zeros((20, 20, 3), np.uint8))], object)
    rig.target().preparing.submit(free.wait)
    own = asyncio.create_task(rig.ask({"a": image}, "n"))
    assert (await rig.ask({"image": image}, "scores", name="find"))["scores"].shape == (1, 0)
    assert not own.done()
    free.set()
    assert (await own)["n"].tolist() == [0]


@pytest.mark.parametrize("own", [False, True])
async def test_deadlines_hold_while_images_are_prepared(own: bool) -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [])
    rig.pipeline(
        '[input]\nboxes = "FP32[4]"\na = "image"\n[[step]]\nname = "one"\nmodel = "find"\nof = "crop(a, boxes)"\n'
        + ("deadline_s = 0.05\nfallback = {}\n" if own else "")
        + '[output]\nn = "count(one)"'
    )
    await rig.begin()
    target, free = rig.target(), threading.Event()
    inputs = {"a": np.array([encoded(np.zeros((20, 20, 3), np.uint8))], object), "boxes": np.ones((1, 4))}
    begun, submitted = time.monotonic(), target.preparing.submit_for
    calls = list[object]()

    def blocking(caller: str, call: Any) -> object:
        """Block the thread before images are prepared if the step's deadline counts, else from the beginning."""
        calls.append(call)
        if len(calls) == (3 if own else 1):
            submitted("", free.wait, 3)
        return submitted(caller, call)

    target.preparing.submit_for = blocking  # type: ignore[method-assign, assignment]
    try:
        if own:
            assert (await rig.ask(inputs, "n"))["n"].tolist() == [0]
            assert target.steps[-1].fallbacks == 1
        else:
            with pytest.raises(RequestError, match="step 'a': the request's time is over") as caught:
                await rig.ask(inputs, "n", deadline_ns=time.monotonic_ns() + 50_000_000)
            assert caught.value.fault is Fault.EXPIRED
        assert 0.05 <= time.monotonic() - begun < 2
    finally:
        free.set()
        del target.preparing.submit_for
    assert not target.busy


async def test_images_of_a_step_are_prepared_a_few_parts_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list[int]()

    def preparing(views: Any, of: TensorSpec) -> object:
        rows.append(len(views))
        return views_as_input(views, of)

    monkeypatch.setattr("gateway.serving.pipelines.tensors.views_as_input", preparing)
    monkeypatch.setattr(passage, "PREPARED_BYTES", 8 * 3 * 8 * 8, raising=False)
    rig = PipelineRig(slow=("find",))
    detector(rig, "find", lambda pixels: [((0, 0, 2, 2), float(pixels.mean()) / 255, 0)])
    rig.pipeline(
        '[input]\na = "image"\n[[step]]\nname = "t"\ntile = "a"\nsize = [8, 8]\n'
        '[[step]]\nname = "one"\nmodel = "find"\nof = "t.image"\n[output]\ns = "one.score"'
    )
    await rig.begin()
    rig.session_of("find").gate.clear()
    pixels = np.repeat(np.arange(0, 200, 8, dtype=np.uint8), 8)[np.newaxis, :, np.newaxis].repeat(8, 0).repeat(3, 2)
    request = asyncio.create_task(rig.ask({"a": np.array([encoded(pixels)], object)}, "s"))
    await rig.begun(rig.session_of("find"))
    await asyncio.sleep(0.05)
    assert 0 < sum(rows) <= 8
    rig.session_of("find").gate.set()
    np.testing.assert_allclose((await request)["s"], [np.arange(0, 200, 8) / 255], atol=1e-6)
    assert sum(rows) == 25


def wide(values: int) -> PipelineRig:
    """Return a rig whose pipeline answers with so many values a row."""
    rig = PipelineRig(max_batch_rows=64)
    rig.model("many", lambda of: {"y": np.repeat(of["x"][:, np.newaxis], values, 1)}, X, (spec("y", values),))
    rig.pipeline('[input]\nx = "FP32[]"\n[[step]]\nname = "m"\nmodel = "many"\nof = "x"\n[output]\ny = "m.y"\nx = "x"')
    return rig


async def test_arrays_of_many_values_are_no_part_of_documents() -> None:
    rig = wide(10_001)
    await rig.begin()
    answer = await rig.ask({"x": np.array([1.0])})
    assert answer["y"].shape == (1, 10_001)
    assert answer["result"].tolist() == [b'{"x": 1.0}']


async def test_large_documents_are_written_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, rig = list[str](), wide(1000)
    await rig.begin()
    written = outputs.documents

    def writing(*given: Any) -> object:
        threads.append(threading.current_thread().name)
        return written(*given)

    monkeypatch.setattr(plan, "documents", writing)
    for rows in (1, 10):
        answer = await rig.ask({"x": np.ones(rows)})
        assert [len(json.loads(each)["y"]) for each in answer["result"]] == [1000] * rows
    assert threads == [threading.current_thread().name, "prepare 1"]
    rig.target().preparing.submit((free := threading.Event()).wait)
    late = asyncio.create_task(rig.ask({"x": np.ones(10)}, deadline_ns=time.monotonic_ns() + 50_000_000))
    with pytest.raises(RequestError, match="the request's time is over"):
        await late
    free.set()
    assert not rig.target().busy

    def refuse(*_: object) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.target().preparing, "submit_for", refuse)
    with pytest.raises(RequestError, match="no thread makes its outputs now"):
        await asyncio.wait_for(rig.ask({"x": np.ones(10)}), 60)
    assert not rig.target().busy


@pytest.mark.parametrize("size", [100, 200_000])
async def test_rules_on_large_inputs_leave_the_event_loop(size: int) -> None:
    rig = PipelineRig()
    rig.model("first", add_one, X, Y)
    rig.pipeline(
        '[input]\nt = "text"\nv = "FP32[-1]"\n[[step]]\nname = "r"\nrule = { n = "len(lower(t))", m = "top(v)" }\n'
        '[[step]]\nname = "m"\nmodel = "first"\nof = "r.n"\n[output]\ny = "m.y"\nm = "r.m"'
    )
    await rig.begin()
    for text, width in ((b"A" * size, 2), (b"a", size)):
        rig.target().preparing.submit((free := threading.Event()).wait)
        inputs = {"t": np.array([text], object), "v": np.ones((1, width), np.float32)}
        request = asyncio.create_task(rig.ask(inputs, "y", "m"))
        await asyncio.sleep(0.05)
        assert request.done() == (size == 100)
        free.set()
        assert (await request)["y"].tolist() == [len(text) + 1]


async def test_tiles_of_all_images_are_bounded() -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [])
    rig.pipeline(
        '[input]\na = "image"\n[[step]]\nname = "t"\ntile = "a"\nsize = [8, 8]\n'
        '[[step]]\nname = "one"\nmodel = "find"\nof = "a"\n[output]\nn = "count(t)"'
    )
    await rig.begin()
    image = np.array([encoded(np.zeros((8 * 30, 8 * 30, 3), np.uint8))], object)
    assert (await rig.ask({"a": image.repeat(3)}, "n"))["n"].tolist() == [900] * 3
    with pytest.raises(RequestError, match="step 't': makes more than 10000 tiles"):
        await rig.ask({"a": image.repeat(12)}, "n")


async def test_callers_take_turns_within_the_work_of_one_request() -> None:
    order, threads = list[str](), Threads(1, "test")

    def work(name: str) -> Slices[str]:
        for _ in range(3):
            order.append(name)
            yield
        return name

    free, is_over = threading.Event(), threading.Event()
    threads.submit(free.wait)
    found = [begin_slices(threads, name, work(name), lambda: False) for name in "ab"]
    stopped = begin_slices(threads, "c", work("c"), is_over.is_set)
    is_over.set()
    free.set()
    assert [await asyncio.wrap_future(each) for each in found] == ["a", "b"]
    assert order == ["a", "b"] * 3
    assert isinstance(stopped.exception(5), CancelledError)
    threads.close()


async def test_too_many_rows_of_a_step_are_refused_with_words() -> None:
    rig = PipelineRig()
    detector(rig, "find", lambda _: [((0, 0, 5, 5), 0.5, 0)] * 10_001)
    rig.model("mean", lambda of: {"y": np.zeros(len(of["image"]), np.float32)}, (PIXELS,), Y)
    rig.pipeline(DETECT.replace("top = 1000", "").replace('by = "score"', "").replace("nms_iou = 0.5", ""))
    await rig.begin()
    with pytest.raises(RequestError, match="step 'kind': has 10001 rows, at most 10000 run; use select with top"):
        await rig.ask({"image": np.array([encoded(np.zeros((8, 8, 3), np.uint8))], object)})


UNEQUAL = """
[input]
x = "FP32[]"
z = "{other}"
[[step]]
name = "one"
model = "first"
of = "x"
[output]
y = "one.y"
"""
OTHERS = {
    "FP32[2]": np.zeros((100, 2), np.float32),
    "text": np.array([b"a"] * 100, object),
    "image": np.array([encoded(np.zeros((8, 8, 3), np.uint8))] * 100, object),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("rows", "others", "words"),
    [
        (8, 5, r"the inputs differ in their first dimension \(rows\): \[5, 8\]"),
        (1, 2, "the inputs differ in their first dimension"),
        (2, 0, "the inputs differ in their first dimension"),
        (0, 0, "batch of 0 rows; between 1 and 16 are served"),
        (17, 17, "batch of 17 rows; between 1 and 16 are served"),
    ],
)
async def test_rows_that_do_not_fit_are_refused_as_for_a_model(other: str, rows: int, others: int, words: str) -> None:
    rig = PipelineRig(max_batch_rows=16)
    rig.model("first", add_one, X, Y)
    rig.pipeline(UNEQUAL.format(other=other))
    await rig.begin()
    inputs = {"x": np.ones(rows, np.float32), "z": OTHERS[other][:others]}
    with pytest.raises(RequestError, match=words) as caught:
        await asyncio.wait_for(rig.ask(inputs, "y"), 5)
    assert caught.value.fault is Fault.INVALID
    assert_idle(rig)
    answer = await rig.ask({"x": np.ones(16, np.float32), "z": OTHERS[other][:16]}, "y")
    assert answer["y"].tolist() == [2] * 16


async def test_the_size_of_a_request_is_bounded_as_a_models() -> None:
    rig = PipelineRig(max_batch_rows=16)
    rig.model("first", add_one, X, Y)
    rig.pipeline(UNEQUAL.format(other="FP32[2]"))
    await rig.begin()
    bound = 16 * 3 * 4 + rig.target().settings.request_slack_bytes
    assert rig.target().sizes.binary_bytes == bound


@pytest.mark.parametrize("place", ["_read_inputs", "_advance"])
async def test_no_failure_outside_of_a_step_leaves_a_request_unanswered(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await two_steps()

    def fail(_: object) -> None:
        raise ValueError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(passage.RequestPassage, place, fail)
        with pytest.raises(RequestError, match="pipeline 'chain': failed: ValueError: unforeseen") as caught:
            await asyncio.wait_for(rig.ask({"x": np.ones(1)}, "y"), 5)
        assert caught.value.fault is Fault.INTERNAL
    assert_idle(rig)
    assert await y(rig) == 8
