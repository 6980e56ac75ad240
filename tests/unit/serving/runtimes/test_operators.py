"""The reference runtime's operators against ONNX's own numpy evaluator."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from gateway.serving.runtimes.operators import OPERATORS


def evaluate(op, arrays, attributes, opset=17):
    """Return what ONNX says."""
    names = [f"i{index}" for index in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "one",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]


def agree(op, arrays, opset=17, **attributes):
    ours = OPERATORS[op](arrays, attributes)
    theirs = evaluate(op, arrays, attributes, opset)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    groups, per_group, outputs = draw(small), draw(small), draw(small)
    kernel = [draw(small) for _ in range(rank)]
    attributes = {
        "strides": [draw(small) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * rank)],
        "group": groups,
    }
    size = [draw(st.integers(4, 7)) for _ in range(rank)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"], strict=True)]
    assume(all(span <= extent for span, extent in zip(spans, size, strict=True)))
    image = floats(2, groups * per_group, *size)
    weights = floats(groups * outputs, per_group, *kernel, seed=1)
    return image, weights, floats(groups * outputs, seed=2), attributes


@settings(deadline=None)
@given(convolutions())
def test_conv(drawn):
    image, weights, bias, attributes = drawn
    agree("Conv", [image, weights, bias], **attributes)
    agree("Conv", [image, weights], **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [1, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3], "strides": [2], "pads": [0, 1]},
    ],
)
def test_pools(attributes):
    image = floats(2, 3, *[7, 6][: len(attributes["kernel_shape"])])
    agree("MaxPool", [image], **attributes)
    agree("AveragePool", [image], **attributes)
    agree("AveragePool", [image], count_include_pad=1, **attributes)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"transA": 1}, {"alpha": 0.5, "beta": 2.0}])
def test_gemm(attributes):
    left = floats(4, 3).T.copy() if attributes.get("transA") else floats(4, 3)
    right = floats(5, 3, seed=1) if attributes.get("transB") else floats(3, 5, seed=1)
    agree("Gemm", [left, right, floats(5, seed=2)], **attributes)
    agree("Gemm", [left, right], **attributes)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_broadcasts(op):
    agree(op, [floats(2, 3, 4), floats(3, 1, seed=1)])


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Identity", [floats(2, 3)], {}),
        ("Relu", [floats(2, 3)], {}),
        ("MatMul", [floats(2, 3, 4), floats(2, 4, 5)], {}),
        ("GlobalAveragePool", [floats(2, 3, 4, 5)], {}),
        ("GlobalAveragePool", [floats(2, 3, 4)], {}),
        ("Flatten", [floats(2, 3, 4)], {}),
        ("Flatten", [floats(2, 3, 4)], {"axis": 2}),
        ("Flatten", [floats(2, 3, 4)], {"axis": 0}),
        ("Reshape", [floats(2, 3, 4), np.array([0, -1])], {}),
        ("Reshape", [floats(2, 3, 4), np.array([4, 6])], {}),
        ("Transpose", [floats(2, 3, 4)], {"perm": [0, 2, 1]}),
        ("Transpose", [floats(2, 3, 4)], {}),
        ("Concat", [floats(2, 3), floats(2, 4)], {"axis": 1}),
        ("Softmax", [floats(2, 3, 4) * 50], {}),
        ("Softmax", [floats(2, 3, 4)], {"axis": 1}),
        ("ReduceMean", [floats(2, 3, 4)], {"axes": [1]}),
        ("ReduceMean", [floats(2, 3, 4)], {"axes": [1, 2], "keepdims": 0}),
        ("ReduceMean", [floats(2, 3, 4)], {}),
        ("ReduceMean", [floats(2, 3, 4)], {"keepdims": 0}),
    ],
)
def test_the_rest(op, arrays, attributes):
    agree(op, arrays, **attributes)


def test_reduce_mean_takes_its_axes_as_an_input_since_opset_18():
    agree("ReduceMean", [floats(2, 3, 4), np.array([2])], opset=18, keepdims=0)


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"ceil_mode": 1}])
def test_what_is_not_supported_says_so(attributes):
    with pytest.raises(ValueError, match="not supported"):
        OPERATORS["MaxPool"]([floats(1, 1, 4, 4)], {"kernel_shape": [2, 2], **attributes})
