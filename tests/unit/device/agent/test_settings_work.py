"""The settings' own slot and updates of models and programs: which one waits for which."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.settings_trial import SettingsTrialSettings
from gateway.common.domain.update import Step
from gateway.common.store.blobs import LocalBlobs
from gateway.device.agent import events
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.slot_state import begun, keep_state, moved, read_state
from gateway.device.agent.state.storage import Storage
from gateway.device.agent.update.settings_work import SettingsWork
from gateway.device.domain.software_update import Phase
from gateway.device.store.journal import Journal

NOW = datetime(2031, 5, 9, tzinfo=UTC)
MODEL = Activation("meter", "models/acme/meter/1/release", "11" * 32, (), ("22" * 32,), 1)
SETTINGS = Activation(SETTINGS_SLOT, "settings/berlin/1/release", "33" * 32, (), ("22" * 32,), 1)
SOFTWARE = Activation(SOFTWARE_SLOT, "software/edge-gateway/1.0/release", "44" * 32, (), ("22" * 32,), 1)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    journal = Journal.create(tmp_path)
    keep_state(journal, begun(read_state(journal, SETTINGS_SLOT), SETTINGS, NOW, assignment=1, attempt=0))
    yield Storage(tmp_path, LocalBlobs(tmp_path / "blobs"), journal)
    journal.close()


def work(storage: Storage, control: Any = None) -> SettingsWork:
    """Return the work without a daemon: whatever asks it fails."""
    return SettingsWork(storage, control, SettingsTrialSettings())


def model_begins(journal: Journal) -> None:
    journal.begin(MODEL, 1, NOW, 0)


def programs_begin(journal: Journal) -> None:
    state = begun(read_state(journal, SOFTWARE_SLOT), SOFTWARE, NOW, assignment=1, attempt=0)
    keep_state(journal, moved(state, Phase.BUILD.value, NOW))


@pytest.mark.parametrize("begins", [model_begins, programs_begin])
def test_a_trial_waits_for_other_updates_and_asks_for_no_poll_meanwhile(begins: Any, storage: Storage) -> None:
    assert work(storage).goes_on({})
    begins(storage.journal)
    work(storage).work(Alarm(), float("inf"))
    assert read_state(storage.journal, SETTINGS_SLOT).step is Step.LOAD
    assert not work(storage).goes_on({MODEL.slot: "its server is away"})


def test_what_is_on_trial_does_not_wait(storage: Storage) -> None:
    keep_state(storage.journal, moved(read_state(storage.journal, SETTINGS_SLOT), Step.PROBATION.value, NOW))
    model_begins(storage.journal)
    assert work(storage).on_trial
    assert work(storage).goes_on({})


class Daemon:
    """A daemon that takes a trial, and whose answer is lost. It has not restarted yet."""

    def __init__(self) -> None:
        self.in_force = "55" * 32

    def settings(self) -> dict[str, Any]:
        on_trial = self.in_force == SETTINGS.release
        return {"sha256": self.in_force, "trial_ends_in_s": 30.0 if on_trial else None}

    def status(self) -> dict[str, Any]:
        return {"instance": "first", "models": [], "broker": None}

    def all_statistics(self) -> list[dict[str, Any]]:
        return []

    def try_settings(self, activation: Activation, _within_s: float) -> None:
        self.in_force = activation.release
        raise UnreachableError("the connection was closed")


def test_a_trial_whose_answer_was_lost_has_its_whole_time(storage: Storage) -> None:
    daemon: Any = Daemon()
    stopped, now_s = Alarm(), 0.0
    stopped.set()
    trial = SettingsWork(storage, daemon, SettingsTrialSettings(), lambda: now_s)
    now_s = 10_000.0
    with pytest.raises(UnreachableError):
        trial.work(stopped, float("inf"))
    for _ in ("the trial is in force already", "a snapshot before the restart"):
        trial.work(stopped, float("inf"))
        assert read_state(storage.journal, SETTINGS_SLOT).step is Step.PROBATION


class RefusingDaemon(Daemon):
    """A daemon that refuses every trial."""

    def try_settings(self, activation: Activation, _within_s: float) -> None:
        raise DaemonRefusedError("invalid", f"{activation.slot}: limits.max_queue is no setting")


def test_a_refusal_is_logged_with_its_reason(storage: Storage) -> None:
    daemon: Any = RefusingDaemon()
    with capture_logs() as logged:
        SettingsWork(storage, daemon, SettingsTrialSettings()).work(Alarm(), float("inf"))
    (line,) = logged
    assert (line["event"], line["log_level"], line["phase"]) == (events.SETTINGS_UPDATE_FAILED, "warning", "load")
    assert line["reason"] == "the gateway refuses them: @settings: limits.max_queue is no setting"
