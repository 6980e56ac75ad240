"""Results in a few words, for a line that is shown for each frame."""

import pytest

from gateway.serving.cli.result_view import in_short


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"detections": [{"label": "car"}, {"label": "person"}, {"label": "car"}]}, "2 car, 1 person"),
        ({"detections": []}, "nothing"),
        ({"text": "AB 123", "score": 0.9}, "AB 123"),
        ({"label": "cat", "score": 0.875}, "cat 0.88"),
        ({"classes": [{"label": "road", "share": 0.5}, {"label": "sky", "share": 0.25}]}, "road 0.50, sky 0.25"),
        ({"score": 0.25, "anomaly": True, "vector": [1, 2]}, "score 0.25, anomaly 1, vector"),
    ],
)
def test_a_result_in_short(document, words):
    assert in_short(document) == words
