"""One front end's callers: counted, slowed and logged where they fail, and never kept out by others' failures."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from gateway.common.domain.access import FailureBounds, Security, read_tokens
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import METRICS, READ
from gateway.serving.frontends.authentication import LOG_PERIOD_NS, Authentication
from gateway.serving.frontends.peer import Peer

NAT = Peer(address="192.0.2.7")
TOKENS = read_tokens("ann secret-of-ann scopes=infer", "tokens")
SECURITY = Security(tokens=TOKENS, failures=FailureBounds(burst=2, per_s=0.25))


class Clock:
    now_ns = 10 * LOG_PERIOD_NS

    def __call__(self) -> int:
        return self.now_ns


def refusal(admit: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        admit()
    return refused.value


def counted(authentication: Authentication) -> dict[str, float]:
    assert all(sample.labels["frontend"] == "grpc" for sample in authentication.samples())
    return {sample.labels["reason"]: sample.value for sample in authentication.samples()}


def test_failures_of_an_address_are_slowed_and_a_good_token_passes() -> None:
    clock = Clock()
    authentication = Authentication("grpc", SECURITY, clock)
    said = [refusal(lambda: authentication.admit(NAT, "Bearer wrong")) for _ in range(3)]
    assert [error.fault for error in said] == [Fault.UNAUTHENTICATED, Fault.UNAUTHENTICATED, Fault.THROTTLED]
    assert said[-1].retry_after_s == 4.0
    assert authentication.admit(NAT, "Bearer secret-of-ann").name == "ann"
    assert refusal(lambda: authentication.admit(Peer(address="192.0.2.8"), None)).fault is Fault.UNAUTHENTICATED
    clock.now_ns += 4_000_000_000
    assert refusal(lambda: authentication.admit(NAT, "Bearer wrong")).fault is Fault.UNAUTHENTICATED
    assert counted(authentication) == {"unknown": 4, "throttled": 1, "missing": 1}


def test_scopes_are_counted_too() -> None:
    authentication = Authentication("grpc", SECURITY)
    assert authentication.admit(NAT, "Bearer secret-of-ann", READ).name == "ann"
    error = refusal(lambda: authentication.admit(NAT, "Bearer secret-of-ann", METRICS))
    assert (error.fault, "'ann' lacks the scope metrics" in error.message) == (Fault.DENIED, True)
    assert counted(authentication) == {"scope": 1}


def test_the_log_gets_one_line_a_period_and_no_token(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    authentication = Authentication("grpc", SECURITY, clock)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            with pytest.raises(RequestError):
                authentication.admit(Peer(address=f"192.0.2.{number}"), f"Bearer hidden-{number}")
        clock.now_ns += LOG_PERIOD_NS
        refusal(lambda: authentication.admit(NAT, None))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "1 authentications failed over grpc; the last from 192.0.2.0: token unknown"
    assert second == "100 authentications failed over grpc; the last from 192.0.2.7: token missing"


def test_new_bounds_begin_with_nothing_counted() -> None:
    authentication = Authentication("grpc", Security(tokens=TOKENS, failures=FailureBounds(burst=1, per_s=0.001)))
    for fault in (Fault.UNAUTHENTICATED, Fault.THROTTLED):
        assert refusal(lambda: authentication.admit(NAT, None)).fault is fault
    authentication.replace(SECURITY)
    assert refusal(lambda: authentication.admit(NAT, None)).fault is Fault.UNAUTHENTICATED
