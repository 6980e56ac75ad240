"""Quotas: the bucket's arithmetic, requests under way, a bounded table of callers, and the door that asks them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.engine.quotas import SECOND_NS, Quotas
from gateway.serving.engine.settings import EngineSettings, QueueSettings, QuotaSettings
from tests.simulators.engine_rig import Rig, manifest, measured, request
from tests.simulators.sink import Recorder

TEN = QuotaSettings("*", requests_per_s=10.0, burst=3)


def quotas_of(*quotas: QuotaSettings, callers: int = 8) -> Quotas:
    return Quotas(quotas, callers=callers, retry_after_s=2.5)


def refusal(quotas: Quotas, caller: str, now_ns: int) -> RequestError | None:
    try:
        quotas.enter(caller, now_ns)
    except RequestError as error:
        return error
    return None


def test_a_burst_then_the_rate_and_when_to_come_back() -> None:
    quotas = quotas_of(TEN)
    assert [refusal(quotas, "ann", 0) for _ in range(3)] == [None] * 3
    error = refusal(quotas, "ann", 0)
    assert error is not None
    assert error.fault is Fault.OVERLOADED
    assert "caller 'ann' sends more than 10 requests a second" in error.message
    assert error.retry_after_s == pytest.approx(0.1)
    assert refusal(quotas, "ann", SECOND_NS // 10) is None
    assert refusal(quotas, "ann", SECOND_NS // 10) is not None


@given(
    st.floats(0.5, 1000.0),
    st.integers(0, 20),
    st.lists(st.integers(0, 2 * SECOND_NS), min_size=1, max_size=60),
)
def test_never_more_than_the_burst_and_what_the_rate_earns(rate: float, burst: int, pauses_ns: list[int]) -> None:
    quota = QuotaSettings("*", requests_per_s=rate, burst=burst)
    quotas, now_ns, passed = quotas_of(quota), 0, 0
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        error = refusal(quotas, "ann", now_ns)
        passed += error is None
        assert passed <= quota.allowance + rate * now_ns / SECOND_NS + 1e-6
        if error is not None:
            assert error.retry_after_s is not None
            after_ns = now_ns + int(error.retry_after_s * SECOND_NS) + 1000
            assert refusal(quotas, "ann", after_ns) is None, "who comes back as told is let in"
            now_ns, passed = after_ns, passed + 1


def test_requests_under_way_are_bounded() -> None:
    quotas = quotas_of(QuotaSettings("ann", in_flight=2))
    accounts = [quotas.enter("ann", 0) for _ in range(2)]
    error = refusal(quotas, "ann", 0)
    assert error is not None
    assert (error.retry_after_s, "has 2 requests under way" in error.message) == (2.5, True)
    assert accounts[0] is not None
    accounts[0].in_flight -= 1
    assert refusal(quotas, "ann", 0) is None


def test_tokens_of_text_are_paid_afterwards_and_come_back_in_a_minute() -> None:
    quotas = quotas_of(QuotaSettings("*", tokens_per_minute=60.0))
    account = quotas.enter("ann", 0, writes=True)
    assert account is not None
    account.texts.left -= 150  # one long text: nobody cuts it
    with pytest.raises(RequestError, match="has used 60 tokens of text a minute") as refused:
        quotas.enter("ann", 0, writes=True)
    assert (refused.value.by_quota, refused.value.retry_after_s) == ("tokens", pytest.approx(91.0))
    assert quotas.enter("ann", 0) is account, "other models are not meant"
    assert quotas.enter("bob", 0, writes=True) is not account
    with pytest.raises(RequestError):
        quotas.enter("ann", 90 * SECOND_NS, writes=True)
    assert quotas.enter("ann", 91 * SECOND_NS, writes=True) is account
    quotas.enter("ann", 10**6 * SECOND_NS, writes=True)
    assert account.texts.left == 60.0


def test_a_callers_own_quota_goes_before_everybodys() -> None:
    quotas = quotas_of(QuotaSettings("ann", in_flight=2), QuotaSettings("*", in_flight=1))
    assert [refusal(quotas, caller, 0) is None for caller in ("ann", "ann", "bob", "bob")] == [True, True, True, False]


def test_who_has_no_quota_is_not_remembered() -> None:
    quotas = quotas_of(QuotaSettings("ann", in_flight=1))
    assert quotas.enter("bob", 0) is None
    assert len(quotas) == 0


def test_the_longest_idle_is_forgotten_and_nobody_who_is_busy() -> None:
    quotas = quotas_of(QuotaSettings("*", requests_per_s=1.0, in_flight=1), callers=2)
    busy, idle = quotas.enter("busy", 0), quotas.enter("idle", 1)
    assert busy is not None
    assert idle is not None
    idle.in_flight -= 1
    assert refusal(quotas, "new", 2) is None
    assert len(quotas) == 2
    assert refusal(quotas, "busy", 2) is not None
    assert refusal(quotas, "newer", 2) is None, "nobody is idle: the table grows with the requests under way"
    assert len(quotas) == 3


@pytest.mark.asyncio
async def test_the_door_counts_a_refusal_and_gives_back_what_ended() -> None:
    rig = Rig(EngineSettings(quota=(QuotaSettings("ann", in_flight=1),)))
    rig.trials["a"] = measured(10.0)
    await rig.serve(manifest())
    sink = Recorder()
    rig.engine.submit(request(caller="ann"), sink, 1)
    with pytest.raises(RequestError):
        rig.engine.submit(request(caller="ann"), sink, 2)
    rig.engine.submit(request(caller="bob"), sink, 3)
    await sink.until(2)
    rig.engine.submit(request(caller="ann"), sink, 4).cancel()
    with pytest.raises(RequestError, match="expected"):
        rig.engine.submit(request(caller="ann", width=2), sink, 5)
    rig.engine.submit(request(caller="ann"), sink, 6)
    await sink.until(3)
    counted = rig.engine.statistics("m")[0]
    assert (counted.drops, counted.fail.count) == ({"quota": 1, "cancelled": 1}, 2)
    await asyncio.wait_for(rig.engine.infer(request(caller="ann")), 5)
    await rig.repository.close()


@pytest.mark.asyncio
async def test_a_submission_that_fails_in_our_hands_counts_no_longer_as_under_way() -> None:
    rig = Rig(EngineSettings(quota=(QuotaSettings("ann", in_flight=1),)))
    await rig.serve(manifest())
    whole = request(caller="ann")
    torn = dataclasses.replace(whole, inputs={"x": None})
    with pytest.raises(AttributeError):
        rig.engine.submit(torn, Recorder(), 1)
    await asyncio.wait_for(rig.engine.infer(whole), 5)
    await rig.repository.close()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: QuotaSettings("ann"), "limits.quota.caller: bounds nothing"),
        (lambda: QuotaSettings("", in_flight=1), "must name a caller"),
        (lambda: QuotaSettings("ann", in_flight=1, burst=3), "needs requests_per_s"),
        (lambda: QueueSettings(""), "must name a model"),
        (lambda: QueueSettings("m", policy="newest"), "must be one of reject, oldest, latest"),
        (lambda: QueueSettings("m", delay_us=2_000_000), "must be at most 1000000"),
        (lambda: QueueSettings("m", priority=0), "must be at least 1"),
        (lambda: EngineSettings(queue=(QueueSettings("m"), QueueSettings("m"))), "limits.queue: names 'm' twice"),
        (lambda: EngineSettings(quota=(TEN, TEN)), "limits.quota: names '\\*' twice"),
        (lambda: EngineSettings(image_pixels=0), "limits.image_pixels: must be at least 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(build: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build()  # type: ignore[operator]


def test_a_model_without_a_queue_of_its_own_has_the_common_bound() -> None:
    limits = EngineSettings(queue_requests=7, queue=(QueueSettings("m", "latest"), QueueSettings("n", requests=3)))
    waits = [limits.queue_of(model) for model in ("m", "n", "o")]
    assert [(queue.policy, queue.requests) for queue in waits] == [("latest", 7), ("reject", 3), ("reject", 7)]
