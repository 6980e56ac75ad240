"""Error rates of texts against jiwer."""

from __future__ import annotations

import math

import jiwer
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.workshop.making.metrics.text_errors import character_error_rate, edit_distance, word_error_rate

TEXTS = st.lists(st.tuples(st.text("ab ", max_size=9), st.text("ab ", min_size=1, max_size=9)), min_size=1, max_size=4)


@given(TEXTS)
def test_they_are_those_of_jiwer(texts: list[tuple[str, str]]) -> None:
    found, expected = (list(map(str.strip, each)) for each in zip(*texts, strict=True))
    assume(all(expected))
    words = [[" ".join(text.split()) for text in each] for each in (expected, found)]
    assert word_error_rate(found, expected) == pytest.approx(jiwer.wer(*words))
    assert character_error_rate(found, expected) == pytest.approx(jiwer.cer(expected, found))


def test_units_are_characters_of_any_script() -> None:
    assert edit_distance("größe", "grösse") == 2
    assert edit_distance("", "水表") == 2


def test_without_expected_characters_they_are_not_defined() -> None:
    assert math.isnan(character_error_rate(["a"], [""]))
