"""The installer's work on a real disk: real environments from signed wheels; only systemd is played."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.common.logs import configure_logging
from gateway.device.domain.software_request import Confirm, GiveUp, InstallRequest
from gateway.device.domain.software_update import Phase
from gateway.device.installer import events
from gateway.device.installer.places import CONFIRMED, CURRENT
from gateway.device.installer.worker import RequestRefusedError
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.software_device import FIRST, Device, wheels

pytestmark = pytest.mark.timeout(120)
UNITS = ("edge-gateway.service", "edge-agent.service")


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    return FleetRepository(tmp_path / "publisher")


@pytest.fixture
def device(tmp_path: Path, repository: FleetRepository) -> Device:
    return Device(tmp_path / "device", repository)


def release(
    repository: FleetRepository, version: str, floor: str | None = None, files: dict[str, str] | None = None
) -> str:
    folder = repository.workspace.folder / "wheels" / version
    return repository.add_software([wheels(folder, version, files)], floor)


def links(device: Device) -> tuple[str, str]:
    return device.home.leads_to(CURRENT), device.home.leads_to(CONFIRMED)


def confirm(device: Device) -> None:
    device.worker().take(Confirm(device.home.leads_to(CURRENT)))


def test_a_version_that_proves_itself_is_kept(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    begun = worker.take(device.serve(release(repository, "1.0")))
    assert device.run(worker).phase is Phase.PROBATION
    assert links(device) == (begun.environment, FIRST)
    assert device.units.restarts == [UNITS]
    program = device.home.environment(begun.environment) / "bin" / "edge-gateway"
    assert subprocess.run([program, "--version"], capture_output=True, check=True).stdout == b"edge-gateway 1.0\n"
    assert device.run(worker).phase is Phase.PROBATION  # not confirmed yet
    worker.take(Confirm(begun.environment))
    assert device.run(worker).phase is Phase.PROBATION  # its units have not run for long
    device.clock[0] += 21
    assert device.run(worker).phase is Phase.DONE
    assert links(device) == (begun.environment, begun.environment)
    assert {path.name for path in device.home.versions.iterdir()} == {FIRST, begun.environment}


def test_the_next_version_takes_the_place_of_the_one_before_the_last(
    device: Device, repository: FleetRepository
) -> None:
    seen = [FIRST]
    for version in ("1.0", "2.0"):
        worker = device.worker()
        seen.append(worker.take(device.serve(release(repository, version))).environment)
        device.run(worker)
        worker.take(Confirm(seen[-1]))
        device.clock[0] += 21
        assert device.run(worker).phase is Phase.DONE
    assert {path.name for path in device.home.versions.iterdir()} == set(seen[1:])


def test_without_confirmation_the_deadline_brings_the_old_version_back(
    device: Device, repository: FleetRepository
) -> None:
    worker = device.worker()
    begun = worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    device.clock[0] += 901
    configure_logging()
    with capture_logs() as logged:
        ended = device.run(worker)
    told = [(line["event"], line["log_level"], line.get("phase"), line.get("outcome")) for line in logged]
    assert told == [
        (events.SOFTWARE_UPDATE_FAILED, "warning", "probation", None),
        (events.SOFTWARE_UPDATE_ENDED, "info", None, "rolled-back"),
    ]
    assert (ended.phase, ended.failed_in) == (Phase.ROLLED_BACK, Phase.PROBATION)
    assert "the new agent did not complete a poll" in ended.reason
    assert links(device) == (FIRST, FIRST)
    assert device.units.restarts == [UNITS, UNITS]
    assert not device.home.environment(begun.environment).exists()


def test_a_daemon_that_does_not_start_is_named(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    confirm(device)
    device.units.broken.add("edge-gateway.service")
    device.clock[0] += 901
    ended = device.run(worker)
    assert ended.phase is Phase.ROLLED_BACK
    assert "edge-gateway.service is failed" in ended.reason


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"gateway/device/agent/__main__.py": "raise SystemExit('broken')\n"},
            "edge-agent --version' ended with 1: broken",
        ),
        ({"gateway/__main__.py": "print('edge-gateway 9.9')\n"}, "edge-gateway 1.0 was expected"),
    ],
)
def test_programs_that_do_not_start_are_never_switched_to(
    files: dict[str, str], said: str, device: Device, repository: FleetRepository
) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0", files=files)))
    ended = device.run(worker)
    assert (ended.phase, ended.failed_in) == (Phase.ROLLED_BACK, Phase.TEST)
    assert said in ended.reason
    assert (links(device), device.units.restarts) == ((FIRST, FIRST), [])


def test_a_wheel_that_was_exchanged_in_the_store_is_not_installed(device: Device, repository: FleetRepository) -> None:
    wanted = device.serve(release(repository, "1.0"))
    wheel = repository.workspace.folder / "wheels" / "1.0" / "edge_inference_gateway-1.0-py3-none-any.whl"
    content = wheel.read_bytes()
    digest = device.put(content)
    (device.store / "blobs" / "sha256" / digest).write_bytes(content[:-1] + b"x")
    worker = device.worker()
    worker.take(wanted)
    ended = device.run(worker)
    assert (ended.phase, ended.failed_in) == (Phase.ROLLED_BACK, Phase.BUILD)
    assert digest in ended.reason
    assert not [path for path in device.home.versions.iterdir() if path.name != FIRST]


def test_a_process_that_is_killed_in_any_phase_is_gone_on_with(device: Device, repository: FleetRepository) -> None:
    begun = device.worker().take(device.serve(release(repository, "1.0")))
    seen = []
    while (found := device.records.update()) and found.phase is not Phase.PROBATION:
        seen.append(found.phase)
        device.worker().advance()
    assert seen == [Phase.BUILD, Phase.TEST, Phase.SWITCH]
    confirm(device)
    device.clock[0] += 21
    device.worker().advance()
    device.worker().advance()
    assert links(device) == (begun.environment, begun.environment)


def test_an_update_that_is_interrupted_again_and_again_is_given_up(device: Device, repository: FleetRepository) -> None:
    device.worker().take(device.serve(release(repository, "1.0")))
    for _ in range(device.settings.resumptions):
        device.worker()
    ended = device.run(device.worker())
    assert ended.phase is Phase.ROLLED_BACK
    assert "interrupted 6 times" in ended.reason


def test_after_another_boot_the_deadline_begins_again(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    device.boot, device.clock[0] = "boot-2", 30.0
    device.units.started_s = dict.fromkeys(UNITS, 5.0)
    worker = device.worker()
    assert device.run(worker).phase is Phase.PROBATION
    confirm(device)
    assert device.run(worker).phase is Phase.DONE


def test_what_an_operator_puts_in_its_place_stays(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    device.home.environment("9.0-99999999").mkdir()
    for link in (CONFIRMED, CURRENT):
        device.home.point(link, "9.0-99999999")
    assert device.run(worker).phase is Phase.ROLLED_BACK
    assert links(device) == ("9.0-99999999", "9.0-99999999")


def test_the_agent_may_give_it_up(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    worker.take(GiveUp("another version is assigned"))
    ended = device.run(worker)
    assert ended.phase is Phase.ROLLED_BACK
    assert "another version is assigned" in ended.reason


# ---- who is believed -----------------------------------------------------------------------------------------------


def refused(device: Device, wanted: InstallRequest) -> str:
    with pytest.raises(RequestRefusedError) as raised:
        device.worker().take(wanted)
    assert device.records.update() is None
    return str(raised.value)


def test_nothing_is_installed_without_a_root_of_trust(device: Device, repository: FleetRepository) -> None:
    wanted = device.serve(release(repository, "1.0"))
    (device.records.folder / "root.json").unlink()
    assert "edge-software trust" in refused(device, wanted)


def test_a_root_of_the_agents_own_making_is_not_believed(
    device: Device, repository: FleetRepository, tmp_path: Path
) -> None:
    other = FleetRepository(tmp_path / "thief")
    release(repository, "1.0")
    thief = Device(tmp_path / "other", other)
    wanted = thief.serve(release(other, "1.0"))
    device.store.symlink_to(thief.store)
    assert "signatures" in refused(device, wanted)


def test_an_owner_of_models_cannot_sign_software(device: Device, repository: FleetRepository) -> None:
    path = release(repository, "1.0")
    role = repository.published.roles["software"]
    repository.forge("software", role, [new_key("thief")])
    assert "signatures that the role software needs" in refused(device, device.serve(path))


def test_keys_that_were_rotated_away_count_no_more(device: Device, repository: FleetRepository) -> None:
    path = release(repository, "1.0")
    old = device.serve(path)
    repository.rotate("targets")
    repository.rotate("root")
    device.serve(path)  # the newer roots are in the store
    assert "signatures" in refused(device, old)


def test_a_root_once_followed_is_not_gone_behind_again(device: Device, repository: FleetRepository) -> None:
    old = device.serve(release(repository, "1.0"))
    repository.rotate("targets")
    worker = device.worker()
    worker.take(device.serve(release(repository, "2.0")))
    worker.take(GiveUp("for this test"))
    device.run(worker)
    for root in (device.store / "metadata" / "root_history").iterdir():
        root.unlink()
    with pytest.raises(RequestRefusedError, match="signatures"):
        device.worker().take(old)


def test_below_the_floor_of_a_version_that_was_kept_nothing_is_installed(
    device: Device, repository: FleetRepository
) -> None:
    old = device.serve(release(repository, "1.0"))
    worker = device.worker()
    worker.take(device.serve(release(repository, "2.0", floor="2.0")))
    device.run(worker)
    confirm(device)
    device.clock[0] += 21
    assert device.run(worker).phase is Phase.DONE
    with pytest.raises(RequestRefusedError, match=r"2\.0 and newer"):
        device.worker().take(old)


def test_only_the_environment_on_trial_can_be_confirmed(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    worker.take(device.serve(release(repository, "1.0")))
    device.run(worker)
    with pytest.raises(RequestRefusedError, match="not in its probation"):
        worker.take(Confirm(FIRST))
    assert device.run(worker).confirmed is False


def test_another_version_has_to_wait(device: Device, repository: FleetRepository) -> None:
    worker = device.worker()
    first = device.serve(release(repository, "1.0"))
    worker.take(first)
    assert worker.take(first).phase is Phase.BUILD  # the same again is no other one
    with pytest.raises(RequestRefusedError, match=r"version 1\.0 is under way"):
        worker.take(device.serve(release(repository, "2.0")))
