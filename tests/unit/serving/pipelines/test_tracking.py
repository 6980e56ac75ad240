"""Tracking and counting: numbers that stay with their objects, crossings of lines, objects and stays in zones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.pipeline import TrackStep
from gateway.common.domain.tensor import Array
from gateway.serving.pipelines import tracking
from gateway.serving.pipelines.slices import whole_of
from gateway.serving.pipelines.tracking import (
    CountedPlaces,
    StreamCounts,
    Tracks,
    assigned,
    count_objects,
    follow,
    within,
)

STEP = TrackStep("t", "d")


def at(*centres: tuple[float, float], width: float = 40.0, height: float = 80.0) -> Array:
    """Return boxes of one size."""
    middle = np.array(centres, np.float64).reshape(-1, 2)
    half = np.array([width, height]) / 2
    return np.concatenate((middle - half, middle + half), axis=1)


class Follower:
    """Tracks of one stream."""

    def __init__(self, **changes: Any) -> None:
        self.state, self.step = Tracks(), TrackStep("t", "d", **changes)

    def see(self, boxes: Array, scores: float | Sequence[float] | Array = 0.9) -> list[int]:
        """Return the numbers of the boxes of the next frame."""
        self.state, numbers, self.frames = whole_of(
            follow(self.state, boxes, np.broadcast_to(np.asarray(scores, float), len(boxes)), self.step)
        )
        return [int(number) for number in numbers]


def test_objects_in_motion_keep_their_numbers() -> None:
    one = Follower()
    for frame in range(50):
        assert one.see(at((100 + 9 * frame, 200), (900 - 7 * frame, 500 + 2 * frame))) == [1, 2]
        assert one.frames.tolist() == [frame + 1] * 2


def test_objects_that_cross_keep_their_numbers() -> None:
    one, seen = Follower(), list[list[int]]()
    for frame in range(60):  # they pass each other, 100 pixels apart in y, with overlapping boxes
        seen.append(one.see(at((100 + 10 * frame, 300), (690 - 10 * frame, 350))))
    assert seen == [[1, 2]] * 60


@pytest.mark.parametrize(("gap", "number"), [(1, 1), (5, 1), (10, 1), (11, 2), (40, 2)])
def test_an_object_that_is_lost_for_some_frames_keeps_its_number(gap: int, number: int) -> None:
    one = Follower(lost=10)
    for frame in range(20):
        assert one.see(at((100 + 3 * frame, 200), (1000, 900)))[0] == 1
    for _ in range(gap):
        assert one.see(at((1000, 900))) == [2]
    begin = 100 + 3 * (20 + gap)
    found = [one.see(at((begin + 3 * frame, 200), (1000, 900)))[0] for frame in range(2)]
    assert found == ([1, 1] if number == 1 else [0, 3])  # a new one is confirmed in its second frame
    assert len(one.state.table) == 2


def test_low_scores_go_on_but_begin_nothing() -> None:
    one = Follower()
    assert one.see(at((100, 100), (500, 500)), [0.9, 0.3]) == [1, 0]
    assert one.see(at((101, 100), (500, 500)), [0.2, 0.3]) == [1, 0]
    assert one.see(at((102, 100), (500, 500)), [0.05, 0.55]) == [0, 0]  # below `low`, and too low to begin
    assert one.see(at((103, 100), (500, 500)), [0.3, 0.55]) == [0, 0]  # a lost one needs a high score
    assert one.see(at((104, 100), (500, 500)), [0.9, 0.61]) == [1, 0]
    assert one.see(at((105, 100), (500, 500)), [0.9, 0.51]) == [1, 2]


def test_what_is_seen_once_is_no_object() -> None:
    one, rng = Follower(), np.random.default_rng(5)
    one.see(at())
    for frame in range(100):
        assert one.see(at((5_000 * (frame + 1), 100 * rng.random()))) == [0]
    assert len(one.state.table) == 1
    assert one.state.following == 1


@pytest.mark.parametrize(("born", "numbers"), [(1, [2, 2]), (5, [0, 1])])
def test_of_two_tracks_in_one_place_the_older_remains(born: int, numbers: list[int]) -> None:
    lost, seen = Follower(), Follower()
    for _ in range(3):
        lost.see(at((100, 100)))
    for _ in range(6):
        seen.see(at((102, 100)))
    table = np.concatenate((lost.state.table, seen.state.table))
    table[1, tracking.ID], table[1, tracking.BORN] = 2, born
    lost.state = Tracks(6, 3, table)
    assert [lost.see(at((102, 100)))[0] for _ in range(2)] == numbers
    assert lost.state.table[:, tracking.ID].tolist() == numbers[1:]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_values_are_no_detections(bad: float) -> None:
    one = Follower()
    boxes = at((100, 100), (300, 300), (500, 500), (700, 700))
    boxes[1, 2] = bad
    boxes[3] = boxes[3, [2, 3, 0, 1]]  # right of the left side is none
    assert one.see(boxes, [0.9, 0.9, bad, 0.9]) == [1, 0, 0, 0]
    assert np.isfinite(one.state.table).all()


def test_places_far_outside_of_the_picture_are_followed() -> None:
    one = Follower()
    for frame in range(30):
        numbers = one.see(np.array([[-9e30, -9e30, 9e30, 9e30], [-500 - frame, -90, -460 - frame, -10]]), 3.0)
    assert numbers == [1, 2]
    assert np.isfinite(one.state.table).all()


def test_large_frames_are_bounded_by_the_best_scores() -> None:
    rng = np.random.default_rng(0)
    centres = rng.uniform(0, 100_000, (10_000, 2))
    scores = rng.permutation(np.linspace(0.7, 0.9, 10_000))
    one = Follower()
    for _ in range(2):
        numbers: Array = np.array(one.see(at(*map(tuple, centres)), scores), int)
        assert len(one.state.table) <= tracking.OBJECTS_LIMIT
    best = np.argsort(-scores)[: tracking.OBJECTS_LIMIT]
    assert set(np.flatnonzero(numbers)) == set(best)
    for _ in range(3):  # further objects, while those are lost
        one.see(at(*map(tuple, rng.uniform(200_000, 300_000, (600, 2)))), 0.9)
        assert len(one.state.table) <= tracking.OBJECTS_LIMIT


def test_a_state_is_not_changed_in_place() -> None:
    one = Follower()
    one.see(at((100, 100), (300, 300)))
    before = one.state.table.copy()
    again = one.state
    whole_of(follow(again, at((104, 100), (600, 300)), np.array([0.9, 0.9]), STEP))
    np.testing.assert_array_equal(again.table, before)


FRAMES = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([0.05, 0.2, 0.45, 0.5, 0.7, 0.95]))),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(FRAMES, st.randoms(use_true_random=False), st.integers(0, 4))
def test_numbers_are_unique_and_the_order_of_detections_changes_nothing(frames: Any, random: Any, lost: int) -> None:
    one, other, ended, seen = Follower(lost=lost), Follower(lost=lost), set[int](), set[int]()
    highest = 0
    for frame in frames:
        found = list({(x, y): (x * 15.0, y * 15.0, score) for x, y, score in frame}.values())
        order = list(range(len(found)))
        random.shuffle(order)
        boxes, scores = at(*[each[:2] for each in found]), [each[2] for each in found]
        numbers = one.see(boxes, scores or 0.9)
        shuffled = other.see(boxes[order], [scores[n] for n in order] or 0.9)
        assert [numbers[n] for n in order] == shuffled
        np.testing.assert_array_equal(one.state.table, other.state.table)
        named = [number for number in numbers if number]
        assert len(set(named)) == len(named)
        assert all(number <= highest or number not in seen for number in named)
        assert not ended & set(named)
        seen |= set(named)
        highest = max([highest, *named])
        ended = seen - {int(number) for number in one.state.table[:, tracking.ID]}
    assert one.state.following == other.state.following


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_an_assignment_has_the_greatest_sum(rows: int, columns: int, data: Any) -> None:
    values = st.lists(st.integers(-3, 9), min_size=rows * columns, max_size=rows * columns)
    weights = np.array(data.draw(values), np.float64).reshape(rows, columns)
    some, others = whole_of(assigned(weights))
    assert len(set(some.tolist())) == len(some) == len(set(others.tolist()))
    assert (weights[some, others] > 0).all()
    wide = np.maximum(weights if rows <= columns else weights.T, 0)
    best = max(wide[range(len(wide)), way].sum() for way in permutations(range(wide.shape[1]), len(wide)))
    assert weights[some, others].sum() == best


def test_a_large_assignment_is_divided_into_slices() -> None:
    weights = np.random.default_rng(1).random((60, 80)) + 0.1
    slices = sum(1 for _ in assigned(weights))
    assert slices == 60


# ---- counting --------------------------------------------------------------------------------------------------------
DOOR = np.array([[[0.2, 0.5], [0.8, 0.5]]])
YARD = np.array([[0.5, 0.5], [1.0, 0.5], [1.0, 1.0], [0.5, 1.0]])


class Counter:
    """StreamCounts of one stream: one line (`DOOR`, from left to right) and one zone (`YARD`)."""

    def __init__(self, lost: int = 3) -> None:
        self.state: StreamCounts | None = None
        self.places, self.at_s = CountedPlaces(DOOR, [YARD], lost), 100.0

    def see(self, **points: tuple[float, float]) -> tuple[list[int], int, float]:
        """Return crossings, objects in the yard and their longest stay, of a frame a second later: `n3` is number 3."""
        self.at_s += 1.0
        numbers = np.array([int(name[1:]) for name in points], np.int64)
        places = np.array(list(points.values()), np.float64).reshape(-1, 2)
        self.state, crossings, inside, stays = count_objects(self.state, numbers, places, self.at_s, self.places)
        return crossings[0].tolist(), int(inside[0]), float(stays[0])


def test_a_foot_on_an_edge_of_the_image_is_in_a_zone_that_ends_there() -> None:
    one = Counter()
    found = one.see(n1=(1.0, 0.7), n2=(0.7, 1.0), n3=(1.0, 1.0), n4=(0.5, 1.0), n5=(0.4, 1.0), n6=(1.0, 0.4))
    assert found[1] == 4
    one.see(n1=(1.0, 0.7))
    assert one.see(n1=(0.9, 0.7))[2] == 2.0


def test_bytes_of_states_are_those_of_all_arrays() -> None:
    one = Counter(lost=100)
    for begin in range(0, 3 * tracking.OBJECTS_LIMIT, 200):
        one.see(**{f"n{begin + number}": (0.6, 0.7) for number in range(200)})
    assert one.state is not None
    assert one.state.table.base is None or one.state.table.base.nbytes == one.state.table.nbytes
    assert len(one.state.table) == tracking.OBJECTS_LIMIT
    assert one.state.nbytes == one.state.totals.nbytes + one.state.table.nbytes


def test_crossings_have_a_direction() -> None:
    one = Counter()
    assert one.see(n1=(0.3, 0.4), n2=(0.4, 0.7))[0] == [0, 0]
    assert one.see(n2=(0.4, 0.6), n1=(0.3, 0.45))[0] == [0, 0]
    assert one.see(n1=(0.3, 0.55), n2=(0.4, 0.45))[0] == [1, 1]  # down is in: right of the way from left to right
    assert one.see(n1=(0.3, 0.6), n2=(0.4, 0.3))[0] == [0, 0]
    assert one.see(n1=(0.3, 0.4), n2=(0.4, 0.2))[0] == [0, 1]
    assert one.state is not None
    assert one.state.totals.tolist() == [[1, 2]]


def test_a_way_around_a_line_is_no_crossing() -> None:
    one = Counter()
    for point in [(0.1, 0.4), (0.1, 0.6), (0.5, 0.6), (0.9, 0.6), (0.9, 0.4), (0.5, 0.4)]:
        assert one.see(n1=point)[0] == [0, 0]
    assert one.see(n1=(0.5, 0.5))[0] == [1, 0]  # on the line is beyond it
    assert one.see(n1=(0.5, 0.5))[0] == [0, 0]
    assert one.see(n1=(0.5, 0.49))[0] == [0, 1]


def test_a_way_goes_on_after_frames_without_its_object() -> None:
    for gap, crossings in ((3, [1, 0]), (4, [0, 0])):
        one = Counter(lost=3)
        one.see(n1=(0.5, 0.4))
        for _ in range(gap):
            assert one.see() == ([0, 0], 0, 0.0)
        assert one.see(n1=(0.5, 0.6))[0] == crossings


def test_stays_in_a_zone_have_holes() -> None:
    one = Counter()
    assert one.see(n1=(0.6, 0.6)) == ([0, 0], 1, 0.0)
    assert one.see(n1=(0.6, 0.7), n2=(0.7, 0.7)) == ([0, 0], 2, 1.0)
    assert one.see(n2=(0.7, 0.7)) == ([0, 0], 1, 1.0)  # the longest stay of those that are inside now
    assert one.see() == ([0, 0], 0, 0.0)
    assert one.see(n1=(0.6, 0.7)) == ([0, 0], 1, 4.0)  # not seen is not left
    assert one.see(n1=(0.4, 0.7)) == ([0, 0], 0, 0.0)
    assert one.see(n1=(0.6, 0.7)) == ([0, 0], 1, 0.0)  # it was outside meanwhile


def test_counted_objects_are_bounded() -> None:
    one = Counter(lost=1000)
    for frame in range(5):
        one.see(**{f"n{300 * frame + n + 1}": (0.1, 0.1) for n in range(300)})
    assert one.state is not None
    assert len(one.state.table) == tracking.OBJECTS_LIMIT
    assert set(range(1201, 1501)) <= set(one.state.table[:, 0].astype(int))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=20))
def test_entries_and_exits_of_a_closed_way_are_equal(way: Any) -> None:
    whole = Counter()
    whole.places = CountedPlaces(np.array([[[-9.0, 0.5], [9.0, 0.5]]]), [YARD], 3)
    for point in [*way, way[0]]:
        whole.see(n1=point)
    assert whole.state is not None
    entered, left = whole.state.totals[0]
    assert entered == left
    flips = sum((a[1] < 0.5) != (b[1] < 0.5) for a, b in zip(way, [*way[1:], way[0]], strict=True))
    assert entered + left == flips


def test_a_polygon_need_not_be_convex() -> None:
    horseshoe = np.array([[0, 0], [0.9, 0], [0.9, 0.9], [0.6, 0.9], [0.6, 0.3], [0.3, 0.3], [0.3, 0.9], [0, 0.9]])
    points = np.array([[0.1, 0.5], [0.45, 0.5], [0.7, 0.5], [0.45, 0.1], [0.95, 0.5], [-1, 0.1]])
    assert within(points, horseshoe).tolist() == [True, False, True, True, False, False]
    assert within(points[:0], horseshoe).tolist() == []
