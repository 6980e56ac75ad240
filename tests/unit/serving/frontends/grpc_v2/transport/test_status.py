"""The one table of wire codes, held against contracts and against what gRPC and HTTP define."""

from __future__ import annotations

import json
from http import HTTPStatus

import grpc
import pytest

from gateway.common.domain.errors import Fault
from gateway.common.domain.problem import HTTP_STATUS, MESSAGE_LIMIT_CHARS, error_text
from gateway.serving.frontends.grpc_v2.transport.replies import GRPC_STATUS
from gateway.serving.frontends.rest_v2.errors import RefusedResponse

CONTRACT = {
    "INVALID": ("INVALID_ARGUMENT", 400),
    "UNAUTHENTICATED": ("UNAUTHENTICATED", 401),
    "DENIED": ("PERMISSION_DENIED", 403),
    "NOT_FOUND": ("NOT_FOUND", 404),
    "TOO_LARGE": ("RESOURCE_EXHAUSTED", 413),
    "THROTTLED": ("RESOURCE_EXHAUSTED", 429),
    "OVERLOADED": ("UNAVAILABLE", 503),
    "EXPIRED": ("DEADLINE_EXCEEDED", 504),
    "UNAVAILABLE": ("UNAVAILABLE", 503),
    "UNSUPPORTED": ("UNIMPLEMENTED", 501),
    "INTERNAL": ("INTERNAL", 500),
}


def test_every_fault_stands_in_the_contract() -> None:
    assert {fault.value for fault in Fault} == set(CONTRACT)


@pytest.mark.parametrize("fault", Fault)
def test_the_codes_are_those_of_the_contract(fault: Fault) -> None:
    assert (GRPC_STATUS[fault], HTTP_STATUS[fault]) == CONTRACT[fault.value]
    assert GRPC_STATUS[fault] in grpc.StatusCode.__members__
    assert HTTPStatus(HTTP_STATUS[fault])


def test_an_error_text_is_bounded_and_can_always_be_encoded() -> None:
    assert error_text("short, \udcff") == "short, ?"
    long = error_text("ä" * 5000)
    assert (len(long), long[-1]) == (MESSAGE_LIMIT_CHARS, "…")
    assert json.loads(RefusedResponse(400, "ä" * 5000).body) == {"error": long}
