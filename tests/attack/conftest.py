"""Bound of one attack: a quarter of a minute on an idle machine, and more than a minute on a busy one."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Allow an attack five minutes, unless it has a bound of its own."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(300))
