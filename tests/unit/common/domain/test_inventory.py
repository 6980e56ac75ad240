from __future__ import annotations

from gateway.common.domain.inventory import Accelerator, Board, Cpu, Inventory, Rung


def npu(device: str, *verdicts: bool | None) -> Accelerator:
    names = ("bus", "driver", "node")
    return Accelerator(
        "intel-npu", "NPU", device, tuple(Rung(name, ok) for name, ok in zip(names, verdicts, strict=False))
    )


def machine(*accelerators: Accelerator) -> Inventory:
    return Inventory("x86_64", Board(), Cpu(), None, accelerators)


def test_usable_means_that_no_rung_is_known_to_be_broken() -> None:
    assert npu("a", True, None, None).usable
    assert not npu("a", True, None, False).usable


def test_the_first_broken_rung_is_the_one_to_mend() -> None:
    broken = npu("a", True, False, False).broken
    assert broken is not None
    assert broken.name == "driver"
    assert npu("a", True, True).broken is None


def test_a_usable_accelerator_of_a_kind_goes_before_a_broken_one() -> None:
    broken, fine = npu("broken", True, False), npu("fine", True, True)
    assert machine(broken, fine).accelerator("intel-npu") == fine
    assert machine(broken).accelerator("intel-npu") == broken
    assert machine(broken, fine).accelerator("amd-gpu") is None
