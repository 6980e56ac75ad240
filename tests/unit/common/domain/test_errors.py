"""Errors: suggestions."""

from __future__ import annotations

import pytest

from gateway.common.domain.errors import suggest


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("lissen", ["listen", "hosts"], '; did you mean "listen"?'),
        ("LISTEN", ["listen"], '; did you mean "listen"?'),
        ("cuda", ["CUDAExecutionProvider", "CUDA"], '; did you mean "CUDA"?'),
        ("zebra", ["listen", "hosts"], ""),
        ("", ["listen"], ""),
        ("listen", [], ""),
    ],
)
def test_the_closest_known_word_is_suggested(word, known, said):
    assert suggest(word, known) == said
