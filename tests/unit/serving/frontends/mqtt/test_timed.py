"""Times and sequence numbers that sensors send: what no window can hold is refused, and named."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.timed import sample_timing, sequences_of, times_of
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.contents import timestamp
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from tests.simulators.inference import identity

TIME = MqttTime(path="t", sequence="n")
MESSAGE = Message("a", b"", wall_ns=1_800_000_000 * 10**9)
numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(numbers, numbers)
def test_stamps_fit_64_bits_or_are_refused(time_ns: float, number: float) -> None:
    stamps = np.array([[time_ns, number]])
    for read in (lambda: times_of(TIME, stamps, MESSAGE), lambda: sequences_of(TIME, stamps)):
        try:
            (found,) = read()
        except RequestError:
            continue
        assert np.array([found], np.int64)[0] == found


@pytest.mark.parametrize("number", [1.5, 2.0**54, -0.25, float("nan")])
def test_a_sequence_number_that_is_no_integer_is_refused(number: float) -> None:
    with pytest.raises(RequestError, match="path 'n' finds a number that is no integer"):
        sequences_of(TIME, np.array([[0.0, number]]))


@pytest.mark.parametrize(("time_ns", "text"), [(-1e18, "1938-04-24T22:13:20.000Z"), (0.0, "1970-01-01T00:00:00.000Z")])
def test_times_before_1970_are_taken(time_ns: float, text: str) -> None:
    (found,) = times_of(TIME, np.array([[time_ns, 0.0]]), MESSAGE)
    assert timestamp(found) == text


@given(st.integers(-(10**18), 10**19))
def test_a_time_is_written_in_whole_milliseconds(wall_ns: int) -> None:
    text = timestamp(wall_ns)
    assert len(text) == len("1970-01-01T00:00:00.000Z")
    read = datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert read == timedelta(milliseconds=wall_ns // 1_000_000)


@pytest.mark.parametrize("time_ns", [-9e18, 9e18])
def test_every_time_that_is_taken_can_be_written(time_ns: float) -> None:
    (found,) = times_of(TIME, np.array([[time_ns, 0.0]]), Message("a", b"", wall_ns=int(9e18)))
    assert timestamp(found)


def test_a_rate_that_is_not_known_is_no_rate_to_resample_to() -> None:
    route = MqttRoute("r", ("t",), "m", time=MqttTime(path="t", resample=True), channel=(MqttChannel("v"),))
    with pytest.raises(RequestError, match="has no rate_hz to resample to"):
        sample_timing(route, identity(Datatype.FP32))
