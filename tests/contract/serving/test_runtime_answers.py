"""Promises of every runtime for an open session, compared with the numpy oracle."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.golden import GoldenSet, compare_golden
from gateway.serving.domain.joining import has_state, unbounded
from gateway.serving.runtimes.catalog import get_runtime
from tests.simulators import models

KNOWN_OPERATORS = {"add", "matmul", "gemm", "fullyconnected", "conv", "conv2d", "convolution"}
"""Each model here has one of them, however its format spells it."""


def copied(answers):
    return {name: array.copy() for name, array in answers.items()}


def rows(inputs, start, stop):
    return {name: array[start:stop] for name, array in inputs.items()}


def test_answers_as_the_oracle_does(case):
    expected = copied(case.oracle().run(case.inputs))
    session = case.open()
    result = compare_golden(GoldenSet(case.inputs, expected), session.run(case.inputs), case.tolerance)
    assert result.passed, result.reason


def test_gives_the_manifests_names_datatypes_and_shapes_for_any_row_count(case):
    session = case.open()
    for count in (1, 2, 5, 8, 1):
        answers = session.run(rows(case.inputs, 0, count))
        assert set(answers) == {spec.name for spec in case.manifest.outputs}
        for spec in case.manifest.outputs:
            assert answers[spec.name].dtype == spec.datatype.dtype
            assert answers[spec.name].shape == (count, *spec.shape[1:])
            assert answers[spec.name].flags.c_contiguous


def test_a_row_is_answered_alike_alone_and_in_a_batch(case):
    session = case.open()
    together = copied(session.run(case.inputs))
    for row in range(3):
        for name, answer in session.run(rows(case.inputs, row, row + 1)).items():
            np.testing.assert_allclose(answer[0], together[name][row], rtol=1e-4, atol=1e-4)


def test_names_the_operators_of_its_graph(case):
    operators = get_runtime(case.variant.runtime).operators(case.variant, case.files)
    assert {name.casefold().replace("_", "") for name in operators} & KNOWN_OPERATORS
    assert (has_state(operators), unbounded(operators)) == ("", "")


def test_outputs_are_lent_until_the_next_run_and_never_alias_the_inputs(case):
    session = case.open()
    inputs = copied(case.inputs)
    answers = session.run(inputs)
    expected = copied(answers)
    for array in inputs.values():
        array.fill(0)
    for name, answer in answers.items():
        np.testing.assert_array_equal(answer, expected[name])


def test_holding_old_outputs_does_not_disturb_later_runs(case):
    session = case.open()
    held = [session.run(rows(case.inputs, 0, count)) for count in (1, 3, 3, 2)]
    expected = case.open().run(rows(case.inputs, 0, 2))
    for name, answer in held[-1].items():
        np.testing.assert_allclose(answer, expected[name], rtol=1e-5, atol=1e-5)


def test_takes_read_only_and_strided_inputs(case):
    session = case.open()
    expected = copied(session.run(case.inputs))
    frozen = {
        name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in case.inputs.items()
    }
    strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in case.inputs.items()}
    for inputs in (frozen, strided):
        for name, answer in session.run(inputs).items():
            np.testing.assert_array_equal(answer, expected[name])


def test_sessions_in_two_threads_do_not_disturb_each_other(case):
    expected = copied(case.open().run(case.inputs))

    def work(session):
        return [copied(session.run(case.inputs)) for _ in range(20)]

    sessions = [case.open(), case.open()]
    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(work, sessions):
            for answer in answers:
                for name, array in answer.items():
                    np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


def test_runs_at_a_time_give_the_answers_of_runs_alone(case):
    inputs = [rows(case.inputs, row, row + 1) for row in range(4)]
    alone = case.open()
    expected = [copied(alone.run(each)) for each in inputs]
    session = case.open(SessionBudget(runs=4))
    session.widen(4)
    session.widen(2)
    assert len(session.peers) == 3
    together = threading.Barrier(4)

    def work(each, own):
        answers = []
        for _ in range(20):
            together.wait()
            answers.append(each.run(own))  # outputs are lent until the next run of this session, not of a peer
            together.wait()
            answers[-1] = copied(answers[-1])
        return answers

    with ThreadPoolExecutor(4) as pool:
        for answers, wanted in zip(pool.map(work, [session, *session.peers], inputs), expected, strict=True):
            for answer in answers:
                for name, array in answer.items():
                    np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5)
    peer = session.peers[0]
    session.close()
    for each in (session, peer):
        with pytest.raises(VariantError, match="closed"):
            each.run(inputs[0])


def test_a_cancelled_run_ends_alone(case):
    session = case.open()
    session.widen(2)
    if session.cancel():
        assert session.peers[0].run(case.inputs)
        with pytest.raises(VariantError):
            session.run(case.inputs)


def test_takes_more_than_one_thread(case):
    expected = copied(case.open().run(case.inputs))
    for name, answer in case.open(SessionBudget(threads=2)).run(case.inputs).items():
        np.testing.assert_allclose(answer, expected[name], rtol=1e-4, atol=1e-4)


X = {"x": np.ones((2, 4), np.float32)}


def test_closing_twice_is_harmless_and_a_closed_session_says_so(opened):
    opened.run(X)
    opened.close()
    opened.close()
    with pytest.raises(VariantError, match="closed"):
        opened.run(X)


def test_a_run_without_an_input_names_it(opened):
    with pytest.raises(VariantError, match="input 'x' is missing"):
        opened.run({})


def test_a_run_of_a_wrong_shape_fails_and_the_next_one_works(opened):
    expected = copied(opened.run(X))
    with pytest.raises(VariantError, match="failed"):
        opened.run({"x": np.zeros((2, 7), np.float32)})
    np.testing.assert_array_equal(opened.run(X)["scores"], expected["scores"])


def test_a_release_written_for_tests_reads_back_as_it_was_written(tmp_path):
    for model in (models.adder(), models.dense(), models.identity()):
        written = models.write_release(tmp_path, model, *models.FILES)
        file = tmp_path / written.name / "1" / "manifest.toml"
        assert read_manifest(file.read_text(), str(file)) == written


def test_a_cancelled_session_answers_again(case):
    session = case.open()
    if session.cancel():
        with pytest.raises(VariantError):
            session.run(case.inputs)
    assert session.run(case.inputs)
