"""Isolation of the tests of windows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.mqtt_windows import close_all


@pytest.fixture(autouse=True)
def journals_closed() -> Iterator[None]:
    """Close the journals that a test leaves: each has a thread and a file."""
    yield
    close_all()
