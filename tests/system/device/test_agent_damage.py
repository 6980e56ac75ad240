"""A disk that forgets: what was committed is not what was signed any more.

The daemon refuses it until the agent has fetched it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest

from tests.simulators.fleet_device import ONE_VARIANT, SLOT, FleetDevice, exchange_artifact, fleet_device

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[FleetDevice]:
    """Yield a device in which version 2 serves, 1 is the previous one."""
    with fleet_device(tmp_path_factory.mktemp("device"), state) as made:
        assert made.update().code == 0
        yield made


def rot(file: Path) -> None:
    """Flip one bit, in place: every link to it is the same file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    with file.open("r+b") as stream:
        stream.write(content)


def committed(device: FleetDevice) -> tuple[Path, Path]:
    """Return the release's folder and the folder of blobs."""
    release = device.status["slots"][SLOT]["committed"]["release"]
    return device.store / "releases" / release, device.store / "blobs/sha256"


def spoilt(device: FleetDevice, what: str) -> Path:
    """Return the file that is to be damaged."""
    home, blobs = committed(device)
    return {
        "artifact": home / ONE_VARIANT / "model.onnx",
        "manifest": home / "manifest.toml",
        "release document": blobs / home.name,
    }[what]


@pytest.mark.parametrize(
    ("what", "meanwhile"),
    [
        ("artifact", set()),
        pytest.param("manifest", {"1"}, marks=pytest.mark.long),
        ("release document", {"1"}),
    ],  # of both versions it is the same artifact
)
def test_a_damaged_file_is_refused_and_fetched_again(device: FleetDevice, what: str, meanwhile: set[str]) -> None:
    serving = device.serving
    rot(spoilt(device, what))
    with device.hammered():  # what is loaded goes on
        assert device.agent("verify").code == 1
    device.daemon.stop()
    device.daemon.start()
    assert set(device.serving) == meanwhile
    with device.hammered() if meanwhile else nullcontext():
        done = device.sync()
        assert done.code == 0, done.told["why"]
    assert device.serving == serving
    assert device.agent("verify").code == 0


def test_a_file_that_is_gone(device: FleetDevice) -> None:
    home, blobs = committed(device)
    for file in (
        *home.rglob("*.onnx"),
        *[b for b in blobs.iterdir() if b.stat().st_nlink == 2 and b.stat().st_size > 9000],
    ):
        file.unlink()
    assert device.agent("verify").code == 1
    assert device.sync().code == 0
    assert device.agent("verify").code == 0


@pytest.mark.parametrize(
    "room_bytes", [20_000, *[pytest.param(size, marks=pytest.mark.long) for size in (0, 4096, 36_000)]]
)
def test_a_file_system_without_room(device: FleetDevice, room_bytes: int) -> None:
    """No file may grow beyond so much, as a full disk or a quota has it (EFBIG, ENOSPC: all the same to the store)."""
    before = device.serving
    device.assign(device.publish(made_unlike))
    with device.hammered():
        done = device.sync(wrap=("prlimit", f"--fsize={room_bytes}"))
        assert done.code == 3, done.err
        assert "room" in done.err or "disk" in done.err, done.err
        assert (device.agent("verify").code, device.serving) == (0, before)
        assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


def made_unlike(version: Path) -> None:
    """Write another artifact than that of any other version, so that it has to be fetched."""
    file = version / ONE_VARIANT / "model.onnx"
    model = onnx.load(file)
    model.doc_string = f"version {version.name}"
    exchange_artifact(version, model.SerializeToString())


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_journal_that_is_lost_or_none_any_more(device: FleetDevice, lost: bool) -> None:
    """Bootstrapped by hand, without a controller: the message is followed, and the device works again."""
    journal, serving = device.store / "journal.sqlite", device.serving
    if lost:
        journal.unlink()
    else:
        journal.write_bytes(b"\0" * journal.stat().st_size)
    with device.hammered():
        for verb in ("sync", "status", "verify"):
            done = device.agent(verb)
            assert (done.code, done.out) == (3, "")
            assert "run edge-agent recover" in done.err
        again = device.bootstrap()
        assert (again.code, "run edge-agent recover" in again.err) == (3, True)
        recovered = device.agent("recover")
        assert recovered.code == 0, recovered.err
        assert "would accept older releases" in recovered.out
        assert device.sync().code == 0
        assert device.agent("verify").code == 0
    assert device.serving == serving
    assert device.update().code == 0


def test_an_active_file_that_is_none(device: FleetDevice) -> None:
    file = device.store / "active.json"
    kept = file.read_bytes()
    file.write_bytes(kept[: len(kept) // 2])
    with device.hammered():
        done = device.agent("sync")
        assert done.code == 3
        assert "move it away, the agent then installs again" in done.err
    file.unlink()
    assert device.sync().code == 0
    assert device.agent("verify").code == 0
