"""Diagrams of variants."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from gateway.workshop.making.plot import HEIGHT, WIDTH, Point, draw_svg, time_words

POINTS = [
    Point("onnx-fp32", "onnx", 21_900.0, 1.0, 12_150_158, True),
    Point("onnx-int8", "onnx", 14_600.0, 0.9639, 3_433_522, False),
    Point('<a & "b">', "other", 7.0, 0.99, 1, True),
]


@pytest.mark.parametrize(
    "points", [POINTS, POINTS[:1], [POINTS[0], POINTS[0]], [Point("x", "onnx", 0.0, 0.0, 0, True)]]
)
def test_every_variant_is_a_circle_inside_of_the_diagram(points: list[Point]) -> None:
    root = ET.fromstring(draw_svg(points, "m & n", "mAP < 1"))  # noqa: S314 - our own
    circles = [each for each in root if each.tag.endswith("circle")]
    assert len(circles) == len(points)
    for circle, point in zip(circles, points, strict=True):
        assert 0 < float(circle.get("cx", "")) < WIDTH
        assert 0 < float(circle.get("cy", "")) < HEIGHT
        assert circle[0].text == point.name
        assert (circle.get("fill") == "none") != point.is_kept


@pytest.mark.parametrize(("time_us", "words"), [(7.4, "7 µs"), (999.4, "999 µs"), (1500, "1.5 ms")])
def test_times_have_units(time_us: float, words: str) -> None:
    assert time_words(time_us) == words
