"""Digests of the hardware: what tells two boards apart, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.device.agent.report.report import hardware

UUID = "4C4C4544-0042-3510-8054-B4C04F564231"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRODUCT_UUID", raising=False)


def board(root: Path, *, serial: str = "", uuid: str = "") -> Path:
    for file, text in (
        ("sys/firmware/devicetree/base/serial-number", serial and f"{serial}\0"),
        ("sys/class/dmi/id/product_uuid", uuid and f"{uuid}\n"),
    ):
        if text:
            (root / file).parent.mkdir(parents=True)
            (root / file).write_text(text)
    return root


def adapter(root: Path, name: str, address: str, *, bus: str = "pci0000:00/0000:00:1f.6", **files: str) -> None:
    """Add a network adapter. `bus` "": it has no device, as bridges and veth."""
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    for file, text in {"address": address, "type": "1", "addr_assign_type": "0", **files}.items():
        (folder / file).write_text(f"{text}\n")
    if bus:
        device = root / "sys/devices" / bus / name
        device.mkdir(parents=True)
        (folder / "device").symlink_to(device)


def test_a_container_without_any_fact_has_none(tmp_path: Path) -> None:
    adapter(tmp_path, "eth0", "02:42:ac:11:00:02", bus="", addr_assign_type="3")
    assert hardware(tmp_path) == {}


def test_boards_differ_by_each_fact_and_numbers_do_not_leave_the_device(tmp_path: Path) -> None:
    found = []
    for number in "12":
        root = board(tmp_path / number, serial=f"1000000012ab34c{number}", uuid=f"{UUID[:-1]}{number}")
        adapter(root, "eth0", f"dc:a6:32:01:02:0{number}")
        found.append(hardware(root))
    assert found[0].keys() == {"serial", "uuid", "macs"}
    assert all(found[0][fact] != found[1][fact] for fact in found[0])
    assert "4c4c" not in str(found).lower()
    assert hardware(tmp_path / "1") == found[0]


def test_the_variable_of_the_unit_is_the_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hardware(board(tmp_path, uuid=UUID.lower()))
    monkeypatch.setenv("PRODUCT_UUID", UUID)
    assert hardware(tmp_path / "nothing") == found


@pytest.mark.parametrize(
    "uuid",
    [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
    ],
)
def test_placeholders_are_no_facts(tmp_path: Path, uuid: str) -> None:
    assert hardware(board(tmp_path, serial="0000000000000000", uuid=uuid)) == {}


def test_only_addresses_that_a_maker_gave_count(tmp_path: Path) -> None:
    adapter(tmp_path, "eth0", "dc:a6:32:01:02:03")
    before = hardware(tmp_path)
    adapter(tmp_path, "wlan0", "5e:11:22:33:44:55", addr_assign_type="3")  # drawn by NetworkManager
    adapter(tmp_path, "vf0", "66:11:22:33:44:55", addr_assign_type="1")
    adapter(tmp_path, "eth1", "00:e0:4c:68:01:02", bus="pci0000:00/0000:00:14.0/usb2/2-1")
    adapter(tmp_path, "can0", "12:34:56:78:9a:bc", type="280")
    adapter(tmp_path, "br0", "dc:a6:32:01:02:99", bus="")
    adapter(tmp_path, "eth2", "00:00:00:00:00:00")
    assert hardware(tmp_path) == before
