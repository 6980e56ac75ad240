"""Windows against a model that keeps every sample in a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.windows.rings import Ring, RingState, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import SensorState
from gateway.serving.frontends.mqtt.windows.sensors import Windows

shapes = st.builds(WindowShape, st.integers(1, 7), st.integers(1, 3), st.integers(1, 9))
batches = st.lists(st.integers(1, 12), max_size=25)


def rows(start: int, count: int, channels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    values = np.arange(start, start + count, dtype=np.float32)
    return np.repeat(values[:, None], channels, axis=1)


def expected_starts(total: int, shape: WindowShape) -> list[int]:
    ends = range(shape.size_rows, total + 1, shape.hop_rows)
    return [end - shape.size_rows for end in ends]


@given(shapes, batches)
def test_each_window_holds_the_right_samples_in_order(shape: WindowShape, counts: list[int]) -> None:
    windows, seen, found = Windows(shape, 4, 10**12), 0, []
    for count in counts:
        found += windows.append("a", rows(seen, count, shape.channels), now_ns=1, wall_ns=seen)
        seen += count
    assert [int(window.rows[0, 0]) for window in found] == expected_starts(seen, shape)
    for window in found:
        assert (window.rows == rows(int(window.rows[0, 0]), shape.size_rows, shape.channels)).all()


@given(shapes, st.integers(1, 60))
def test_a_window_says_when_its_first_and_last_sample_came(shape: WindowShape, total: int) -> None:
    windows = Windows(shape, 4, 10**12)
    for index in range(total):
        for window in windows.append("a", rows(index, 1, shape.channels), now_ns=1, wall_ns=1000 + index):
            assert window.started_ns == 1000 + int(window.rows[0, 0])
            assert window.ended_ns == 1000 + int(window.rows[-1, 0])


@given(shapes, st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=30))
def test_sensors_are_independent(shape: WindowShape, turns: list[tuple[str, int]]) -> None:
    together, seen = Windows(shape, 3, 10**12), dict.fromkeys("abc", 0)
    for sensor, count in turns:
        starts = together.append(sensor, rows(seen[sensor], count, shape.channels), now_ns=1, wall_ns=1)
        before = expected_starts(seen[sensor], shape)
        seen[sensor] += count
        assert [int(window.rows[0, 0]) for window in starts] == expected_starts(seen[sensor], shape)[len(before) :]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 5))
def test_never_more_sensors_than_allowed_and_the_recent_stay(turns: list[int], limit: int) -> None:
    windows, recent = Windows(WindowShape(2, 1, 2), limit, 10**12), []
    evicted = 0
    for sensor in turns:
        evicted += sensor not in recent and len(recent) == limit
        recent = [*(other for other in recent if other != sensor), sensor][-limit:]
        list(windows.append(str(sensor), rows(0, 1, 1), now_ns=1, wall_ns=1))
        assert len(windows) == len(recent)
    assert windows.counters["sensors_evicted"] == evicted


def test_a_silent_sensor_begins_anew() -> None:
    windows = Windows(WindowShape(3, 1, 1), 4, idle_expiry_ns=10)
    assert not list(windows.append("a", rows(0, 2, 1), now_ns=1, wall_ns=1))
    assert not list(windows.append("a", rows(5, 2, 1), now_ns=12, wall_ns=1))
    (window,) = windows.append("a", rows(7, 1, 1), now_ns=22, wall_ns=1)
    assert window.rows[:, 0].tolist() == [5, 6, 7]
    assert windows.counters["windows_restarted"] == 1


def test_a_window_is_the_receivers_to_keep() -> None:
    windows = Windows(WindowShape(2, 1, 1), 4, 10**12)
    first = next(windows.append("a", rows(0, 2, 1), now_ns=1, wall_ns=1))
    assert len(list(windows.append("a", rows(5, 2, 1), now_ns=1, wall_ns=1))) == 2
    assert first.rows[:, 0].tolist() == [0, 1]


def state_of(shape: WindowShape, count: int) -> RingState:
    ring = Ring(shape, 100)
    list(ring.append(rows(0, count, shape.channels), 1))
    return ring.state()


@given(shapes, shapes, st.integers(0, 20))
def test_the_content_of_a_ring_of_another_shape_is_refused_or_makes_no_difference(
    before: WindowShape, after: WindowShape, count: int
) -> None:
    ring = Ring(after)
    try:
        ring.restore(state_of(before, count))
    except ValueError:
        return
    found = [int(one.rows[0, 0]) for one in ring.append(rows(count, 30, after.channels), 1)]
    assert found == list(range(found[0], found[-1] + 1, after.hop_rows))
    assert found[0] in range(max(0, count - after.size_rows), count + after.hop_rows)


def test_windows_are_numbered_by_their_last_row() -> None:
    ring = Ring(WindowShape(3, 1, 2), 100)
    assert [one.number for one in ring.append(rows(0, 7, 1), 1)] == [103, 105, 107]


def test_no_more_sensors_are_restored_than_allowed() -> None:
    windows = Windows(WindowShape(3, 1, 1), 2, 10**12)
    for name in "abc":
        windows.restore(name, 1, state_of(windows.shape, 1), SensorState())
    assert [name for name, _, _ in windows.states()] == ["b", "c"]
