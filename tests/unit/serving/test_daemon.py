"""The daemon's own decisions, without a gateway around it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.config import Config, ModelsSettings
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

    def status(self, _text):
        self.said.append("STATUS")


class Slow:
    """Synchronisation that takes until `gate` is open."""

    def __init__(self, daemon):
        self.calls, self.begun, self.gate = [], asyncio.Event(), asyncio.Event()
        daemon._synchronise = self

    async def __call__(self, config, *, changed_only):
        self.calls.append("models" if changed_only else "configuration")
        self.begun.set()
        await self.gate.wait()
        if config.file == "refused":
            raise ConfigurationError("no such folder")


class Tokens:
    """Credentials that count how often they were renewed."""

    def __init__(self, daemon):
        self.renewed, self._renewed = 0, asyncio.Event()
        daemon._credentials = self

    async def renew(self, _config):
        self.renewed += 1
        self._renewed.set()

    async def again(self):
        """Wait until they are renewed."""
        await asyncio.wait_for(self._renewed.wait(), 10)
        self._renewed.clear()


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
async def test_a_hangup_renews_credentials_while_models_are_read(daemon):
    slow, tokens = Slow(daemon), Tokens(daemon)
    daemon._overrides = lambda config: config
    daemon._models_changed()
    await slow.begun.wait()
    for _ in range(2):
        daemon._begin_reloading()
        await tokens.again()
        await daemon._reloading
    assert daemon._notify.said == ["RELOADING", "RELOADING"]
    assert slow.calls == ["models"]
    slow.gate.set()
    await daemon._following
    assert slow.calls == ["models", "configuration"]
    assert daemon._notify.said == ["RELOADING", "RELOADING", "READY"]
    daemon._models_changed()
    await daemon._following
    assert daemon._notify.said[-1] == "STATUS"


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", ["configuration", "models"])
async def test_a_change_of_models_outlives_a_refused_reload(daemon, refused):
    slow, _ = Slow(daemon), Tokens(daemon)
    if refused == "models":
        daemon._overrides = lambda config: replace(config, file="refused")
    daemon._models_changed()
    await slow.begun.wait()
    daemon._models_changed()
    daemon._begin_reloading()
    await daemon._reloading
    slow.gate.set()
    await daemon._following
    assert slow.calls == ["models", *(["configuration"] if refused == "models" else []), "models"]
    assert daemon._notify.said == ["RELOADING", "READY"]


@pytest.mark.asyncio
async def test_the_folder_that_serves_is_watched_after_a_refused_reload_too(daemon, tmp_path):
    followed = []

    async def follow(folders):
        followed.append([*folders])

    async def synchronise(_releases, *, changed_only):
        assert not changed_only

    old, new = tmp_path / "old", tmp_path / "new"
    daemon._config, wanted = (replace(Config(), models=ModelsSettings(dir=str(each))) for each in (old, new))
    daemon._watch, daemon._fleet = SimpleNamespace(follow=follow), SimpleNamespace(synchronise=synchronise)
    daemon._snapshots = SimpleNamespace(has_any=False)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await daemon._synchronise(wanted)
    assert followed == [[old, new]]
    new.mkdir()
    await daemon._synchronise(wanted)
    assert followed[1:] == [[old, new], [new]]


@pytest.mark.asyncio
async def test_a_hangup_while_it_stops_begins_nothing(daemon):
    daemon._stop.set()
    daemon._begin_reloading()
    daemon._begin_refining()
    await asyncio.sleep(0)
    assert daemon._notify.said == []
    assert daemon._refining is None
