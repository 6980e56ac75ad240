"""Refusals as RFC 9457 has them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleet.controller.problems import ProblemError, plain_problem, problem_of
from fleet.problem_types import OF_FAULT
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import HTTP_STATUS


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_the_status_of_the_contract(fault: Fault) -> None:
    problem = problem_of(RequestError(fault, "what to do"))
    assert problem.status == HTTP_STATUS[fault]
    document = json.loads(replace(problem, instance="urn:uuid:1").body)
    assert document.pop("title")
    told = {"status": problem.status, "detail": "what to do", "fault": fault.value, "instance": "urn:uuid:1"}
    assert document == told | {"type": OF_FAULT[fault].uri}


def test_headers_that_help() -> None:
    assert problem_of(RequestError(Fault.UNAUTHENTICATED, "")).headers == (("www-authenticate", "Bearer"),)
    assert problem_of(RequestError(Fault.OVERLOADED, "", retry_after_s=2.1)).headers == (("retry-after", "3"),)
    assert problem_of(RequestError(Fault.UNAVAILABLE, "")).headers == (("retry-after", "5"),)
    assert problem_of(RequestError(Fault.INVALID, "")).headers == ()


def test_a_conflict_is_said_by_who_knows_it() -> None:
    assert problem_of(RequestError(Fault.INVALID, "changed meanwhile"), 409).status == 409


@pytest.mark.parametrize(
    ("status", "fault"), [(408, "EXPIRED"), (429, "OVERLOADED"), (405, "INVALID"), (500, "INTERNAL")]
)
def test_statuses_no_fault_has(status: int, fault: str) -> None:
    for problem in (problem_of(ProblemError(status, "why", retry_after_s=0)), plain_problem(status, "why")):
        assert (problem.status, problem.fault.value) == (status, fault)


def test_what_peers_wrote_into_it_is_cut_and_stays_text() -> None:
    document = json.loads(plain_problem(404, "\ud800" + "x" * 5000).body)
    assert len(document["detail"]) == 1024
    assert document["detail"][0] == "?"
    assert "instance" not in document
