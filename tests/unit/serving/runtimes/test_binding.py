"""Names, layouts and datatypes between manifest and variant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, Binding, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.ports import RowInput, RowTensors
from gateway.serving.runtimes.binding import Passage, Port, convert, plan_inputs, plan_outputs
from gateway.serving.runtimes.joining import difference
from gateway.serving.runtimes.session import BoundSession, bind


class Recorder:
    """An engine that hands its inputs back as its outputs, and remembers what it was fed."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self.fed, self.wanted, self.closed = [], [], 0

    def run(self, feeds, wanted):
        self.fed.append(dict(feeds))
        self.wanted.append(list(wanted))
        return list(feeds.values())[: len(wanted)]

    def close(self):
        self.closed += 1


def manifest(shape=(-1, 2, 3, 4), layout="NCHW", datatype=Datatype.FP32, output=None):
    x = TensorSpec("x", datatype, shape, layout)
    return ModelManifest("m", "1", (x,), (output or TensorSpec("y", datatype, shape, layout),), ())


def variant(**bind):
    return Variant("v", "onnx", "fp32", (Artifact("model", "0" * 64, 1),), bind=bind)


def ports(shape, datatype=Datatype.FP32):
    return (Port("x", datatype, shape),), (Port("y", datatype, shape),)


def test_what_needs_nothing_is_handed_on_as_it_is():
    engine = Recorder(*ports((-1, 2, 3, 4)))
    session = BoundSession(engine, manifest(), variant())
    x = np.zeros((5, 2, 3, 4), np.float32)
    answer = session.run({"x": x})["y"]
    assert engine.fed[0]["x"] is x
    assert answer is x


@pytest.mark.parametrize("rows", [-1, 1])
def test_an_engine_that_makes_no_peers_takes_one_run_at_a_time(rows):
    session = BoundSession(Recorder(*ports((rows, 2, 3, 4))), manifest(), variant())
    session.widen(1)
    with pytest.raises(VariantError, match="one run at a time"):
        session.widen(2)
    assert not session.peers


class Running:
    """A time-major engine: each step's answer is the sum over the steps so far."""

    def __init__(self, rows):
        self.inputs, self.outputs = ports((-1, rows, 2))

    def run(self, feeds, wanted):
        del wanted
        return [feeds["x"].cumsum(axis=0)]

    def close(self):
        pass


def test_rows_in_the_second_dimension_are_named_by_the_layout():
    time_major = variant(x=Binding("x", "LNC"), y=Binding("y", "LNC"))
    subject = manifest((-1, -1, 2), "NLC")
    session = BoundSession(Running(-1), subject, time_major)
    rows = [{"x": np.random.default_rng(row).random((1, 5, 2), np.float32)} for row in range(8)]
    np.testing.assert_array_equal(session.run(rows[0])["y"], rows[0]["x"].cumsum(axis=1))
    assert not difference(lambda inputs: dict(session.run(inputs)), rows, (), "fp32")
    assert session.rows == RowTensors({"x": RowInput((-1, -1, 2), 1)}, {"y": 1})
    with pytest.raises(VariantError, match=r"the manifest says \[-1, -1, 2\], but variant v has \[-1, 1, 2\]"):
        BoundSession(Running(1), subject, time_major)


@given(
    layout=st.sampled_from(["NCHW", "NHWC", "NCL", "NLC"]),
    own=st.sampled_from(["NCHW", "NHWC", "NCL", "NLC"]),
    rows=st.integers(1, 3),
)
def test_layouts_go_there_and_come_back(layout, own, rows):
    sizes = {"N": -1, "C": 2, "H": 3, "W": 4, "L": 5}
    subject = manifest(tuple(sizes[axis] for axis in layout), layout)
    bound = variant(x=Binding("x", own), y=Binding("y", own))
    engine = Recorder(*ports(tuple(sizes[axis] for axis in own)))
    if sorted(layout) != sorted(own):
        with pytest.raises(VariantError, match=f"layout {layout} .* cannot be turned into {own}"):
            BoundSession(engine, subject, bound)
        return
    x = np.random.default_rng(0).random((rows, *(sizes[axis] for axis in layout[1:]))).astype(np.float32)
    answer = BoundSession(engine, subject, bound).run({"x": x})["y"]
    np.testing.assert_array_equal(answer, x)
    fed = engine.fed[0]["x"]
    assert fed.shape == (rows, *(sizes[axis] for axis in own[1:]))
    assert fed.flags.c_contiguous
    np.testing.assert_array_equal(fed, x.transpose([layout.index(axis) for axis in own]))


def test_a_manifest_without_layout_takes_the_one_under_which_the_shapes_agree():
    subject = manifest((-1, 1, 8, 6), "")
    (passage,) = plan_inputs(subject, variant(x=Binding("x", "NHWC")), [Port("x", Datatype.FP32, (-1, 8, 6, 1))])
    assert passage.axes == (0, 2, 3, 1)
    (passage,) = plan_inputs(subject, variant(x=Binding("x", "NCHW")), [Port("x", Datatype.FP32, (-1, 1, 8, 6))])
    assert passage.axes is None
    (passage,) = plan_outputs(subject, variant(y=Binding("y", "NHWC")), [Port("y", Datatype.FP32, (-1, 8, 6, 1))])
    assert passage.axes == (0, 3, 1, 2)


FLOATS = {Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.BF16}
INTEGERS = set(Datatype) - FLOATS - {Datatype.BOOL, Datatype.BYTES}


@given(seen=st.sampled_from(list(Datatype)), own=st.sampled_from(list(Datatype)))
def test_datatypes_convert_within_their_family_and_no_further(seen, own):
    engine = Recorder(*ports((-1, 3), own))
    if seen is not own and not {seen, own} <= FLOATS and not {seen, own} <= INTEGERS:
        with pytest.raises(VariantError, match=f"the manifest says {seen.label}, but variant v has {own.label}"):
            BoundSession(engine, manifest((-1, 3), "", seen), variant())
        return
    x = np.ones((2, 3)).astype(seen.dtype)
    answer = BoundSession(engine, manifest((-1, 3), "", seen), variant()).run({"x": x})["y"]
    assert engine.fed[0]["x"].dtype == own.dtype
    assert answer.dtype == seen.dtype
    np.testing.assert_array_equal(answer, x)


@pytest.mark.parametrize(("value", "dtype"), [(2**31, "i4"), (-1, "u8"), (256, "u1"), (-129, "i1")])
def test_an_integer_that_does_not_fit_is_refused(value, dtype):
    with pytest.raises(VariantError, match="'x' holds integers that do not fit"):
        convert(Passage("x", "x", None, np.dtype(dtype)), np.array([0, value], np.int64))


def test_a_float_beyond_half_precision_becomes_infinite():
    assert np.isinf(convert(Passage("x", "x", None, np.dtype("f2")), np.array([1e9], np.float32))).all()


@pytest.mark.parametrize("own", [(-1, 3), (1, 3), (2, -1), None])
def test_a_fixed_or_open_row_count_fits_a_batched_manifest(own):
    subject = manifest((-1, 3), "")
    if own == (2, -1):
        with pytest.raises(VariantError, match=r"the manifest says \[-1, 3\], but variant v has \[2, -1\]"):
            plan_inputs(subject, variant(), [Port("x", Datatype.FP32, own)])
    else:
        assert plan_inputs(subject, variant(), [Port("x", Datatype.FP32, own)]) == (Passage("x", "x"),)


def test_an_output_may_be_more_definite_than_the_manifest_an_input_may_not():
    subject = manifest((-1, -1), "")
    assert plan_outputs(subject, variant(), [Port("y", Datatype.FP32, (-1, 7))])
    with pytest.raises(VariantError):
        plan_inputs(subject, variant(), [Port("x", Datatype.FP32, (-1, 7))])


def test_a_graph_of_one_row_is_fed_row_by_row():
    engine = Recorder(*ports((1, 3)))
    session = BoundSession(engine, manifest((-1, 3), ""), variant())
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    answer = session.run({"x": x})["y"]
    np.testing.assert_array_equal(answer, x)
    assert [fed["x"].shape for fed in engine.fed] == [(1, 3)] * 4
    assert not np.may_share_memory(answer, x)
    with pytest.raises(VariantError, match="at least one row"):
        session.run({"x": x[:0]})


def test_an_alias_names_the_same_tensor():
    port = Port("x:0", Datatype.FP32, (-1, 3), aliases=("x", "image"))
    assert plan_inputs(manifest((-1, 3), ""), variant(), [port]) == (Passage("x", "x:0"),)


def test_an_engine_that_does_not_fit_is_closed():
    engine = Recorder(*ports((-1, 4)))
    with pytest.raises(VariantError):
        bind(engine, manifest((-1, 3), ""), variant())
    assert engine.closed == 1


@pytest.mark.parametrize("rows", [(), (-1,)])
def test_another_shape_goes_there_and_comes_back(rows):
    engine = Recorder(*ports((*rows, 1, 6)))
    shapes = {name: Binding(name, shape=(*rows, 1, 6)) for name in "xy"}
    session = BoundSession(engine, manifest((*rows, 2, 3), ""), variant(**shapes))
    x = np.arange(12 if rows else 6, dtype=np.float32).reshape(-1, 2, 3)
    x = x if rows else x[0]
    answer = session.run({"x": x})["y"]
    assert engine.fed[0]["x"].shape == ((2, 1, 6) if rows else (1, 6))
    np.testing.assert_array_equal(answer, x)
    with pytest.raises(VariantError, match=r"the manifest says .* but variant v has"):
        BoundSession(Recorder(*ports((*rows, 1, 7))), manifest((*rows, 2, 3), ""), variant(**shapes))
