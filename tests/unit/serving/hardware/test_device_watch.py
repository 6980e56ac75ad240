"""Nodes of accelerators that go and come, by the kernel's events of a real folder."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.common.domain.inventory import Accelerator, Board, Cpu, Inventory, Rung
from gateway.serving.hardware import device_watch
from gateway.serving.hardware.device_watch import DeviceWatch

pytestmark = pytest.mark.asyncio
BROKEN = (Rung("driver", False, "none is bound"),)


def accelerator(device: Path | str, kind: str = "hailo-8", rungs: tuple[Rung, ...] = ()) -> Accelerator:
    return Accelerator(kind, kind, str(device), rungs)


async def test_a_node_that_goes_and_comes_is_reported_once_each_and_its_neighbours_are_not(tmp_path: Path) -> None:
    node, heard = tmp_path / "hailo0", asyncio.Queue[tuple[str, str, bool]]()
    node.touch()
    watch = DeviceWatch([accelerator(node)], lambda *change: heard.put_nowait(change))
    (tmp_path / "other").touch()
    node.chmod(0o600)
    node.unlink()
    assert await heard.get() == ("hailo-8", str(node), False)
    (tmp_path / "other").unlink()
    node.touch()
    assert await heard.get() == ("hailo-8", str(node), True)
    watch.close()
    node.unlink()
    await asyncio.sleep(0)
    assert heard.empty()


async def test_only_nodes_of_usable_accelerators_are_watched(tmp_path: Path) -> None:
    for name in ("apex_0", "hailo0"):
        (tmp_path / name).touch()
    heard = asyncio.Queue[tuple[str, str, bool]]()
    found = [
        accelerator(tmp_path / "apex_0", "coral-pcie", BROKEN),
        accelerator("0000:01:00.0", "nvidia-gpu"),
        accelerator(tmp_path / "absent", "intel-npu"),
        accelerator(tmp_path / "hailo0"),
    ]
    watch = DeviceWatch(found, lambda *change: heard.put_nowait(change))
    for name in ("apex_0", "hailo0"):
        (tmp_path / name).unlink()
    assert (await heard.get())[0] == "hailo-8"
    assert heard.empty()
    watch.close()


async def test_a_node_is_found_again_in_a_folder_that_its_driver_makes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "DEV", tmp_path)
    node, heard = tmp_path / "accel" / "accel0", asyncio.Queue[bool]()
    node.parent.mkdir()
    node.touch()
    watch = DeviceWatch([accelerator(node)], lambda *change: heard.put_nowait(change[2]))
    for _ in range(2):
        node.unlink()
        node.parent.rmdir()
        assert not await heard.get()
        node.parent.mkdir()
        await asyncio.sleep(0)
        node.touch()
        assert await heard.get()
    watch.close()


async def test_a_usb_device_that_is_found_at_another_node_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "USB", tmp_path)
    monkeypatch.setattr(device_watch, "USB_SETTLE_S", 0.01)
    node, heard, probes = tmp_path / "001" / "002", asyncio.Queue[bool](), list[bool]()
    node.parent.mkdir()
    node.touch()
    there = list[Accelerator]()

    def probed(_: Path) -> Inventory:
        probes.append(threading.current_thread() is threading.main_thread())
        return Inventory("x86_64", Board(), Cpu(), 1, tuple(there))

    monkeypatch.setattr(device_watch, "probe", probed)
    watch = DeviceWatch([accelerator(node, "coral-usb")], lambda *change: heard.put_nowait(change[2]))
    node.unlink()
    assert not await heard.get()
    new = node.with_name("003")
    there.append(accelerator(new, "coral-usb"))
    new.touch()
    assert await heard.get()
    count = len(probes)
    (tmp_path / "001" / "004").touch()
    new.unlink()
    there.clear()
    assert not await heard.get()
    assert not any(probes), "on threads only"
    assert len(probes) == count + 1
    watch.close()


async def test_a_machine_without_accelerators_has_no_watch() -> None:
    DeviceWatch([], print).close()
