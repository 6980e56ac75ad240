"""Evidence of a release: read strictly, since slots and digests become paths."""

from __future__ import annotations

import pytest

from gateway.common.domain.activation import Activation, activation_document, read_activation

WHOLE = Activation("reader", "models/acme/reader/2/release", "a" * 64, ("only",), ("b" * 64, "c" * 64), 3)


def test_what_is_written_is_read() -> None:
    assert read_activation(activation_document(WHOLE)) == WHOLE
    assert WHOLE.version == "2"


@pytest.mark.parametrize(
    "change",
    [
        {"slot": "../reader"},
        {"slot": "a/b"},
        {"slot": ""},
        {"release": "../../etc/passwd"},
        {"release": "A" * 64},
        {"evidence": ["b" * 64, "x"]},
        {"root": 0},
        {"root": True},
        {"target": "models/release"},
        {"variants": [1]},
    ],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_activation(activation_document(WHOLE) | change)
