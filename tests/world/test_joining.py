"""Bare ONNX models whose open first dimension does not count rows, under concurrent callers with different data.

Nothing in such a file says that its requests must not be joined. Joined requests were answered wrongly, without an
error, until a trial proved for each model whether joining changes its answers.
"""

import asyncio

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.world.answers import Judgement
from tests.world.callers import Load, call_grpc, call_http
from tests.world.direct import open_direct
from tests.world.entry import Case, Entry
from tests.world.feeds import Ask, Asks, make_asks

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
RANDOM = np.random.default_rng(20)
GRAPHS = {
    "running-sum": "(float[n,3] x) => (float[n,3] y) <int64 axis = {0}> { y = CumSum(x, axis) }",
    "centred-points": "(float[n,3] x) => (float[n,3] y) { m = ReduceMean <axes=[0]> (x) y = Sub(x, m) }",
    "lstm-over-time": "(float[n,1,4] x) => (float[n,1,1,8] y) { y = LSTM <hidden_size=8> (x, w, r) }",
    "difference": "(float[n,3] x, float[m,3] z) => (float[k,3] y) { y = Sub(x, z) }",
    "embedding": "(int64[n] x) => (float[n,3] y) { y = Gather(table, x) }",
}
WEIGHTS = {
    "lstm-over-time": {"w": RANDOM.normal(size=(1, 32, 4)), "r": RANDOM.normal(size=(1, 32, 8))},
    "embedding": {"table": RANDOM.normal(size=(10, 3))},
}
ROWS = {
    "running-sum": RANDOM.normal(size=(7, 3)).astype(np.float32),
    "centred-points": RANDOM.normal(size=(7, 3)).astype(np.float32),
    "lstm-over-time": RANDOM.normal(size=(7, 1, 4)).astype(np.float32),
}
OUT_OF_RANGE = Ask({"x": np.array([99])}, {})
CALLS = {"grpc": call_grpc, "http": call_http}


def entry(name):
    model = onnx.parser.parse_model(HEAD + GRAPHS[name])
    for weight, values in WEIGHTS.get(name, {}).items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), weight))
    cases = (Case({"x": ROWS[name]}, {}, 0, 0),) if name in ROWS else ()
    return Entry("made", name, "onnx", {"model.onnx": model.SerializeToString()}, cases)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Yield the address of each protocol, and each model's file."""
    folder = tmp_path_factory.mktemp("joining")
    files = {name: entry(name).write(folder / "models") for name in GRAPHS}
    with running(folder / "gateway", models=folder / "models", config=QUIET + SHORT_TRIALS) as daemon:
        yield {"grpc": daemon.grpc, "http": daemon.http}, files


@pytest.mark.parametrize("protocol", CALLS)
@pytest.mark.parametrize("name", ROWS)
def test_thirty_two_callers_get_the_answers_to_their_own_data(served, name, protocol):
    addresses, files = served
    asks = make_asks(entry(name), open_direct("onnx", files[name]), 32, 10.0, seed=20)
    assert len(asks.asks) == 32
    assert not asks.shapes_only
    tally = asyncio.run(CALLS[protocol](addresses[protocol], entry(name).model, asks, Load(32, 960, 30.0)))
    assert tally.wrong == 0, tally
    assert tally.requests >= 32


@pytest.mark.parametrize("protocol", CALLS)
def test_rows_that_the_graph_broadcasts_are_answered_among_requests_that_are_joined(served, protocol):
    addresses, files = served
    direct = open_direct("onnx", files["difference"])
    sizes = [(3, 3), (1, 3), (3, 1), (1, 1)] * 4
    inputs = [{"x": RANDOM.random((n, 3), np.float32), "z": RANDOM.random((m, 3), np.float32)} for n, m in sizes]
    asks = Asks(tuple(Ask(each, direct.run(each)) for each in inputs))
    tally = asyncio.run(CALLS[protocol](addresses[protocol], entry("difference").model, asks, Load(16, 480, 30.0)))
    assert (tally.wrong, tally.errors.total()) == (0, 0), tally
    assert tally.requests >= len(sizes)


@pytest.mark.parametrize(("protocol", "code"), [("grpc", "INVALID_ARGUMENT"), ("http", "400")])
def test_one_index_out_of_range_fails_its_own_request_only(served, protocol, code):
    addresses, files = served
    direct = open_direct("onnx", files["embedding"])
    good = tuple(Ask({"x": np.array([k % 10])}, direct.run({"x": np.array([k % 10])})) for k in range(15))
    asks = Asks((*good, OUT_OF_RANGE))
    tally = asyncio.run(CALLS[protocol](addresses[protocol], entry("embedding").model, asks, Load(16, 480, 30.0)))
    culprits = {error: count for error, count in tally.errors.items() if error.startswith(code)}
    assert tally.errors.total() == sum(culprits.values()), tally.errors
    assert tally.answers.keys() == {Judgement.EXACT}, tally
    assert 0 < tally.errors.total() <= 30
    assert all("out of data bounds" in error for error in culprits), culprits
