"""Admission: what fits passes untouched, everything else is INVALID and names tensor, sent and wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.engine.admission import Admission, Form
from gateway.serving.engine.cost import STACKING_BYTES_PER_NS, Cost
from tests.simulators.engine_rig import manifest
from tests.simulators.images_made import elements

IMAGE = TensorSpec("image", Datatype.FP32, (-1, 1, 2, 2), finite=True, preprocess=Preprocess(("png",)))
SIZE = TensorSpec("size", Datatype.INT64, (-1, 2))
OUTPUTS = (
    TensorSpec("scores", Datatype.FP32, (-1, 3)),
    TensorSpec("text", Datatype.BYTES, (-1, 1)),
    TensorSpec("flag", Datatype.BOOL, (-1, 1)),
)
MODEL = manifest(inputs=(IMAGE, SIZE), outputs=OUTPUTS)


def tensors(rows: int = 2) -> dict[str, Tensor]:
    return {
        "image": Tensor(Datatype.FP32, np.zeros((rows, 1, 2, 2), np.float32)),
        "size": Tensor(Datatype.INT64, np.zeros((rows, 2), np.int64)),
    }


def admission(of: ModelManifest = MODEL, cost: Cost | None = None, forms: int = 8) -> Admission:
    return Admission(of, cost or Cost(), max_batch_rows=4, forms=forms)


def admitted(changes: dict[str, Tensor | None], rows: int = 2, **more: object) -> Form:
    inputs = {name: tensor for name, tensor in {**tensors(rows), **changes}.items() if tensor is not None}
    return admission().form(InferRequest("m", inputs, **more))  # type: ignore[arg-type]


def test_what_fits_is_admitted_with_its_rows_and_all_outputs() -> None:
    got = admitted({})
    assert got.rows == 2
    assert [output.name for output in got.outputs] == ["scores", "text", "flag"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": None}, "input 'image' is missing"),
        ({"other": Tensor(Datatype.FP32, np.zeros(1, np.float32))}, "unexpected inference input 'other'"),
        ({"size": Tensor(Datatype.INT32, np.zeros((2, 2), np.int32))}, "datatype INT32, expected INT64"),
        ({"size": Tensor(Datatype.INT64, np.zeros((2, 3), np.int64))}, "shape [2, 3], expected [-1, 2]"),
        ({"size": Tensor(Datatype.INT64, np.zeros((2, 2, 1), np.int64))}, "shape [2, 2, 1]"),
        ({"size": Tensor(Datatype.INT64, np.zeros((), np.int64))}, "shape []"),
        (
            {"size": Tensor(Datatype.INT64, np.zeros((3, 2), np.int64))},
            "differ in their first dimension (rows): [2, 3]",
        ),
        ({"image": Tensor(Datatype.FP32, np.full((2, 1, 2, 2), np.nan, np.float32))}, "holds NaN or infinity"),
        ({"image": Tensor(Datatype.FP32, np.full((2, 1, 2, 2), -np.inf, np.float32))}, "holds NaN or infinity"),
        ({"image": Tensor(Datatype.BYTES, elements(b"", b"").reshape(1, 2))}, "need the shape [n] or [n,1]"),
        ({"image": Tensor(Datatype.BYTES, elements(b"", b"").reshape(2, 1, 1))}, "need the shape [n] or [n,1]"),
        ({"image": Tensor(Datatype.BYTES, elements(b"").reshape(()))}, "need the shape [n] or [n,1]"),
        ({"size": Tensor(Datatype.BYTES, elements(b"", b""))}, "datatype BYTES, expected INT64"),
    ],
)
def test_refusals_name_what_is_wrong(changes: dict[str, Tensor | None], words: str) -> None:
    with pytest.raises(RequestError) as error:
        admitted(changes)
    assert error.value.fault is Fault.INVALID
    assert words in error.value.message
    assert "model 'm' version 1" in error.value.message


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_encoded_images_stand_for_their_rows(shape: tuple[int, ...]) -> None:
    assert admitted({"image": Tensor(Datatype.BYTES, elements(b"a", b"b").reshape(shape))}).rows == 2


@pytest.mark.parametrize(
    ("rows", "model", "where"),
    [
        (0, MODEL, r"\[limits\] max_batch_rows"),
        (5, MODEL, r"\[limits\] max_batch_rows"),
        (5, replace(MODEL, max_batch_rows=4), "max_batch_size in config.pbtxt, max_batch_rows in a manifest"),
    ],
)
def test_rows_are_bounded_and_the_bound_is_named(rows: int, model: ModelManifest, where: str) -> None:
    with pytest.raises(RequestError, match=rf"batch of {rows} rows; between 1 and 4 .*\({where}\)"):
        admission(model).form(InferRequest("m", tensors(rows)))


@pytest.mark.parametrize(("images", "sizes", "rows"), [(3, 1, 3), (5, 5, 5), (0, 0, 1)])
def test_a_bare_model_decides_itself_on_rows_of_a_request_that_joins_none(images: int, sizes: int, rows: int) -> None:
    bare = admission(replace(MODEL, batch=None), Cost(run_ns=1_000_000, row_ns=1))
    usual = bare.form(InferRequest("m", tensors(3)))
    other = bare.form(InferRequest("m", {**tensors(images), "size": tensors(sizes)["size"]}))
    assert (usual.rows, other.rows) == (3, rows)
    joined = [[one.joins(another) for another in (usual, other)] for one in (usual, other)]
    assert joined == [[True, False], [False, False]]


def test_nan_passes_where_the_input_does_not_say_finite() -> None:
    loose = manifest(inputs=(TensorSpec("x", Datatype.FP32, (-1, 1)),))
    sent = {"x": Tensor(Datatype.FP32, np.full((1, 1), np.nan, np.float32))}
    assert admission(loose).form(InferRequest("m", sent)).rows == 1


def test_a_model_without_rows_counts_one_whatever_its_inputs() -> None:
    fixed = manifest(
        inputs=(TensorSpec("a", Datatype.FP32, (3,)), TensorSpec("b", Datatype.FP32, ())),
        outputs=(TensorSpec("y", Datatype.FP32, (5,)),),
    )
    sent = {name: Tensor(Datatype.FP32, np.zeros(shape, np.float32)) for name, shape in (("a", (3,)), ("b", ()))}
    assert admission(fixed).form(InferRequest("m", sent)).rows == 1


def test_a_fixed_number_of_images_is_held_to() -> None:
    one = TensorSpec("x", Datatype.FP32, (1, 1, 2, 2), preprocess=Preprocess(("png",)))
    fixed = manifest(inputs=(one,), outputs=(TensorSpec("y", Datatype.FP32, (1, 3)),))
    with pytest.raises(RequestError, match="takes 1 encoded contents, not 2"):
        admission(fixed).form(InferRequest("m", {"x": Tensor(Datatype.BYTES, elements(b"a", b"b"))}))


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ((RequestedOutput("nothing"),), "unexpected inference output 'nothing'"),
        ((RequestedOutput("scores"), RequestedOutput("scores")), "output 'scores' already exists in request"),
        ((RequestedOutput("text", 1),), "output 'text' is BYTES: no scores to classify"),
        ((RequestedOutput("flag", 1),), "output 'flag' is BOOL: no scores to classify"),
    ],
)
def test_requested_outputs_are_checked(outputs: tuple[RequestedOutput, ...], words: str) -> None:
    with pytest.raises(RequestError) as error:
        admitted({}, outputs=outputs)
    assert error.value.fault is Fault.INVALID
    assert words in error.value.message


def test_requested_outputs_keep_the_callers_order() -> None:
    wanted = (RequestedOutput("text"), RequestedOutput("scores", 2))
    assert admitted({}, outputs=wanted).outputs == wanted


def test_a_form_is_checked_once_and_every_value_each_time() -> None:
    checks = admission(cost=Cost(run_ns=100_000, row_ns=10_000, worker_rows=8))
    request = InferRequest("m", tensors())
    form = checks.form(request)
    assert checks.form(InferRequest("m", tensors())) is form
    request.inputs["image"].array[0] = np.nan
    with pytest.raises(RequestError, match="NaN or infinity"):
        checks.form(request)
    assert checks.form(InferRequest("m", tensors(rows=3))) is not form
    assert checks.form(InferRequest("m", tensors(rows=3))).joins(form)


def test_rows_are_not_stacked_where_copying_them_costs_more_than_it_saves() -> None:
    row_bytes = sum(tensor.array.nbytes for tensor in tensors(1).values())
    saved_ns = row_bytes // STACKING_BYTES_PER_NS
    for gain_ns, stacks in ((saved_ns, False), (saved_ns + 1, True)):
        form = admission(cost=Cost(run_ns=1000 + gain_ns, row_ns=1000)).form(InferRequest("m", tensors(2)))
        assert form.joins(form) is stacks


@pytest.mark.parametrize("change", ["datatype", "shape", "name", "outputs"])
def test_what_decides_is_never_taken_from_another_form(change: str) -> None:
    checks = admission()
    checks.form(InferRequest("m", tensors()))
    sent, outputs = tensors(), ()
    if change == "datatype":
        sent["size"] = Tensor(Datatype.INT32, sent["size"].array)
    elif change == "shape":
        sent["size"] = Tensor(Datatype.INT64, sent["size"].array.reshape(1, 4))
    elif change == "name":
        sent["sise"] = sent.pop("size")
    else:
        outputs = (RequestedOutput("nothing"),)
    with pytest.raises(RequestError):
        checks.form(InferRequest("m", sent, outputs=outputs))


def test_as_many_forms_are_remembered_as_the_bound_says() -> None:
    checks = admission(forms=2)
    first = checks.form(InferRequest("m", tensors(1)))
    for rows in (2, 3):
        checks.form(InferRequest("m", tensors(rows)))
    assert checks.form(InferRequest("m", tensors(1))) is not first
    assert checks.form(InferRequest("m", tensors(3))) is checks.form(InferRequest("m", tensors(3)))


def test_the_cost_of_a_form_decides_where_it_runs() -> None:
    measured = Cost(run_ns=100_000, row_ns=100_000, limit_ns=300_000)
    by_rows = {rows: admission(cost=measured).form(InferRequest("m", tensors(rows))).costly for rows in (1, 3, 4)}
    assert by_rows == {1: False, 3: False, 4: True}


def test_inputs_with_a_default_may_be_left_out() -> None:
    model = manifest(inputs=(IMAGE, replace(SIZE, default=7)), outputs=OUTPUTS)
    checked = admission(model)
    asked = InferRequest("m", {"image": tensors(3)["image"]})
    complete = checked.complete(asked)
    assert checked.form(complete).rows == 3
    assert complete.inputs["size"].array.tolist() == [[7, 7]] * 3
    assert list(asked.inputs) == ["image"]
    checked.check(asked)
    sent = InferRequest("m", tensors())
    assert checked.complete(sent) is sent
    encoded = InferRequest("m", {"image": Tensor(Datatype.BYTES, elements(b"a", b"b"))})
    assert checked.complete(encoded).inputs["size"].array.shape == (2, 2)
    with pytest.raises(RequestError, match="input 'image' is missing"):
        checked.check(InferRequest("m", {"size": tensors()["size"]}))


@pytest.mark.parametrize(
    "image", [tensors(5)["image"], Tensor(Datatype.BYTES, elements(*[b""] * 100_000))], ids=["tensor", "encoded"]
)
def test_a_default_is_not_made_for_more_rows_than_are_served(image: Tensor) -> None:
    checked = admission(manifest(inputs=(IMAGE, replace(SIZE, default=7)), outputs=OUTPUTS))
    with pytest.raises(RequestError, match=r"batch of \d+ rows; between 1 and 4") as found:
        checked.complete(InferRequest("m", {"image": image}))
    assert found.value.fault is Fault.INVALID


def test_declared_outputs_above_the_largest_answer_are_refused_before_the_run():
    wide = manifest(inputs=(SIZE,), outputs=(TensorSpec("y", Datatype.FP32, (-1, 2**28)),))
    request = {rows: InferRequest("m", {"size": tensors(rows)["size"]}) for rows in (1, 2)}
    assert admission(wide).form(request[1]).rows == 1
    with pytest.raises(RequestError, match="the answer has 2147483648 bytes or more; at most 2147483647") as refused:
        admission(wide).form(request[2])
    assert refused.value.fault is Fault.TOO_LARGE
