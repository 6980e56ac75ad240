"""Embeddings have length 1, and are compared as scikit-learn compares them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.embedding import Embedding, EmbeddingResult, cosine, unit
from tests.simulators.task_models import model, options, output


def embed(values: object, text: str = "", shape: tuple[int, ...] = ()) -> EmbeddingResult:
    row = np.asarray(values)
    declared = output(shape=(-1, *(shape or row.shape)), datatype=Datatype.FP64)
    return Embedding(model(declared), options(text)).interpret({"y": row}, None)


MATRICES = arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(4)), elements=st.integers(-1000, 1000))


@given(MATRICES, MATRICES)
def test_similarities_are_those_of_scikit_learn(first: Array, second: Array) -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    assert np.allclose(cosine(first, second), cosine_similarity(first, second), atol=1e-9)


@given(arrays.arrays(np.float64, st.integers(1, 8), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_a_vector_has_length_one_or_is_zero(values: Array) -> None:
    length = np.linalg.norm(embed(values).vector.astype(np.float64))
    assert length == pytest.approx(1.0 if values.any() else 0.0, abs=1e-6)


def test_lengths_beyond_the_range_of_squares() -> None:
    assert unit(np.array([3e300, 4e300])).tolist() == pytest.approx([0.6, 0.8])
    assert unit(np.array([3e-300, 4e-300])).tolist() == pytest.approx([0.6, 0.8])


def test_document_and_tensors() -> None:
    got = embed([3.0, 4.0])
    assert got.document()["embedding"] == pytest.approx([0.6, 0.8])
    assert got.tensors()["embedding"].dtype == np.float32
    assert embed([3.0, 4.0], "normalise = false").document() == {"embedding": [3.0, 4.0]}
    (declared,) = Embedding(model(output(shape=(-1, 1, 8))), options()).results
    assert (declared.name, declared.shape) == ("embedding", (8,))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("text", ["", "normalise = false"])
def test_a_vector_that_is_not_finite_is_null(bad: float, text: str) -> None:
    document = embed([1.0, bad], text).document()
    assert document == {"embedding": None}
    json.dumps(document, allow_nan=False)


def test_tokens_are_reduced() -> None:
    tokens = [[2.0, 0.0], [0.0, 2.0]]
    assert embed(tokens, 'pool = "first"').vector.tolist() == [1.0, 0.0]
    assert embed(tokens, 'pool = "mean"\nnormalise = false').vector.tolist() == [1.0, 1.0]
    with pytest.raises(RequestError, match="empty") as error:
        embed(np.zeros((0, 2)), 'pool = "first"', (-1, 2))
    assert error.value.fault is Fault.UNSUPPORTED


@pytest.mark.parametrize(
    ("text", "shape", "key"), [("", (-1, 7, 8), "pool"), ('pool = "mean"', (-1, 8), "pool"), ("zz = 1", (-1, 8), "zz")]
)
def test_options_that_do_not_fit_are_refused(text: str, shape: tuple[int, ...], key: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Embedding(model(output(shape=shape)), options(text))
    assert error.value.key == key
