"""Session windows against a list: they end by silence or at their size, whatever order samples come in."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.fitting import padding, window_shape
from gateway.serving.frontends.mqtt.inbound.timed import NEVER_NS
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime, MqttWindow
from gateway.serving.frontends.mqtt.windows.rings import Complete, Padding, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import GapPolicy, Rows, Sample, SampleTiming, SessionRules
from gateway.serving.frontends.mqtt.windows.sensors import Windows
from tests.simulators.inference import VARIANT
from tests.simulators.mqtt_gateway import motion

S = 1_000_000_000
GAP_S = 5
Found = list[list[float]]


def sample(number: float, *, at: float, sequence: int | None = None, arrived: float | None = None) -> Sample:
    came = at if arrived is None else arrived
    return Sample(np.array([number], np.float32), round(at * S), round(came * S), sequence)


def windows(timing: SampleTiming, size: int = 4, *, by_sequence: bool = False) -> Windows:
    return Windows(WindowShape(size, 1, size), 10, NEVER_NS, timing=timing, by_sequence=by_sequence)


def put(target: Windows, *samples: Sample, at: float = 1) -> list[Complete]:
    return list(target.put("a", samples, now_ns=round(at * S), wall_ns=1))


def values(found: list[Complete]) -> Found:
    return [one.rows[:, 0].tolist() for one in found]


def expected(times: list[int], gap: int, size: int, least: int) -> tuple[Found, int]:
    """Return the windows of samples whose values are their places, and how many were too short: a list of lists."""
    sessions: list[list[float]] = []
    for place, at in enumerate(times):
        if not place or at - times[place - 1] > gap:
            sessions.append([])
        sessions[-1].append(float(place))
    parts = [each[begin : begin + size] for each in sessions for begin in range(0, len(each), size)]
    return [part for part in parts if len(part) >= least], sum(len(part) < least for part in parts)


steps = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@given(steps, st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_sessions_are_those_of_a_list(distances: list[int], gap: int, size: int, least: int) -> None:
    least, times = min(least, size), np.cumsum(distances).tolist()
    for event_time in (True, False):
        target = windows(SampleTiming(event_time=event_time, session=SessionRules(gap * S, least)), size)
        found = [one for place, at in enumerate(times) for one in put(target, sample(place, at=at), at=at + 1)]
        found += [one for _, one in target.expire()]
        whole, short = expected(times, gap, size, least)
        assert (values(found), target.counters["sessions_short"]) == (whole, short)
        assert target.due_ns() is None


@given(steps, st.integers(1, 6), st.randoms(use_true_random=False), st.booleans())
def test_samples_that_wait_for_earlier_ones_are_in_their_session(distances, gap: int, chance, by_sequence) -> None:
    times = [0, *np.cumsum([each + 1 for each in distances]).tolist()]
    timing = SampleTiming(lateness_ns=1_000 * S, session=SessionRules(gap * S))
    target = windows(timing, 3, by_sequence=by_sequence)
    later = list(range(1, len(times)))
    chance.shuffle(later)
    found = put(target, sample(0, at=0, sequence=0))
    for place in later:
        found += put(target, sample(place, at=times[place], sequence=place if by_sequence else None))
    found += [one for _, one in target.expire()]
    assert values(found) == expected(times, gap, 3, 1)[0]


@given(steps, st.integers(1, 6))
def test_a_timer_ends_sessions_as_the_next_sample_does(distances: list[int], gap: int) -> None:
    times = np.cumsum(distances).tolist()
    target = windows(SampleTiming(event_time=False, session=SessionRules(gap * S)), 3)
    found: list[Complete] = []
    for place, at in enumerate(times):
        found += [one for _, one in target.expire(round((at - 0.5) * S))]
        found += put(target, sample(place, at=at), at=at)
    end_ns = target.due_ns()
    assert end_ns is not None
    assert end_ns <= (times[-1] + gap) * S
    found += [one for _, one in target.expire((times[-1] + gap) * S)]
    assert values(found) == expected(times, gap, 3, 1)[0]


def test_silence_counts_from_the_last_arrival_and_late_samples_may_still_come() -> None:
    target = windows(SampleTiming(lateness_ns=2 * S, session=SessionRules(GAP_S * S)))
    assert not put(target, sample(1, at=100, arrived=10), at=10)
    assert not list(target.expire(12 * S))
    assert not put(target, sample(2, at=101, arrived=11), at=11)
    assert not list(target.expire(18 * S - 1))
    assert values([one for _, one in target.expire(18 * S)]) == [[1, 2]]
    assert target.due_ns() is None


def test_a_sample_that_waits_is_due_before_the_end_of_its_session() -> None:
    target = windows(SampleTiming(lateness_ns=S, session=SessionRules(100 * S)), by_sequence=True)
    put(target, sample(1, at=1, sequence=1, arrived=10), at=10)
    assert target.due_ns() == 111 * S
    put(target, sample(3, at=2, sequence=3, arrived=11), at=11)
    assert target.due_ns() == 12 * S
    assert not list(target.expire(12 * S))
    assert target.due_ns() == 112 * S


@pytest.mark.parametrize("policy", [GapPolicy.RESET, GapPolicy.FILL_LINEAR])
def test_a_gap_that_begins_a_window_ends_a_session(policy: GapPolicy) -> None:
    timing = SampleTiming(S, gap=policy, fill_limit_rows=1, session=SessionRules(100 * S))
    target = windows(timing)
    found = put(target, *(sample(at, at=at) for at in (0, 1, 2, 9, 10)))
    assert values([*found, *(one for _, one in target.expire())]) == [[0, 1, 2], [9, 10]]
    assert target.counters == Counter()


def test_nothing_is_filled_in_between_sessions() -> None:
    timing = SampleTiming(S, gap=GapPolicy.FILL_LAST, session=SessionRules(3 * S))
    target = windows(timing, size=9)
    found = [*put(target, *(sample(at, at=at) for at in (0, 1, 3, 8, 9))), *(one for _, one in target.expire())]
    assert [(one.rows[:, 0].tolist(), one.missing_rows) for one in found] == [([0, 1, 1, 3], 1), ([8, 9], 0)]


def test_a_resampled_session_begins_with_its_first_sample() -> None:
    target = windows(SampleTiming(S, resample=True, session=SessionRules(3 * S)), size=9)
    times = (0, 0.5, 1.5, 2.5, 10.25, 11.5)
    found = [*put(target, *(sample(at, at=at) for at in times)), *(one for _, one in target.expire())]
    assert values(found) == [[0, 1, 2], [10.25, 11.25]]


def test_a_sensor_that_starts_again_ends_its_session() -> None:
    target = windows(SampleTiming(restart_ns=60 * S, session=SessionRules(GAP_S * S)))
    found = put(target, *(sample(at, at=at) for at in (1_000, 1_001, 900)))
    assert values(found) == [[1_000, 1_001]]


def test_sessions_have_numbers_of_their_own() -> None:
    target = windows(SampleTiming(session=SessionRules(GAP_S * S)), 2)
    found = [*put(target, *(sample(at, at=at) for at in (0, 1, 2, 20, 40))), *(one for _, one in target.expire())]
    assert [one.number for one in found] == [3, 4, 5, 6]


def test_a_session_of_exactly_its_size_leaves_nothing() -> None:
    target = windows(SampleTiming(session=SessionRules(GAP_S * S)), 2)
    assert values(put(target, *(sample(at, at=at) for at in (0, 1)))) == [[0, 1]]
    assert not list(target.expire())


# ---- padding, and models ------------------------------------------------------------------------------------------
@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from(["zero", "first", "last"]))
def test_padding_keeps_the_samples_and_repeats_what_it_says(count: int, more: int, pad: str) -> None:
    rows: Rows = np.arange(1, 2 * count + 1, dtype=np.float32).reshape(count, 2)
    made = Padding(count + more, pad).apply(rows).tolist()
    own = rows.tolist()
    added = {"zero": [0.0, 0.0], "first": own[0], "last": own[-1]}[pad]
    assert made == (own + [added] * more if pad == "last" else [added] * more + own)


def sequences(*shape: int, layout: str = "") -> ModelManifest:
    x, y = (TensorSpec(name, Datatype.FP32, shape, layout=layout) for name in "xy")
    return ModelManifest("m", "1", (x,), (y,), (VARIANT,))


def route(size_rows: int = 0, **window: object) -> MqttRoute:
    settings = MqttWindow(5.0, **window)  # type: ignore[arg-type]
    return MqttRoute("r", ("t",), "m", size_rows=size_rows, window=settings, channel=(MqttChannel("v"),))


@pytest.mark.parametrize(
    ("manifest", "size_rows", "pad", "shape", "padded"),
    [
        (motion(), 0, "", WindowShape(4, 3, 4), Padding(4, "zero")),
        (motion(), 3, "last", WindowShape(3, 3, 3), Padding(4, "last")),
        (sequences(-1, 8, 2), 0, "", WindowShape(8, 2, 8), Padding(8, "zero")),
        (sequences(-1, 2, 8, layout="NCL"), 0, "first", WindowShape(8, 2, 8), Padding(8, "first")),
        (sequences(-1, -1, 2), 50, "", WindowShape(50, 2, 50), None),
        (sequences(-1, -1, 2), 50, "zero", WindowShape(50, 2, 50), Padding(50, "zero")),
    ],
)
def test_a_session_has_the_rows_of_its_model(manifest, size_rows, pad, shape, padded) -> None:
    made = route(size_rows, pad=pad)
    assert window_shape(made, manifest) == shape
    assert padding(made, manifest, shape) == padded


@pytest.mark.parametrize(
    ("manifest", "made", "problem"),
    [
        (sequences(-1, -1, 2), route(), "set size_rows to the most rows of a session"),
        (motion(), route(5), "takes 4 rows; set size_rows to at most that"),
        (motion(), route(least_rows=5), "gets at most 4 rows; set least_rows"),
    ],
)
def test_a_session_that_the_model_cannot_take_is_refused(manifest, made: MqttRoute, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        window_shape(made, manifest)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: MqttWindow(pad="zero"), "pad"),
        (lambda: MqttWindow(5.0, pad="middle"), "pad"),
        (lambda: MqttWindow(least_rows=2), "least_rows"),
        (lambda: MqttWindow(5.0, least_rows=0), "least_rows"),
        (lambda: MqttRoute("r", ("t",), "m", hop_rows=2, window=MqttWindow(5.0)), "hop_rows"),
        (lambda: MqttRoute("r", ("t",), "m", idle_expiry_s=2, window=MqttWindow(5.0)), "idle_expiry_s"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert refused.value.key == key


def test_a_route_may_have_sessions_without_times() -> None:
    assert MqttRoute("r", ("t",), "m", window=MqttWindow(5.0), time=MqttTime()).window.has_sessions
