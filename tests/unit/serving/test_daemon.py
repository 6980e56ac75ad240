"""The daemon's own decisions, without a gateway around it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.serving.config import Config
from gateway.serving.daemon import Daemon
from gateway.serving.fleet_settings import Life


class Heard:
    """Record of what the service manager was told."""

    def __init__(self):
        self.said = []

    def reloading(self):
        self.said.append("RELOADING")

    def ready(self, _status):
        self.said.append("READY")


@pytest.fixture
def daemon(tmp_path):
    def broken(_config):
        raise RuntimeError("nobody foresaw this")

    async def refine():
        pass

    daemon = Daemon(Config(), Life(tmp_path), broken)
    daemon._notify, daemon._up = Heard(), True
    daemon._repository = SimpleNamespace(index=list, refine=refine)
    return daemon


@pytest.mark.asyncio
async def test_a_reload_that_breaks_ends_for_the_service_manager_too(daemon):
    daemon._begin_reloading()
    await daemon._reloading
    assert daemon._notify.said == ["RELOADING", "READY"]


@pytest.mark.asyncio
async def test_a_hangup_while_it_stops_begins_nothing(daemon):
    daemon._stop.set()
    daemon._begin_reloading()
    daemon._begin_refining()
    await asyncio.sleep(0)
    assert daemon._notify.said == []
    assert daemon._refining is None
