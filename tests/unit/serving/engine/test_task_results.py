"""Results of a model's task: outputs that callers may request, computed for each request of a joined run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.events import RunFailed
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.tasks import catalog
from gateway.serving.tasks.catalog import task_of
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.interpreter import interpreter_of
from gateway.serving.tasks.task import Task
from tests.simulators.engine_rig import Rig, manifest, quick_rig, request

pytestmark = pytest.mark.asyncio


@dataclass
class Counted:
    """As many copies of a value as it says."""

    value: float

    def document(self) -> dict[str, Any]:
        return {"value": self.value, "label": "é"}

    def tensors(self) -> dict[str, Array]:
        return {"copies": np.full(int(self.value), self.value, np.float32), "place": np.array(3, np.int32)}


class Counting:
    """Task whose result is as long as its value, at most `most`."""

    results = (TensorSpec("copies", Datatype.FP32, (-1,)), TensorSpec("place", Datatype.INT32, ()))

    def __init__(self, _manifest: ModelManifest, options: Table) -> None:
        self._most = options.number("most", 10.0, low=0.0, high=100.0)

    def interpret(self, outputs: Tensors, frame: Frame | None) -> Counted:
        assert frame is None
        value = float(outputs["y"][0])
        if value > self._most:
            raise RequestError(Fault.UNSUPPORTED, f"{value} is more than {self._most}")
        if value < 0:
            raise KeyError("own mistake")
        return Counted(value)


def counting(**options: Any) -> ModelManifest:
    return manifest(task="counting", task_options=options)


@pytest_asyncio.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    kinds: dict[str, Any] = {"counting": Counting}
    monkeypatch.setattr(catalog, "TASKS", kinds)
    one = await quick_rig(counting())
    one.session.factor = 1.0
    yield one
    await one.repository.close()


def document(array: Array) -> list[Any]:
    return [json.loads(text) for text in array]


async def test_an_answer_has_the_results_unless_the_request_names_others(rig: Rig) -> None:
    answer = await rig.engine.infer(request(2.0))
    assert {name: tensor.array.tolist() for name, tensor in answer.outputs.items() if name != "result"} == {
        "copies": [[2.0, 2.0]],
        "place": [3],
    }
    assert document(answer.outputs["result"].array) == [{"value": 2.0, "label": "é"}]
    both = await rig.engine.infer(request(2.0, outputs=(RequestedOutput("y"), RequestedOutput("result"))))
    assert list(both.outputs) == ["y", "result"]
    assert both.outputs["y"].array.tolist() == [[2.0]]
    plain = await rig.engine.infer(request(2.0, outputs=(RequestedOutput("y"),)))
    assert list(plain.outputs) == ["y"]
    described = rig.engine.describe("m")
    assert [spec.name for spec in described.outputs] == ["result", "copies", "place", "y"]


async def test_requests_of_one_run_get_their_own_results(rig: Rig) -> None:
    answers = await asyncio.gather(*[rig.engine.infer(request(float(value))) for value in (1, 3, 2)])
    assert len(rig.session.runs[-1]) == 3
    assert [answer.outputs["copies"].array.tolist() for answer in answers] == [[[1.0]], [[3.0] * 3], [[2.0] * 2]]


async def test_rows_of_one_request_are_filled_up_to_the_longest(rig: Rig) -> None:
    rows = InferRequest("m", {"x": request(1.0, rows=3).inputs["x"]})
    rows.inputs["x"].array[:] = [[1.0], [3.0], [0.0]]
    answer = await rig.engine.infer(rows)
    assert answer.outputs["copies"].array.tolist() == [[1.0, 0.0, 0.0], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0]]
    assert [one["value"] for one in document(answer.outputs["result"].array)] == [1.0, 3.0, 0.0]


async def test_a_result_that_cannot_be_made_refuses_its_own_request_only(rig: Rig) -> None:
    answers = await asyncio.gather(
        *[rig.engine.infer(request(float(value))) for value in (1, 11, 2)], return_exceptions=True
    )
    assert len(rig.session.runs[-1]) == 3
    assert isinstance(answers[1], RequestError)
    assert answers[1].fault is Fault.UNSUPPORTED
    assert [isinstance(answer, RequestError) for answer in answers] == [False, True, False]


async def test_a_mistake_of_the_task_is_no_fault_of_its_caller(rig: Rig) -> None:
    answers = await asyncio.gather(
        *[rig.engine.infer(request(float(value))) for value in (1, -1, 2)], return_exceptions=True
    )
    assert len(rig.session.runs) == 1
    assert isinstance(answers[1], RequestError)
    assert answers[1].fault is Fault.INTERNAL
    assert "see the gateway's log" in answers[1].message
    assert [isinstance(answer, RequestError) for answer in answers] == [False, True, False]
    assert [event.reason for event in rig.events if isinstance(event, RunFailed)] == ["task: KeyError: 'own mistake'"]


async def test_a_task_that_does_not_fit_is_refused_with_its_key(rig: Rig) -> None:
    with pytest.raises(ConfigurationError, match="no known kind; known ones are counting") as caught:
        task_of(manifest(task="other", task_options={}))
    assert caught.value.key == "kind"
    with pytest.raises(ConfigurationError) as caught:
        task_of(counting(most=-1))
    assert (caught.value.table, caught.value.key) == ("task", "most")
    with pytest.raises(ConfigurationError, match="unknown key"):
        task_of(counting(mots=1))
    task: Task | None = task_of(manifest(task="counting"))
    assert task is None


async def test_another_variant_of_a_version_continues_its_counters(rig: Rig) -> None:
    await rig.commit(counting())
    await rig.engine.infer(request(2.0))
    before = rig.engine.statistics("m")[0]
    await rig.commit(counting(), digest="d2")
    after = rig.engine.statistics("m")[0]
    assert rig.session.closed == 0
    assert before.success.count == after.success.count == 1


async def test_a_result_whose_name_an_output_has_gets_a_prefix(rig: Rig) -> None:
    taken = (TensorSpec("y", Datatype.FP32, (-1, 1)), TensorSpec("place", Datatype.FP32, (-1, 1)))
    interpreter = interpreter_of(manifest(task="counting", task_options={}, outputs=taken))
    assert interpreter is not None
    assert [spec.name for spec in interpreter.results] == ["result", "copies", "task.place"]
    outputs = {"y": np.ones((1, 1), np.float32), "place": np.zeros((1, 1), np.float32)}
    assert interpreter.interpret(outputs, None, {}, ())["task.place"].tolist() == [3]


async def test_a_shadow_is_compared_by_the_tensors_of_the_task(rig: Rig) -> None:
    await rig.commit(counting())
    await rig.stage(manifest(version="2", task="counting", task_options={}))
    rig.repository.route("m", {"1": 100}, shadow="2", lease_s=60.0)
    for outputs in ((), (RequestedOutput("result"),)):
        await rig.engine.infer(request(2.0, outputs=outputs))
        shadow = next(one for one in rig.engine.statistics("m") if one.version == "2").shadow
        while not shadow.compared + sum(shadow.not_compared.values()):
            await asyncio.sleep(0.001)
    assert (shadow.compared, shadow.disagreed) == (1, 0)
    while not shadow.not_compared:
        await asyncio.sleep(0.001)
    assert shadow.not_compared == {"result": 1}
