"""Refusals: counted by resource, class of caller and reason; the log names a caller once in a period."""

from __future__ import annotations

import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.pools import OTHERS, Pools, RefusalCounters
from gateway.serving.frontends.settings import ShareSettings
from tests.simulators.constants import settings_with

SETTINGS = settings_with(ShareSettings(), log_period_s=10.0, log_callers=2)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_one_line_a_caller_and_period(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalCounters(SETTINGS, clock)
    for _ in range(5):
        refusals.count("grpc calls", "token:north", "caller")
    for name in ("user:1", "user:2", "user:3"):
        refusals.count("grpc calls", name, "caller")
    named = [record.getMessage() for record in caplog.records]
    assert [sum(name in line for line in named) for name in ("token:north", "user:1", OTHERS)] == [1, 1, 1]
    caplog.clear()
    clock.now_s = 10.0
    refusals.count("grpc calls", "token:north", "total")
    assert [record.getMessage() for record in caplog.records] == [
        "caller refused: token:north, 4 more times in the last period",
        f"caller refused: {OTHERS}, 1 more times in the last period",
        "caller refused: token:north, resource grpc calls, reason total",
    ]
    counted = {tuple(sample.labels.values()): sample.value for sample in refusals.samples()}
    assert counted == {
        ("grpc calls", "token", "caller"): 5,
        ("grpc calls", "token", "total"): 1,
        ("grpc calls", "user", "caller"): 3,
    }


def test_a_refusal_says_whose_share_is_used_up_and_which_settings_bound_it() -> None:
    pool = Pools(ShareSettings(caller_percent=50, local_percent=10)).make("grpc calls", "[grpc] max_calls", 20)
    pool.require("address:192.0.2.1", local=False, amount=10)
    with pytest.raises(RequestError) as caught:
        pool.require("address:192.0.2.1", local=False)
    assert caught.value.fault is Fault.OVERLOADED
    assert caught.value.message == (
        "too many grpc calls by address:192.0.2.1: the share of one caller is 10 of 20 ([grpc] max_calls, [shares]); "
        "try again later"
    )
    pool.require("address:198.51.100.1", local=False, amount=6)
    with pytest.raises(RequestError, match="of 20, 2 are for callers on this device, and 2 for identified ones"):
        pool.require("address:203.0.113.1", local=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("caller_percent", 0),
        ("caller_percent", 101),
        ("local_percent", 100),
    ],
)
def test_shares_that_nothing_passes_are_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        ShareSettings(**{key: value})  # type: ignore[arg-type]
