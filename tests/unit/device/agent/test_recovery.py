"""A lost or damaged journal on an enrolled device: the message, the remedy, and what is still refused then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.common.store.errors import StoreError
from gateway.device.agent.cli import main
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.state.storage import opened_for_reading
from tests.simulators.enrolled_device import CONFIG, DEVICE, SLOT, Device, enrolled_device

JOURNAL, ASIDE = "journal.sqlite", "journal.sqlite.damaged"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "lost": lambda file: file.unlink(),
    "emptied": lambda file: file.write_bytes(b""),
    "overwritten": lambda file: file.write_bytes(b"\0" * file.stat().st_size),
}


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Yield a device that committed version 2, whose owner allows nothing older."""
    with enrolled_device(tmp_path, monkeypatch) as made:
        made.update("1")
        target = made.fleet.repository.add_release(SLOT, "2", floor="2")
        made.fleet.assigned[DEVICE] = ({SLOT: target}, ())
        made.turn()
        yield made


def recover(device: Device) -> int:
    return main(["recover", "--state", str(device.folder)])


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_message_names_a_remedy_after_which_the_device_works(
    device: Device, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](device.folder / JOURNAL)
    with pytest.raises(StoreError, match="run edge-agent recover"):
        device.sync()
    assert recover(device) == 0
    said = capsys.readouterr().out
    assert "lost: floors" in said
    assert "run edge-agent sync now" in said
    assert (device.folder / ASIDE).exists() is (damage != "lost")
    assert device.turn() == ""
    assert (device.status["state"], device.status["slots"][SLOT]["committed"]["version"]) == ("in-step", "2")
    assert [row["kind"] for row in device.told.of("events")].count("journal-begun-anew") == 1


def test_once_it_asked_again_older_releases_are_refused_as_before(device: Device) -> None:
    with opened_for_reading(device.folder, CONFIG) as storage:
        before = storage.journal.floors()
    (device.folder / JOURNAL).unlink()
    assert recover(device) == 0
    device.sync()
    with opened_for_reading(device.folder, CONFIG) as storage:
        after = storage.journal.floors()
    assert (after.versions, after.numbers.keys()) == (before.versions, before.numbers.keys())
    device.fleet.assigned[DEVICE] = ({SLOT: f"models/acme/{SLOT}/1/release"}, ())
    assert device.asked_once().reason == "below-floor"


def test_older_metadata_is_refused_at_the_first_question_already(device: Device) -> None:
    timestamp = device.fleet.repository.public / "metadata" / "timestamp.json"
    old = timestamp.read_bytes()
    device.fleet.repository.publish()
    device.sync()
    (device.folder / JOURNAL).unlink()
    assert recover(device) == 0
    timestamp.write_bytes(old)
    assert device.asked_once().reason == "replayed"


def test_a_journal_that_is_whole_is_left_as_it_is(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    before = (device.folder / JOURNAL).read_bytes()
    assert recover(device) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert (device.folder / JOURNAL).read_bytes() == before


def test_enrolling_again_does_not_replace_a_lost_journal(device: Device) -> None:
    (device.folder / JOURNAL).unlink()
    device.fleet.tokens["again"] = DEVICE
    application = EnrolmentInput(device.fleet.url, "again", authority=device.fleet.authority.file.read_text())
    with pytest.raises(StoreError, match="run edge-agent recover"):
        enrol(application, device.folder, CONFIG)
    assert "again" in device.fleet.tokens  # it was not spent
    assert recover(device) == 0
    assert enrol(application, device.folder, CONFIG).device == DEVICE


def test_a_folder_that_is_no_device_is_not_recovered(tmp_path: Path) -> None:
    assert main(["recover", "--state", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []
