"""What system tests share: one state folder, so that trials run once; one daemon a module; its log on failure."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.simulators import daemon as simulator
from tests.simulators.daemon import Daemon, golden, running

LOG_TAIL_CHARS = 6000


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several daemons may share a state folder (contracts.md): all tests' daemons do."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[Daemon]:
    """A daemon with the shipped models, on TCP."""
    with running(tmp_path_factory.mktemp("gateway"), state=state) as daemon:
        yield daemon


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failed test shows what the daemons of that moment wrote."""
    report = yield
    if report.failed:
        for daemon in simulator.LIVE:
            report.sections.append((f"log of the daemon in {daemon.folder}", daemon.log[-LOG_TAIL_CHARS:]))
    return report


@pytest.fixture(scope="session")
def digit_png() -> tuple[bytes, int]:
    """A golden digit as a PNG of 8×8 pixels (0..255 for 0..1), and its class."""
    rows = golden("meter-reader", 1)
    content = io.BytesIO()
    Image.fromarray((rows.rows[0, 0] * 255).round().astype(np.uint8)).save(content, "PNG")
    return content.getvalue(), int(rows.scores[0].argmax())
