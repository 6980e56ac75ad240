"""Text recognition: greedy CTC against a naive collapse, and the conventions of PP-OCR, ddddocr and Keras."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.text_recognition import TextRecognition, TextResult, decode_ctc
from tests.simulators.task_models import model, options, output


def one_hot(path: list[int], classes: int, peak: float = 1.0) -> Array:
    """Return scores [steps, classes] whose best path is `path`."""
    scores = np.zeros((len(path), classes), np.float32)
    scores[np.arange(len(path)), path] = peak
    return scores


def read(scores: Array, text: str, labels: tuple[str, ...] = ()) -> TextResult:
    task = TextRecognition(model(output(shape=(-1, *scores.shape)), labels=labels), options(text))
    return task.interpret({"y": scores}, None)


def collapse(path: list[int], blank: int) -> list[int]:
    """Remove repetitions, then blanks, as the paper's function B does."""
    return [label for label, _ in groupby(path) if label != blank]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.sampled_from([0, 4]))
def test_the_best_path_is_collapsed_as_the_paper_says(path: list[int], blank: int) -> None:
    classes, maxima = decode_ctc(one_hot(path, 5, 0.5), blank)
    assert classes.tolist() == collapse(path, blank)
    assert maxima.tolist() == [0.5] * len(classes)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.sampled_from(["first", "last"]))
def test_characters_are_those_of_the_charset(path: list[int], blank: str) -> None:
    got = read(one_hot(path, 4), f'charset = "abc"\nblank = "{blank}"')
    names = " abc" if blank == "first" else "abc "
    kept = collapse(path, 0 if blank == "first" else 3)
    assert got.document() == {"text": "".join(names[index] for index in kept), "score": 1.0 if kept else 0.0}


def test_pp_ocr() -> None:
    """Blank first, the dictionary's lines, a space last; the score is the mean over the kept steps."""
    scores = one_hot([0, 1, 1, 3, 0, 2, 2, 0, 2], 4)
    scores[1:3, 1], scores[8, 2] = (0.5, 0.9), 0.25
    got = read(scores, "space = true", ("h", "i"))
    assert got.text == "h ii"
    assert got.score == pytest.approx((0.5 + 1.0 + 1.0 + 0.25) / 4)


def test_ddddocr() -> None:
    """Logits [steps, 1, classes] of a model without rows."""
    logits = one_hot([1, 0, 1, 2], 3, 4.0)[:, np.newaxis]
    declared = output(shape=(-1, 1, 3))
    task = TextRecognition(
        model(declared, batch=False), options('charset = "码7"\nactivation = "softmax"\nblank = "first"')
    )
    got = task.interpret({"y": logits}, None)
    assert got.text == "码码7"
    assert got.score == pytest.approx(scipy.special.softmax([4.0, 0.0, 0.0])[0])


def test_the_tensors_are_as_declared() -> None:
    got = read(one_hot([1, 2], 3), 'charset = "é1"').tensors()
    assert got["text"].tolist() == ["é1".encode()]
    assert got["score"].tolist() == [1.0]
    assert {spec.name: (spec.datatype.dtype, spec.shape) for spec in TextRecognition.results} == {
        name: (array.dtype, array.shape) for name, array in got.items()
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_has_no_text(bad: float) -> None:
    got = read(np.full((2, 3), bad, np.float32), 'charset = "ab"\nactivation = "softmax"')
    assert got.document() == {"text": None, "score": None}
    assert got.tensors()["text"].tolist() == [b""]


@pytest.mark.parametrize("shape", [(0, 3), (2, 4), (2, 2, 3)])
def test_an_output_of_another_form_is_refused(shape: tuple[int, ...]) -> None:
    task = TextRecognition(model(output(shape=(-1, -1, -1))), options('charset = "ab"'))
    with pytest.raises(RequestError, match="shape") as error:
        task.interpret({"y": np.zeros(shape)}, None)
    assert error.value.fault is Fault.UNSUPPORTED


REFUSALS = [
    ("", (-1, 9, 3), "charset", "missing"),
    ('charset = "abc"', (-1, 9, 3), "charset", "3 classes, but there are 3 characters and the blank"),
    ('charset = "ab"\nspace = true', (-1, 9, 3), "charset", "3 classes"),
    ('charset = "ab"\nblank = "middle"', (-1, 9, 3), "blank", "must be one of"),
    ('charset = "ab"\nzz = 1', (-1, 9, 3), "zz", "unknown key"),
    ('charset = "ab"', (-1, 2, 9, 3), "output", "more axes"),
]


@pytest.mark.parametrize(("text", "shape", "key", "words"), REFUSALS)
def test_options_that_do_not_fit_are_refused(text: str, shape: tuple[int, ...], key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        TextRecognition(model(output(shape=shape)), options(text))
    assert error.value.key == key
    assert words in error.value.problem


def test_scores_must_be_floats() -> None:
    with pytest.raises(ConfigurationError, match="datatype"):
        TextRecognition(model(output(shape=(-1, 9, 3), datatype=Datatype.INT64)), options('charset = "ab"'))
