"""Operator tests of the ONNX package, run apart and joined: no result that is proved may depend on another row."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.domain.rows.rules import RULES

_SPEC = importlib.util.spec_from_file_location("rows_operators", Path(__file__).with_name("operators.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
operators = importlib.util.module_from_spec(_SPEC)
sys.modules["rows_operators"] = operators
_SPEC.loader.exec_module(operators)

SEED, OF_A_KIND = 35, 2
ALL_PROVED, SAMPLE_PROVED = 3_600, 800
"""Least placements that are proved and run: a rule that is lost shows here."""


def kinds(case: Any) -> set[str]:
    return {f"{node.domain}::{node.op_type}".removeprefix("::") for node in case.model.graph.node} & set(RULES)


def sample() -> list[Any]:
    """Return some tests of each kind of operator that has a rule, at random."""
    shuffled = random.Random(SEED).sample(operators.cases(), len(operators.cases()))
    chosen = {}
    for kind in sorted(set().union(*map(kinds, shuffled))):
        own = sorted((case for case in shuffled if kind in kinds(case)), key=lambda case: len(case.model.graph.node))
        chosen |= {case.name: case for case in own[:OF_A_KIND]}
    return list(chosen.values())


def ran(cases: Iterable[Any]) -> tuple[int, set[str]]:
    """Return how many placements were proved and ran, and of which kinds. Fails on those that are wrong."""
    count, found, wrong = 0, set(), []
    for case in cases:
        for placed in operators.placements(case):
            outcome = operators.outcome(placed)
            wrong += [(placed.name, placed.axes, placed.merged, each) for each in outcome.wrong]
            if outcome.proved and outcome.runs:
                count += 1
                found |= kinds(case)
    assert not wrong
    return count, found


def test_a_sample_of_the_operator_tests_gives_equal_rows_apart_and_joined() -> None:
    count, _ = ran(sample())
    assert count >= SAMPLE_PROVED


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_operator_tests_give_equal_rows_apart_and_joined() -> None:
    count, _ = ran(operators.cases())
    assert count >= ALL_PROVED
