"""Joins by time against a list of all samples and numpy.interp, whatever order samples come in."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.fitting import window_shape
from gateway.serving.frontends.mqtt.inbound.timed import NEVER_NS, join_rules
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from gateway.serving.frontends.mqtt.windows.joining import GRID_LIMIT_ROWS
from gateway.serving.frontends.mqtt.windows.rings import Complete, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import (
    ChannelRules,
    GapPolicy,
    JoinRules,
    Sample,
    SampleTiming,
    SessionRules,
)
from gateway.serving.frontends.mqtt.windows.sensors import Windows
from tests.simulators.inference import identity

NONE, HELD, ZERO = ChannelRules(), ChannelRules(held_ns=20), ChannelRules(zero=True)
Track = list[tuple[int, float]]
Stream = list[tuple[int, int, float]]
"""Channel, time and value of each sample."""


def sample(channels: int, place: int, time_ns: int, value: float, *, arrived: int = 0) -> Sample:
    row = np.full(channels, np.nan, np.float32)
    row[place] = value
    return Sample(row, time_ns, arrived)


def windows(rules: JoinRules, lateness_ns: int = 1_000, size: int = 1, **timing: object) -> Windows:
    made = SampleTiming(lateness_ns=lateness_ns, join=rules, pending_limit_rows=1_000, **timing)  # type: ignore[arg-type]
    return Windows(WindowShape(size, len(rules.channels), size), 10, NEVER_NS, timing=made)


def joined(target: Windows, stream: Stream) -> list[Complete]:
    channels = target.shape.channels
    samples = (sample(channels, *one) for one in stream)
    found = list(target.put("a", samples, now_ns=1, wall_ns=1))
    return [*found, *(one for _, one in target.expire())]


def rows_of(found: list[Complete]) -> list[tuple[int, list[float]]]:
    return [(one.ended_ns, one.rows[0].tolist()) for one in found]


# ---- the reference -------------------------------------------------------------------------------------------------
def value_at(track: Track, time_ns: int, rules: JoinRules) -> float | None:
    """Return the value of a channel near a time, or None, by its definition."""
    before = [one for one in track if one[0] <= time_ns]
    after = [one for one in track if one[0] >= time_ns]
    if rules.linear:
        if not before or not after:
            return None
        near = time_ns - before[-1][0] <= rules.tolerance_ns >= after[0][0] - time_ns
        if not near:
            return None
        return float(np.interp(time_ns, [before[-1][0], after[0][0]], [before[-1][1], after[0][1]]))
    ranked = sorted(track, key=lambda one: (abs(one[0] - time_ns), one[0]))
    return ranked[0][1] if ranked and abs(ranked[0][0] - time_ns) <= rules.tolerance_ns else None


def fallback(track: Track, time_ns: int, rules: ChannelRules) -> float | None:
    if rules.zero:
        return 0.0
    before = [one for one in track if 0 < time_ns - one[0] <= rules.held_ns]
    return before[-1][1] if before else None


def reference(stream: Stream, rules: JoinRules) -> list[tuple[int, list[float]]]:
    tracks: dict[int, Track] = defaultdict(list)
    for place, time_ns, value in stream:
        if time_ns not in [known for known, _ in tracks[place]]:
            tracks[place].append((time_ns, value))
    for track in tracks.values():
        track.sort()
    times = [time_ns for time_ns, _ in tracks[rules.lead]]
    if rules.interval_ns:
        every = [time_ns for _, time_ns, _ in stream]
        times = list(range(min(every), max(every) + 1, rules.interval_ns))
    rows = []
    for time_ns in times:
        near = [value_at(tracks[place], time_ns, rules) for place in range(len(rules.channels))]
        values = [
            fallback(tracks[place], time_ns, rules.channels[place]) if value is None else value
            for place, value in enumerate(near)
        ]
        if None not in values and any(value is not None for value in near):
            rows.append((time_ns, [float(np.float32(value)) for value in values if value is not None]))
    return rows


streams = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(-9, 9).map(float)), min_size=1, max_size=40
)
channels = st.lists(st.sampled_from([NONE, HELD, ZERO]), min_size=3, max_size=3).map(tuple)
joins = st.builds(
    JoinRules,
    channels,
    st.integers(0, 2),
    st.integers(0, 12),
    linear=st.booleans(),
    interval_ns=st.sampled_from([0, 7]),
)


@given(streams, joins)
def test_rows_are_those_of_a_list_of_all_samples(stream: Stream, rules: JoinRules) -> None:
    """The earliest sample comes first, as none is older than the first row of a grid."""
    stream.insert(0, stream.pop(stream.index(min(stream, key=lambda one: one[1]))))
    found, expected = rows_of(joined(windows(rules), stream)), reference(stream, rules)
    assert [time_ns for time_ns, _ in found] == [time_ns for time_ns, _ in expected]
    for (_, values), (_, wanted) in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-6)


@given(streams, joins)
def test_rows_do_not_depend_on_how_long_samples_wait(stream: Stream, rules: JoinRules) -> None:
    """In the order of their times, samples wait for nothing but the tolerance."""
    stream.sort(key=lambda one: one[1])
    assert rows_of(joined(windows(rules, rules.tolerance_ns + 1), stream)) == rows_of(joined(windows(rules), stream))


@given(streams, joins, st.integers(0, 40))
def test_a_join_goes_on_in_another_process_as_if_there_were_one(stream: Stream, rules: JoinRules, end: int) -> None:
    whole, first, second = windows(rules, 15), windows(rules, 15), windows(rules, 15)
    samples = [sample(3, *one) for one in stream]
    expected = rows_of([*whole.put("a", samples, now_ns=1, wall_ns=1), *(one for _, one in whole.expire())])
    samples = [sample(3, *one) for one in stream]
    found = list(first.put("a", samples[:end], now_ns=1, wall_ns=1))
    for sensor, ring, state in first.states():
        second.restore(sensor, ring.seen_ns, ring.state(), state)
        found += second.put(sensor, state.waiting, now_ns=1, wall_ns=1)
    found += second.put("a", samples[end:], now_ns=1, wall_ns=1)
    assert rows_of([*found, *(one for _, one in second.expire())]) == expected


# ---- single cases --------------------------------------------------------------------------------------------------
THREE = JoinRules((NONE, NONE, NONE), 0, 5)


def test_a_row_waits_no_longer_than_its_own_sample() -> None:
    target = windows(THREE, lateness_ns=10)
    assert not list(
        target.put("a", [sample(3, 0, 100, 1, arrived=7), sample(3, 1, 102, 2, arrived=8)], now_ns=8, wall_ns=1)
    )
    list(target.put("a", [sample(3, 2, 97, 3, arrived=9)], now_ns=9, wall_ns=1))
    assert target.due_ns() == 17
    assert rows_of([one for _, one in target.expire(17)]) == [(100, [1, 2, 3])]


def test_a_row_that_lacks_a_channel_is_left_out_and_counted() -> None:
    target = windows(THREE)
    assert joined(target, [(0, 100, 1.0), (1, 100, 2.0), (2, 106, 3.0)]) == []
    assert target.counters == Counter(rows_unjoined=1)


def test_a_row_that_is_left_out_is_a_gap_of_the_window() -> None:
    target = windows(JoinRules((NONE, NONE), 0, 0), size=2, interval_ns=10, gap=GapPolicy.MARK)
    stream = [(place, at, 1.0) for at in (10, 20, 30) for place in (0, 1) if (place, at) != (1, 20)]
    (found,) = joined(target, stream)
    assert (found.started_ns, found.ended_ns, found.missing_rows) == (10, 30, 1)


def test_gaps_of_joined_rows_are_filled() -> None:
    target = windows(JoinRules((NONE, NONE), 0, 0), size=3, interval_ns=10, gap=GapPolicy.FILL_LINEAR)
    (found,) = joined(target, [(place, at, float(at)) for at in (10, 30) for place in (0, 1)])
    assert found.rows.tolist() == [[10, 10], [20, 20], [30, 30]]


def test_a_sample_of_a_time_that_is_there_is_a_repetition() -> None:
    target = windows(JoinRules((NONE, NONE), 0, 5))
    found = joined(target, [(0, 10, 1.0), (1, 10, 2.0), (0, 10, 1.0), (1, 10, 2.0)])
    assert rows_of(found) == [(10, [1, 2])]
    assert target.counters["samples_duplicate"] == 2


def test_a_clock_that_is_set_back_begins_the_join_again() -> None:
    target = windows(JoinRules((NONE, HELD), 0, 5), lateness_ns=1, restart_ns=100)
    found = joined(target, [(0, 1_000, 1.0), (1, 1_001, 2.0), (0, 10, 3.0), (0, 20, 4.0), (1, 21, 5.0)])
    assert rows_of(found) == [(1_000, [1, 2]), (20, [4, 5])]
    assert target.counters["windows_restarted"] == 1


def test_late_samples_change_no_row() -> None:
    target = windows(JoinRules((NONE, HELD), 0, 5), lateness_ns=1)
    found = joined(target, [(1, 9, 1.0), (0, 10, 1.0), (0, 20, 2.0), (1, 19, 3.0), (0, 30, 4.0), (1, 12, 9.0)])
    assert target.counters["samples_late"] == 1
    assert rows_of(found) == [(10, [1, 1]), (20, [2, 3]), (30, [4, 3])]


def test_sessions_may_be_joined() -> None:
    target = windows(JoinRules((NONE, NONE), 0, 2), size=4, session=SessionRules(50))
    stream = [(place, at + place, float(at)) for at in (0, 10, 20, 100, 110) for place in (0, 1)]
    assert [one.rows[:, 0].tolist() for one in joined(target, stream)] == [[0, 10, 20], [100, 110]]


@pytest.mark.parametrize("interval_ns", [0, 1])
def test_a_gap_of_centuries_is_no_neighbourhood_and_makes_few_rows(interval_ns: int) -> None:
    target = windows(JoinRules((NONE, HELD), 0, 5, interval_ns=interval_ns), lateness_ns=1)
    far = 9_000_000_000_000_000_000
    found = joined(target, [(1, -far, 1.0), (0, far - 1, 2.0), (1, far, 3.0)])
    assert rows_of(found)[0] == (far - 1, [2, 3])
    assert target.counters["rows_unjoined"] <= GRID_LIMIT_ROWS


def test_what_is_kept_of_a_channel_is_bounded_by_what_waits() -> None:
    target = windows(JoinRules((NONE, HELD), 0, 5), lateness_ns=10)
    for at in range(0, 5_000, 2):
        list(target.put("a", [sample(2, 1, at, 1.0)], now_ns=at, wall_ns=1))
    (window,) = target._timed.values()
    assert window._joiner is not None
    assert max(len(track._times) for track in window._joiner._tracks) <= 7


# ---- settings ------------------------------------------------------------------------------------------------------
XY = (MqttChannel("x.v", name="x"), MqttChannel("y.v", name="y", missing="last", max_age_s=2.0))
TIME = MqttTime("t", lateness_s=1.0, join="nearest", join_tolerance_s=0.5, join_lead="y")


def test_rules_are_in_the_order_of_the_model() -> None:
    route = MqttRoute("r", ("t",), "m", channel=XY, time=TIME)
    held = ChannelRules(held_ns=2_000_000_000)
    assert join_rules(route, None, 10) == JoinRules((NONE, held), 1, 500_000_000)
    assert join_rules(route, [1, 0], 10) == JoinRules((held, NONE), 0, 500_000_000)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: MqttTime("t", lateness_s=1.0, join="middle"), "join"),
        (lambda: MqttTime(lateness_s=1.0, join="linear"), "join"),
        (lambda: MqttTime("t", join="linear"), "lateness_s"),
        (lambda: MqttTime("t", sequence="n", lateness_s=1.0, join="linear"), "sequence"),
        (lambda: MqttTime("t", lateness_s=1.0, join="linear", join_tolerance_s=2.0), "join_tolerance_s"),
        (lambda: MqttTime("t", lateness_s=1.0, join_tolerance_s=0.5), "join_tolerance_s"),
        (lambda: MqttTime("t", join_lead="x"), "join_lead"),
        (lambda: MqttTime("t", lateness_s=1.0, join="linear", join_lead="x", resample=True), "join_lead"),
        (lambda: MqttRoute("r", ("t",), "m", channel=XY[:1], time=TIME), "channel"),
        (lambda: MqttRoute("r", ("t",), "m", channel=(MqttChannel("a"), MqttChannel("b")), time=TIME), "time"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert refused.value.key == key


def test_a_join_needs_windows() -> None:
    route = MqttRoute("r", ("t",), "m", channel=XY, time=TIME)
    with pytest.raises(RequestError, match="set size_rows, 1 for single rows"):
        window_shape(route, identity(Datatype.FP32))
