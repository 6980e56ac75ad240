"""Objects of a stream, followed from frame to frame and counted at lines and in zones. Pure.

Tracking is ByteTrack (Zhang et al., arXiv:2110.06864), with the Kalman filter of DeepSORT: centre, aspect, height and
their velocities. That filter's covariance is four blocks of a value and its velocity: no value measures another one.
States are never changed in place: a request that fails on its way leaves those of its stream as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gateway.common.domain.pipeline import TrackStep
from gateway.common.domain.tensor import Array
from gateway.serving.pipelines.slices import Slices
from gateway.serving.tasks.views import FAR

OBJECTS_LIMIT = 500
"""Most detections of a frame that are followed, those with the best scores, and most tracks of a stream."""
FIRST, SECOND, UNCONFIRMED, DUPLICATE = 0.2, 0.5, 0.3, 0.85
"""Overlaps (IoU, with the score but in SECOND) above which boxes may be one object, and two tracks are."""
BEGIN = 0.1
"""How much more than `high` the score of a new object must be; for a very large `high` half of what is left to 1."""
SIZE_SHARE, SPEED_SHARE = 1 / 20, 1 / 160
"""Deviation of places and of speeds, in heights of the box."""
ASPECT, ASPECT_SPEED, ASPECT_SEEN = 1e-2, 1e-5, 1e-1
NEW, NEW_SPEED = np.array([2, 2, 1, 2]), np.array([10, 10, 1, 10])
"""Factors of these for a new object."""
PLACE, SPEED, SURE, MIXED, SURE_SPEED = (slice(begin, begin + 4) for begin in range(0, 20, 4))
ID, BORN, SEEN, FIELDS = 20, 21, 22, 23
"""Columns of tracks: place, speed, variance of both and between them, number (0: unconfirmed), first and last frame."""


@dataclass(frozen=True, slots=True)
class Tracks:
    """Tracks of a stream after `frame` frames: an array [n, FIELDS]. `following`: the next number."""

    frame: int = 0
    following: int = 1
    table: Array = field(default_factory=lambda: np.zeros((0, FIELDS)))

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return self.table.nbytes


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """StreamCounts of a stream: totals [lines, 2] of crossings, and objects by number.

    Columns of `table`: number, place, frame in which it was last seen, and since when it is in each zone (NaN: it is
    not).
    """

    frame: int
    totals: Array
    table: Array

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return self.totals.nbytes + self.table.nbytes

    def moved(self, by_s: float) -> StreamCounts:
        """Return the counts with times of another clock."""
        table = self.table.copy()
        table[:, 4:] += by_s
        return replace(self, table=table)


@dataclass(frozen=True, slots=True)
class CountedPlaces:
    """Lines [lines, 2, 2] and zones [points, 2], in the units of the points that are counted.

    An object that was not seen in more than `lost` frames is forgotten; until then it keeps its way, and its stay in a
    zone.
    """

    lines: Array
    zones: Sequence[Array]
    lost: int


def follow(state: Tracks, boxes: Array, scores: Array, step: TrackStep) -> Slices[tuple[Tracks, Array, Array]]:
    """Follow the boxes [n, 4] of one frame. Return the tracks then, and of each box its number (0: none) and frames."""
    frame, table, boxes, scores = state.frame + 1, _predicted(state), boxes.astype(float), scores.astype(float)
    with np.errstate(invalid="ignore"):
        placed = np.clip(boxes, -FAR, FAR)
        large = (placed[:, 2:] - placed[:, :2] > 1e-6).all(axis=1)
        usable = np.flatnonzero(np.isfinite(boxes).all(axis=1) & np.isfinite(scores) & large & (scores >= step.low))
    # In one order, whatever that of the model is.
    usable = usable[np.lexsort((*placed[usable].T[::-1], -scores[usable]))][:OBJECTS_LIMIT]
    placed, found = placed[usable], np.minimum(scores[usable], 1.0)
    measured, is_high, overlaps = _measured(placed), found >= step.high, overlap(_boxes(table), placed)
    weighted, known, seen = overlaps * found, table[:, ID] > 0, table[:, SEEN] == frame - 1
    matches, free = np.full(len(placed), -1), np.ones(len(table), bool)
    for similar, limit, tracks, some in (
        (weighted, FIRST, known, is_high),
        (overlaps, SECOND, known & seen, ~is_high),
        (weighted, UNCONFIRMED, ~known, is_high),
    ):
        rows, columns = np.flatnonzero(tracks & free), np.flatnonzero(some & (matches < 0))
        if len(rows) and len(columns):
            pairs, places = yield from assigned(similar[np.ix_(rows, columns)] - limit)
            matches[columns[places]], free[rows[pairs]] = rows[pairs], False
    hit = np.flatnonzero(matches >= 0)
    table[matches[hit]] = _corrected(table[matches[hit]], measured[hit])
    table[matches[hit], SEEN] = frame
    begins = np.flatnonzero((matches < 0) & (found >= min(step.high + BEGIN, (1 + step.high) / 2)))
    matches[begins] = np.arange(len(table), len(table) + len(begins))
    table = np.concatenate((table, _born(measured[begins], frame)))
    # A new object is confirmed in its second frame, those of the first frame at once.
    sure = np.flatnonzero(matches >= 0)
    sure = sure[(table[matches[sure], ID] == 0) & ((table[matches[sure], BORN] < frame) | (frame == 1))]
    table[matches[sure], ID] = np.arange(state.following, state.following + len(sure))
    kept = ((table[:, ID] > 0) & (frame - table[:, SEEN] <= step.lost)) | (table[:, SEEN] == frame)
    kept &= ~_duplicates(table, kept & (table[:, ID] > 0), frame)
    kept[np.argsort(-np.where(kept, table[:, SEEN], -1), kind="stable")[OBJECTS_LIMIT:]] = False
    numbers, frames = np.zeros((2, len(boxes)), np.int64)
    there = matches >= 0
    there[there] = kept[matches[there]]
    shown, tracks = usable[there], table[matches[there]]
    numbers[shown], frames[shown] = tracks[:, ID], frame - tracks[:, BORN] + 1
    return Tracks(frame, state.following + len(sure), table[kept]), numbers, frames


def _predicted(state: Tracks) -> Array:
    """Return a copy of the tracks with the places that they have in the next frame."""
    table: Array = state.table.copy()
    table[table[:, SEEN] < state.frame, 7] = 0.0  # the height of what is lost stays
    place, speed = _deviations(table[:, 3])
    table[:, PLACE] += table[:, SPEED]
    table[:, SURE] += 2 * table[:, MIXED] + table[:, SURE_SPEED] + place**2
    table[:, MIXED] += table[:, SURE_SPEED]
    table[:, SURE_SPEED] += speed**2
    return table


def _corrected(table: Array, measured: Array) -> Array:
    """Return tracks with what was measured of them."""
    noise, _ = _deviations(table[:, 3])
    noise[:, 2] = ASPECT_SEEN
    scale, error = table[:, SURE] + noise**2, measured - table[:, PLACE]
    gain, speed_gain = table[:, SURE] / scale, table[:, MIXED] / scale
    table[:, PLACE] += gain * error
    table[:, SPEED] += speed_gain * error
    table[:, SURE_SPEED] -= speed_gain * table[:, MIXED]
    table[:, MIXED] -= gain * table[:, MIXED]
    table[:, SURE] -= gain * table[:, SURE]
    return table


def _born(measured: Array, frame: int) -> Array:
    table = np.zeros((len(measured), FIELDS))
    place, speed = _deviations(measured[:, 3])
    table[:, PLACE], table[:, SURE], table[:, SURE_SPEED] = measured, (place * NEW) ** 2, (speed * NEW_SPEED) ** 2
    table[:, BORN] = table[:, SEEN] = frame
    return table


def _deviations(heights: Array) -> tuple[Array, Array]:
    """Return the standard deviations of places and speeds [n, 4]."""
    sizes = np.repeat(np.maximum(np.abs(heights), 1e-6)[:, np.newaxis], 4, axis=1)
    place, speed = sizes * SIZE_SHARE, sizes * SPEED_SHARE
    place[:, 2], speed[:, 2] = ASPECT, ASPECT_SPEED
    return place, speed


def _measured(boxes: Array) -> Array:
    """Return centre, aspect and height of boxes."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return np.column_stack((boxes[:, :2] + sides / 2, sides[:, 0] / sides[:, 1], sides[:, 1]))


def _boxes(table: Array) -> Array:
    """Return the boxes of tracks; one whose side became negative is empty."""
    heights = np.maximum(table[:, 3], 0.0)
    halves = np.column_stack((np.maximum(table[:, 2], 0.0) * heights, heights)) / 2
    return np.concatenate((table[:, :2] - halves, table[:, :2] + halves), axis=1)


def overlap(some: Array, others: Array) -> Array:
    """Return the IoU [n, m] of boxes [n, 4] and [m, 4]."""
    left, top, right, bottom = some.T[:, :, np.newaxis]
    x1, y1, x2, y2 = others.T[:, np.newaxis, :]
    width, height = np.minimum(right, x2) - np.maximum(left, x1), np.minimum(bottom, y2) - np.maximum(top, y1)
    common = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    whole = (right - left) * (bottom - top) + (x2 - x1) * (y2 - y1) - common
    return np.asarray(common / np.maximum(whole, 1e-300))


def _duplicates(table: Array, confirmed: Array, frame: int) -> Array:
    """Return which tracks are one with another: of one that is seen and one that is lost, the younger."""
    seen = np.flatnonzero(confirmed & (table[:, SEEN] == frame))
    lost = np.flatnonzero(confirmed & (table[:, SEEN] < frame))
    twice, boxes, age = np.zeros(len(table), bool), _boxes(table), table[:, SEEN] - table[:, BORN]
    first, second = np.nonzero(overlap(boxes[seen], boxes[lost]) > DUPLICATE)
    older = age[seen[first]] > age[lost[second]]
    twice[np.where(older, lost[second], seen[first])] = True
    return twice


def assigned(weights: Array) -> Slices[tuple[Array, Array]]:
    """Return rows and columns of the pairs with the greatest sum of weights. Pairs have weights above 0 only.

    Pairs that share no row or column with others are alone; each group of others that do is solved by itself.
    """
    count, others = weights.shape
    rows, columns = np.nonzero(weights > 0)
    alone = (np.bincount(rows, minlength=count)[rows] == 1) & (np.bincount(columns, minlength=others)[columns] == 1)
    pairs = [np.stack((rows[alone], columns[alone]))]
    rows, columns = rows[~alone], columns[~alone]
    groups = np.arange(count + others)
    while (groups[rows] != groups[count + columns]).any():
        least = np.minimum(groups[rows], groups[count + columns])
        np.minimum.at(groups, rows, least)
        np.minimum.at(groups, count + columns, least)
    for group in np.unique(groups[rows]):
        some, further = np.unique(rows[groups[rows] == group]), np.unique(columns[groups[count + columns] == group])
        inner = np.maximum(weights[np.ix_(some, further)], 0.0)
        if is_high := len(some) > len(further):
            inner = inner.T
        chosen = yield from _greatest(inner)
        places = np.flatnonzero(inner[np.arange(len(inner)), chosen] > 0)
        found = (chosen[places], places) if is_high else (places, chosen[places])
        pairs.append(np.stack((some[found[0]], further[found[1]])))
    first, second = np.concatenate(pairs, axis=1)
    return first, second


def _greatest(weights: Array) -> Slices[Array]:
    """Return the column of each row, each column once, so that the sum of the weights [n, m ≥ n] is the greatest.

    Shortest augmenting paths, as in Crouse, "On implementing 2D rectangular assignment algorithms", 2016.
    """
    count, others = weights.shape
    costs = -weights
    row_price, column_price = np.zeros(count), np.zeros(others)
    column_of, row_of = np.full(count, -1), np.full(others, -1)
    for begin in range(count):
        shortest, before = np.full(others, np.inf), np.zeros(others, int)
        left, least, row, visited = np.ones(others, bool), 0.0, begin, list[int]()
        while row >= 0:
            visited.append(row)
            length = costs[row] - column_price + (least - row_price[row])
            better = left & (length < shortest)
            shortest[better], before[better] = length[better], row
            column = int(np.argmin(np.where(left, shortest, np.inf)))
            least, left[column], row = float(shortest[column]), False, int(row_of[column])
        row_price[begin] += least
        row_price[visited[1:]] += least - shortest[column_of[visited[1:]]]
        column_price[~left] -= least - shortest[~left]
        while True:
            row = int(before[column])
            row_of[column], column_of[row], column = row, column, int(column_of[row])
            if row == begin:
                break
        yield
    return column_of


def count_objects(
    state: StreamCounts | None, numbers: Array, points: Array, at_s: float, places: CountedPlaces
) -> tuple[StreamCounts, Array, Array, Array]:
    """Count the objects of one frame, with numbers [n] and points [n, 2], at a time in seconds.

    Return the counts then, crossings [lines, 2] (in, out), objects in each zone, and the longest stay of these in
    seconds.
    """
    lines, zones = places.lines, places.zones
    if state is None:
        state = StreamCounts(0, np.zeros((len(lines), 2), np.int64), np.zeros((0, 4 + len(zones))))
    frame, table, order = state.frame + 1, state.table, np.argsort(numbers, kind="stable")
    numbers, points = numbers[order], points[order]
    _, known, now = np.intersect1d(table[:, 0], numbers, assume_unique=True, return_indices=True)
    crossings = _crossings(table[known, 1:3], points[now], lines)
    placed = np.clip(points, 0.0, np.nextafter(1.0, 0.0))  # a foot on the lower or right edge is in what ends there
    inside = np.array([within(placed, zone) for zone in zones], bool).reshape(len(zones), len(points))
    since = np.full((len(points), len(zones)), np.nan)
    since[now] = table[known, 4:]
    since = np.where(inside.T, np.where(np.isnan(since), at_s, since), np.nan)
    stays = np.max(np.where(inside.T, at_s - since, 0.0), axis=0, initial=0.0)
    fresh = np.column_stack((numbers, points, np.full(len(points), frame), since))
    remembered = ~np.isin(table[:, 0], numbers) & (frame - table[:, 3] <= places.lost)
    table = np.concatenate((table[remembered], fresh))
    if len(table) > OBJECTS_LIMIT:
        table = table[-OBJECTS_LIMIT:].copy()  # a part would keep the whole
    return StreamCounts(frame, state.totals + crossings, table), crossings, inside.sum(axis=1), stays


def _crossings(before: Array, after: Array, lines: Array) -> Array:
    """Return how many ways cross each line: from the left of it, seen from its first point to its second, and back."""
    begin, way = lines[:, :1], lines[:, 1:] - lines[:, :1]
    sides = [way[..., 0] * (at - begin)[..., 1] - way[..., 1] * (at - begin)[..., 0] for at in (before, after)]
    left, right = sides[0] < 0, sides[1] < 0
    with np.errstate(all="ignore"):
        share = (sides[0] / (sides[0] - sides[1]))[..., np.newaxis]
        meets = before + share * (after - before) - begin
        place = np.sum(meets * way, axis=-1) / np.sum(way * way, axis=-1)
        on_it = (left != right) & (place >= 0) & (place <= 1)
    return np.column_stack(((on_it & left).sum(axis=1), (on_it & right).sum(axis=1)))


def within(points: Array, corners: Array) -> Array:
    """Return which points [n, 2] are in a polygon [m, 2], by the number of its sides right of them (even: outside)."""
    x, y = points.T[:, :, np.newaxis]
    (x1, y1), (x2, y2) = corners.T, np.roll(corners, -1, axis=0).T
    with np.errstate(all="ignore"):
        right = ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return np.asarray(right.sum(axis=1) % 2 == 1)
