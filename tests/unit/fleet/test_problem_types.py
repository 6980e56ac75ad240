"""Types of problems: one table, from which every refusal takes its type."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fleet.controller.problems import ProblemError, plain_problem, problem_of
from fleet.problem_types import OF_FAULT, TYPES, of_status
from gateway.common.domain.errors import Fault, RequestError

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "fleet").rglob("*.py")) + sorted((ROOT / "gateway/common/wire").rglob("*.py"))
STATED = {"ProblemError", "plain_problem", "plain", "turn_away", "_plain"}
"""Functions whose first argument is the status of a refusal."""


def test_each_type_has_a_name_of_its_own() -> None:
    assert len({kind.name for kind in TYPES}) == len(TYPES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.name) for kind in TYPES)
    assert all(400 <= kind.status < 600 and kind.meaning and kind.remedy for kind in TYPES)


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_a_listed_type(fault: Fault) -> None:
    problem = problem_of(RequestError(fault, "why"))
    assert problem.type in {kind.uri for kind in TYPES}
    assert (problem.status, problem.fault) == (OF_FAULT[fault].status, fault)


def _stated_statuses() -> set[int]:
    """Return the statuses that the source writes down."""
    calls = (node for file in SOURCES for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    named = (call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) in STATED and call.args)
    values = (call.args[0].value for call in named if isinstance(call.args[0], ast.Constant))
    return {value for value in values if isinstance(value, int)}


def test_every_status_of_a_refusal_has_a_type() -> None:
    stated = _stated_statuses()
    assert {400, 405, 408, 429, 500, 503} <= stated
    assert {status: of_status(status).status for status in stated} == {status: status for status in stated}


def test_a_status_of_a_proxy_or_framework_gets_the_type_of_its_class() -> None:
    assert [of_status(status).name for status in (418, 507)] == ["invalid-request", "internal-error"]
    assert plain_problem(418, "why").status == 418


def test_a_type_is_named_where_the_status_has_several() -> None:
    kind = next(kind for kind in TYPES if kind.name == "request-in-progress")
    assert ProblemError(409, "why").problem.type == "/problems/conflict"
    assert ProblemError(409, "why", kind=kind).problem.type == kind.uri


def test_the_document_lists_the_table() -> None:
    listed = re.findall(r"^\| `(/problems/[a-z-]+)` \| (\d+) \| (.+?) \| (.+?) \|$", _document(), re.MULTILINE)
    assert listed == [(kind.uri, str(kind.status), kind.meaning, kind.remedy) for kind in TYPES]


def _document() -> str:
    return (ROOT / "fleet" / "PROBLEMS.md").read_text()
