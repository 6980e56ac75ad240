"""Bare ONNX models whose open first dimension does not count rows, under concurrent callers with different data.

Nothing in such a file says that its requests must not be joined. Joined requests were answered wrongly, without an
error, until a trial proved for each model whether joining changes its answers. Rows of similar size do not always show
that: front ends of audio models cut at 80 dB below the loudest value of the whole tensor, not of each row.
"""

import asyncio
import json
from urllib.request import urlopen

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
LIMITED = {
    "decibels": "(float[n,64] x) => (float[n,1] y) <float least = {0.0000000001}, float ten = {4.3429448}, "
    "float range = {80.0}> { power = Mul(x, x) mean = ReduceMean <axes=[1]> (power) some = Max(mean, least) "
    "level = Log(some) db = Mul(level, ten) loudest = ReduceMax <keepdims=0> (db) floor = Sub(loudest, range) "
    "y = Max(db, floor) }",
    "guard": "(float[n,8] x) => (float[n,8] y) <float most = {1000.0}> { peak = ReduceMax <keepdims=0> (x) "
    "bound = Max(peak, most) share = Div(most, bound) y = Mul(x, share) }",
    "spoilt": "(float[n,4] x) => (float[n,4] y) <float zero = {0.0}> { sum = ReduceSum <keepdims=0> (x) "
    "nothing = Mul(sum, zero) y = Add(x, nothing) }",
}
"""Graphs whose rows depend on each other for some values only."""
GRAPHS |= LIMITED
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
CALLERS = 17
LOUD_AND_QUIET = (3e4, 1e-3, 1.0, 1e-6, float("nan"), 1e-2)
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
@pytest.mark.parametrize("name", LIMITED)
def test_loud_and_quiet_callers_get_the_answers_to_their_own_data(served, name, protocol):
    addresses, files = served
    direct, model = open_direct("onnx", files[name]), entry(name).model
    shape = (1, direct.inputs[0].shape[1])
    rows = [RANDOM.normal(size=shape).astype(np.float32) * np.float32(scale) for scale in LOUD_AND_QUIET * 4]
    asks = Asks(tuple(Ask({"x": row}, direct.run({"x": row})) for row in rows))
    tally = asyncio.run(CALLS[protocol](addresses[protocol], model, asks, Load(CALLERS, 640, 30.0)))
    assert tally.answers.keys() == {Judgement.EXACT}, tally
    assert tally.requests >= len(rows)
    with urlopen(f"http://{addresses['http']}/v2/models/{model}/config") as said:
        assert "dynamic_batching" not in json.load(said)


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
