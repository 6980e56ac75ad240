"""Types and questions that the tests of detection share."""

from __future__ import annotations

from collections.abc import Callable

from gateway.common.domain.inventory import Accelerator, Inventory

Probed = Callable[..., Inventory]
"""Builds a tree of the catalogue, or of given entries, and probes it."""

Only = Callable[..., Accelerator]
"""The same for a tree with exactly one accelerator."""


def rung(accelerator: Accelerator, name: str) -> tuple[bool | None, str, str]:
    """Return (ok, detail, remedy) of a rung."""
    return next((found.ok, found.detail, found.remedy) for found in accelerator.rungs if found.name == name)
