"""The fleet's settings of one process: how it begins, how a trial ends."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError
from gateway.common.domain.settings_layer import SettingsLayer
from gateway.serving.committed.settings_verifier import VerifiedSettings
from gateway.serving.config import parse_config
from gateway.serving.fleet_settings import ENDED, TRIAL, WITHOUT, Life, SettingsControl, begin, is_on_trial, take_back
from gateway.serving.store.settings_record import (
    FILE,
    RECORD_LIMIT_BYTES,
    SettingsRecord,
    StoredSettings,
    read_record,
    write_record,
)

FIRST = StoredSettings("settings/berlin/1/release", "11" * 32, "[limits]\nforms = 1\n")
SECOND = StoredSettings("settings/berlin/2/release", "22" * 32, "[limits]\nforms = 2\n")
EMPTY = b'{"schema": 1, "committed": null, "trial": null, "failed": null}'
ACTIVATION = Activation("@settings", SECOND.target, SECOND.sha256, (), (), 1)


class Control:
    """A SettingsControl in a folder, with a judge and a check that say what the test wants."""

    def __init__(self, life: Life) -> None:
        self.judged, self.problem, self.restarts, self.stopping = VerifiedSettings(toml=SECOND.toml), "", [], False
        self.stops_meanwhile = False
        """True if a signal comes while signatures are verified."""
        store: Any = SimpleNamespace(settings=self._judge)
        self.made = SettingsControl(
            life, store, self._check, self.restarts.append, lambda: self.stopping, monotonic=lambda: 0.0
        )

    async def _judge(self, _activation: Activation) -> VerifiedSettings:
        self.stopping = self.stops_meanwhile
        return self.judged

    async def _check(self, _layer: object) -> None:
        if self.problem:
            raise ConfigurationError(self.problem)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_record(tmp_path, SettingsRecord(committed=FIRST))
    return tmp_path


def on_trial(folder: Path) -> Control:
    write_record(folder, read_record(folder).begun(SECOND))
    return Control(begin(folder, {TRIAL: f"{SECOND.sha256} 30"}))


def test_a_process_begins_with_what_is_committed(tmp_path: Path) -> None:
    assert begin(tmp_path, {}).layer is None
    write_record(tmp_path, SettingsRecord(committed=FIRST))
    life = begin(tmp_path, {})
    assert (life.in_force, life.ends_in_s, life.problem) == (FIRST, None, "")


def test_a_trial_is_one_life_of_the_process(folder: Path) -> None:
    write_record(folder, read_record(folder).begun(SECOND))
    environ = {TRIAL: f"{SECOND.sha256} 30"}
    life = begin(folder, environ)
    assert (life.in_force, life.ends_in_s, environ) == (SECOND, 30.0, {})
    after = begin(folder, {})
    assert (after.in_force, after.ends_in_s) == (FIRST, None)
    assert after.record.failed is not None
    assert (after.record.failed.sha256, after.record.failed.reason) == (SECOND.sha256, ENDED)
    assert read_record(folder) == after.record


def test_a_process_may_leave_the_committed_settings_out(folder: Path) -> None:
    life = begin(folder, {TRIAL: f"{WITHOUT} the address is gone"})
    assert (life.in_force, life.ends_in_s, life.problem) == (None, None, "the address is gone")
    assert begin(folder, {}).in_force == FIRST


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": 9}', EMPTY + b" " * RECORD_LIMIT_BYTES, b'{"schema": 1, "trial": 3}']
)
def test_a_damaged_record_leaves_the_device_its_own_settings(folder: Path, content: bytes) -> None:
    (folder / FILE).write_bytes(content)
    life = begin(folder, {})
    assert life.layer is None
    assert FILE in life.problem
    assert "remove it" in life.problem


def test_a_record_of_two_large_releases_is_read(tmp_path: Path) -> None:
    record = SettingsRecord(*(replace(one, toml="#" + 125_000 * "é") for one in (FIRST, SECOND)))
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


@pytest.mark.asyncio
async def test_a_trial_that_is_confirmed(folder: Path) -> None:
    control = Control(begin(folder, {}))
    await control.made.try_out(ACTIVATION, 30.0)
    assert control.restarts == [f"{SECOND.sha256} 30"]
    trial = Control(begin(folder, {TRIAL: control.restarts[0]}))
    assert trial.made.standing().trial_ends_in_s == 30.0
    for _ in range(2):
        await trial.made.confirm(SECOND.sha256)
    assert read_record(folder) == SettingsRecord(committed=SECOND)
    assert trial.made.standing().trial_ends_in_s is None
    trial.made.end_trial()
    await trial.made.revert(SECOND.sha256, "late")
    assert trial.restarts == []


@pytest.mark.asyncio
async def test_a_trial_that_is_taken_back(folder: Path) -> None:
    trial = on_trial(folder)
    with pytest.raises(VariantError, match=r"berlin/2"):
        await trial.made.revert(FIRST.sha256, "others")
    await trial.made.revert(SECOND.sha256, "too slow")
    assert trial.restarts == [""]
    life = begin(folder, {})
    assert life.in_force == FIRST
    standing = Control(life).made.standing()
    assert (standing.failed, standing.reason, standing.target) == (SECOND.target, "too slow", FIRST.target)
    with pytest.raises(VariantError, match=r"berlin/1.*too slow"):
        await Control(life).made.confirm(SECOND.sha256)


@pytest.mark.asyncio
async def test_a_trial_that_nobody_confirms_in_time(folder: Path) -> None:
    trial = on_trial(folder)
    trial.made.end_trial()
    trial.made.end_trial()
    assert trial.restarts == [""]
    assert read_record(folder).committed == FIRST
    with pytest.raises(VariantError, match=r"not confirmed in time"):
        await trial.made.confirm(SECOND.sha256)


@pytest.mark.asyncio
async def test_what_is_refused_changes_nothing(folder: Path) -> None:
    control = Control(begin(folder, {}))
    before = read_record(folder)
    control.judged = VerifiedSettings("two signatures lack")
    with pytest.raises(VariantError, match=r"two signatures lack"):
        await control.made.try_out(ACTIVATION, 30.0)
    control.judged = VerifiedSettings(toml='[mqtt]\nurl = "mqtt://x"\n')
    with pytest.raises(VariantError, match=r"mqtt\.url.*no policy"):
        await control.made.try_out(ACTIVATION, 30.0)
    control.judged, control.problem = VerifiedSettings(toml=SECOND.toml), "no such broker"
    with pytest.raises(VariantError, match=r"no such broker"):
        await control.made.try_out(ACTIVATION, 30.0)
    for wrong in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(RequestError):
            await control.made.try_out(ACTIVATION, wrong)
    assert (control.restarts, read_record(folder)) == ([], before)


@pytest.mark.parametrize(
    ("toml", "name"),
    [
        ("[mqtt]\nmax_inflight = 5\n", "MqttSettings.max_inflight (100)"),
        ("[grpc.http2]\nmax_streams = 5\n", "Http2Limits.max_streams (1024)"),
    ],
)
@pytest.mark.asyncio
async def test_a_constant_is_refused_by_its_name_not_for_a_policy(folder: Path, toml: str, name: str) -> None:
    control = Control(begin(folder, {}))
    control.judged = VerifiedSettings(toml=toml)
    await control.made.try_out(ACTIVATION, 30.0)  # no policy is asked for: the check of the configuration decides
    with pytest.raises(ConfigurationError, match=f"is not a setting but the constant .*{re.escape(name)}"):
        parse_config("", "", SettingsLayer(SECOND.target, toml))


@pytest.mark.asyncio
async def test_one_trial_at_a_time(folder: Path) -> None:
    trial = on_trial(folder)
    with pytest.raises(RequestError, match=r"a trial goes on"):
        await trial.made.try_out(ACTIVATION, 30.0)


@pytest.mark.asyncio
async def test_no_trial_begins_in_a_process_that_ends(folder: Path) -> None:
    control = Control(begin(folder, {}))
    before = read_record(folder)
    control.stops_meanwhile = True
    with pytest.raises(RequestError, match=r"restarts or stops"):
        await control.made.try_out(ACTIVATION, 30.0)
    assert (control.restarts, read_record(folder)) == ([], before)


@pytest.mark.asyncio
async def test_only_a_trial_that_goes_on_is_taken_back(folder: Path) -> None:
    write_record(folder, read_record(folder).begun(SECOND))
    life = begin(folder, {TRIAL: f"{SECOND.sha256} 30"})
    assert is_on_trial(life)
    await Control(life).made.confirm(SECOND.sha256)
    assert not is_on_trial(life)
    take_back(life, "late")
    assert read_record(folder).committed == SECOND


@pytest.mark.parametrize(
    "value", ["", "30", SECOND.sha256, *(f"{SECOND.sha256} {s}" for s in ("x", "nan", "-1", "1e9"))]
)
def test_an_environment_that_names_no_trial_is_none(value: str, folder: Path) -> None:
    write_record(folder, read_record(folder).begun(SECOND))
    assert begin(folder, {TRIAL: value}).in_force == FIRST
