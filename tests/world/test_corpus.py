"""A seeded part of the corpus: backend tests of the `onnx` package, as shipped and with an open first dimension."""

import numpy as np
import pytest

from tests.world.answers import Judgement, compare
from tests.world.corpus import sampled
from tests.world.nodes import node_entries, open_entries
from tests.world.report import refused_rows
from tests.world.run import REFUSED, Options, serve_portion

SEED = 20
MODELS = {"as they are": node_entries, "opened": open_entries}


@pytest.mark.timeout(600)  # thirty trials and, on a busy machine, as many loads
@pytest.mark.parametrize("count", [6, pytest.param(16, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", MODELS)
def test_what_is_served_answers_as_its_runtime(kind, count, tmp_path):
    options = Options((), seed=SEED, asks=32, requests=64, seconds=5.0)
    rows = list(serve_portion(sampled(list(MODELS[kind]()), count, SEED), options, tmp_path))
    assert [row.line for row in rows if row.failed] == []
    refused = {row.entry.name: row.reason for row in rows if row.outcome == "refused"}
    listed = refused_rows(REFUSED)
    source = rows[0].entry.source
    assert refused.keys() <= listed.get(source, {}).keys(), refused
    served = {row.entry.name for row in rows if row.served}
    assert not served & listed.get(source, {}).keys(), "remove what is served from refused.toml"
    assert sum(row.tally.requests for row in rows) > count


@pytest.mark.parametrize(
    ("got", "judgement"),
    [
        ([1.0, 2.0], Judgement.EXACT),
        ([1.0, 2.00001], Judgement.ROUNDED),
        ([1.0, 2.01], Judgement.WRONG),
        ([1.0, np.nan], Judgement.WRONG),
        ([2.0, 1.0], Judgement.WRONG),
        ([1.0], Judgement.WRONG),
    ],
)
def test_rounding_is_told_from_a_wrong_answer(got, judgement):
    expected = {"y": np.array([1.0, 2.0], np.float32), "n": np.array([1])}
    assert compare({"y": np.array(got, np.float32), "n": np.array([1])}, expected) is judgement
    assert compare({"y": np.array(got, np.float32), "n": np.array([2])}, expected) is Judgement.WRONG
    assert compare({"y": np.array(got, np.float32)}, expected) is Judgement.WRONG
