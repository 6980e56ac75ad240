"""What callers rely on, of everything that answers to a name: one version, versions under a route, a pipeline."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.engine.servable import Servable
from gateway.serving.engine.settings import QueueSettings
from gateway.serving.engine.split import Split
from gateway.serving.engine.target import RequestTarget
from gateway.serving.pipelines.target import PipelineTarget
from tests.simulators.pipelines import PipelineRig, spec

CHAIN = '[input]\nx = "FP32[4]"\n[[step]]\nname = "s"\nmodel = "m"\nof = "x"\n[output]\ny = "s.y"\n'
KINDS = {"version": ("m", Servable), "route": ("m", Split), "pipeline": ("chain", PipelineTarget)}
X = np.arange(12, dtype=np.float32).reshape(3, 4)
GATES = list[threading.Event]()
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _gates_open() -> Iterator[None]:
    """Let the models of a test that failed end: their threads would keep the process."""
    yield
    while GATES:
        GATES.pop().set()


@dataclass(eq=False)  # sinks are hashed by identity
class Answers:
    """Sink that keeps everything that it is given, by token."""

    given: list[tuple[int, InferResponse | RequestError]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, token: int, given: InferResponse | RequestError) -> None:
        self.given.append((token, given))

    refuse = answer

    def flush(self) -> None:
        self.came.set()

    async def of(self, token: int) -> InferResponse | RequestError:
        """Return what a request got, once it is there."""
        while not (found := [one for of, one in self.given if of == token]):
            self.came.clear()
            await self.came.wait()
        (only,) = found
        return only


@dataclass
class Made:
    rig: PipelineRig
    target: RequestTarget
    sink: Answers = field(default_factory=Answers)

    def request(self, rows: Any = X, datatype: Datatype = Datatype.FP32, **changes: Any) -> InferRequest:
        asked = InferRequest(self.target.manifest.name, {"x": Tensor(datatype, np.asarray(rows))}, id="7")
        return replace(asked, **{"outputs": (RequestedOutput("y"),), **changes})

    def runs(self) -> int:
        """Return the number of runs of its models, also those that have begun only."""
        return sum(len(session.given) for session in self.rig.runtime.sessions)  # type: ignore[attr-defined]

    async def begun(self) -> None:
        while not self.runs():
            await asyncio.sleep(0.001)


async def made(kind: str, *, gated: bool = False, **limits: Any) -> Made:
    """Return a target whose model adds 1, if it is `gated` once the newest of GATES is set."""
    name, of_type = KINDS[kind]
    gate = threading.Event() if gated else None
    GATES.extend([gate] if gate else [])

    def run(of: Tensors) -> Tensors:
        if gate is not None:
            gate.wait()
        return {"y": of["x"] + np.float32(1)}

    rig = PipelineRig(slow=("m",) if gate is not None else (), **limits)
    rig.model("m", run, (spec("x", 4),), (spec("y", 4),))
    rig.pipeline(CHAIN)
    await rig.begin()
    if kind == "route":
        await rig.stage(replace(rig.manifests["m"], version="2"), "d2")
        rig.repository.route("m", {"1": 50, "2": 50}, lease_s=600)
    target = rig.registry.find(name, "")
    assert isinstance(target, of_type)
    return Made(rig, target)


@each_kind
@pytest.mark.asyncio
async def test_each_request_is_answered_once_with_its_own_rows(kind: str) -> None:
    one = await made(kind)
    assert (one.target.ready, one.target.refusal, "" in one.target.contents) == (True, "", False)
    for token in range(20):
        request = one.request(X[: 1 + token % 3] + np.float32(token))
        one.target.check(request)
        one.target.submit(request, one.sink, token)
    for token in range(20):
        found = await one.sink.of(token)
        assert isinstance(found, InferResponse), found
        assert (found.id, found.model) == ("7", one.target.manifest.name)
        np.testing.assert_array_equal(found.outputs["y"].array, X[: 1 + token % 3] + np.float32(token + 1))
    assert len(one.sink.given) == 20


@each_kind
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: replace(one.request(), inputs={}), "x"),
        (lambda one: replace(one.request(), inputs={"z": Tensor(Datatype.FP32, X)}), "z"),
        (lambda one: one.request(X.astype(np.float64), Datatype.FP64), "FP64"),
        (lambda one: one.request(X[:, :3]), "shape"),
        (lambda one: one.request(X[0]), "shape"),
        (lambda one: one.request(X[:0]), "row"),
        (lambda one: one.request(np.zeros((9, 4), np.float32)), "8"),
        (lambda one: one.request(outputs=(RequestedOutput("none"),)), "none"),
    ],
)
async def test_a_wrong_request_is_refused_by_check_and_submit_alike(
    kind: str, change: Callable[[Made], InferRequest], words: str
) -> None:
    one = await made(kind, max_batch_rows=8)
    with pytest.raises(RequestError, match=words) as checked:
        one.target.check(change(one))
    with pytest.raises(RequestError) as submitted:
        one.target.submit(change(one), one.sink, 0)
    assert (checked.value.fault, str(checked.value)) == (submitted.value.fault, str(submitted.value))
    assert checked.value.fault in {Fault.INVALID, Fault.TOO_LARGE}
    await asyncio.sleep(0)
    assert one.sink.given == []


@each_kind
@pytest.mark.asyncio
async def test_a_classification_of_an_output_is_answered(kind: str) -> None:
    one = await made(kind)
    one.target.submit(one.request(outputs=(RequestedOutput("y", classification=2),)), one.sink, 0)
    found = await one.sink.of(0)
    assert isinstance(found, InferResponse), found
    assert found.outputs["y"].array.tolist()[0] == [b"4.000000:3", b"3.000000:2"]


@each_kind
@pytest.mark.asyncio
async def test_a_request_that_is_late_is_never_run(kind: str) -> None:
    one = await made(kind)
    with pytest.raises(RequestError) as caught:
        one.target.submit(one.request(deadline_ns=time.monotonic_ns() - 1), one.sink, 0)
    assert caught.value.fault is Fault.EXPIRED
    assert not one.runs()


@each_kind
@pytest.mark.asyncio
async def test_a_request_whose_time_ends_in_the_queue_is_refused_once_and_others_are_answered(kind: str) -> None:
    one = await made(kind, gated=True)
    one.target.submit(one.request(), one.sink, 0)
    await one.begun()
    for token in (1, 2):  # one for each version of a route
        one.target.submit(one.request(), one.sink, token)
    one.target.submit(one.request(deadline_ns=time.monotonic_ns() + 20_000_000), one.sink, 3)
    late = await one.sink.of(3)
    assert isinstance(late, RequestError)
    assert late.fault is Fault.EXPIRED
    GATES[-1].set()
    assert [type(await one.sink.of(token)) for token in (0, 1, 2)] == [InferResponse] * 3
    assert len(one.sink.given) == 4


@each_kind
@pytest.mark.asyncio
async def test_a_cancelled_request_gets_nothing_and_frees_its_place(kind: str) -> None:
    one = await made(kind, gated=True, queue=(QueueSettings(KINDS[kind][0], requests=2),))
    pending = [one.target.submit(one.request(), one.sink, token) for token in range(2)]
    for each in (*pending, *pending):  # twice is harmless
        each.cancel()
    for token in (2, 3):
        one.target.submit(one.request(), one.sink, token)
    GATES[-1].set()
    assert [type(await one.sink.of(token)) for token in (2, 3)] == [InferResponse] * 2
    pending[0].cancel()
    assert sorted(token for token, _ in one.sink.given) == [2, 3]


@each_kind
@pytest.mark.asyncio
async def test_requests_beyond_the_queue_are_refused_with_a_time_to_come_back(kind: str) -> None:
    one = await made(kind, gated=True, queue=(QueueSettings(KINDS[kind][0], requests=4),))
    refused, accepted = list[RequestError](), list[int]()
    for token in range(40):
        try:
            one.target.submit(one.request(), one.sink, token)
            accepted.append(token)
        except RequestError as error:
            refused.append(error)
        await asyncio.sleep(0)
    assert refused
    assert {(error.fault, error.retry_after_s) for error in refused} == {(Fault.OVERLOADED, 0.1)}
    GATES[-1].set()
    assert [type(await one.sink.of(token)) for token in accepted] == [InferResponse] * len(accepted)


@each_kind
@pytest.mark.asyncio
async def test_what_is_under_way_at_the_end_is_answered_and_what_comes_later_refused(kind: str) -> None:
    one = await made(kind, gated=True)
    one.target.submit(one.request(), one.sink, 0)
    await one.begun()
    closing = asyncio.create_task(one.rig.repository.close())
    await asyncio.sleep(0)
    GATES[-1].set()
    await closing
    assert isinstance(await one.sink.of(0), InferResponse)
    with pytest.raises(RequestError) as caught:
        one.target.submit(one.request(), one.sink, 1)
    assert caught.value.fault is Fault.UNAVAILABLE
    assert len(one.sink.given) == 1


@each_kind
@pytest.mark.asyncio
async def test_random_requests_are_each_answered_refused_or_cancelled_exactly_once(kind: str) -> None:
    one, chance = await made(kind, max_batch_rows=8), random.Random(7)
    ends, wanted = dict[int, str](), dict[int, np.ndarray[Any, Any]]()
    for token in range(400):
        rows = np.float32(chance.random()) + np.zeros((chance.randint(0, 9), chance.choice((4, 4, 4, 3))), np.float32)
        deadline_ns = chance.choice((None, time.monotonic_ns() - 1, time.monotonic_ns() + 60 * 10**9))
        try:
            pending = one.target.submit(one.request(rows, deadline_ns=deadline_ns), one.sink, token)
        except RequestError as error:
            ends[token] = error.fault.name
            continue
        wanted[token] = rows + np.float32(1)
        if chance.random() < 0.2:
            await asyncio.sleep(0)
        if chance.random() < 0.1 and token not in {given for given, _ in one.sink.given}:
            pending.cancel()
            ends[token] = "CANCELLED"
    for token in wanted.keys() - ends.keys():
        found = await one.sink.of(token)
        assert isinstance(found, InferResponse), found
        np.testing.assert_array_equal(found.outputs["y"].array, wanted[token])
    assert {*ends.values()} == {"INVALID", "EXPIRED", "CANCELLED"} | ({"TOO_LARGE"} & {*ends.values()})
    given = [token for token, _ in one.sink.given]
    assert len(given) == len({*given})
    assert not {*given} & ends.keys()
