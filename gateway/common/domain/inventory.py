"""Inventory of a device: board, processor, memory, and accelerators with their rungs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ACCELERATOR_KINDS = (
    "intel-gpu",
    "intel-npu",
    "movidius-myriad-2",
    "movidius-myriad-x",
    "nvidia-jetson-gpu",
    "nvidia-gpu",
    "amd-gpu",
    "amd-npu",
    "coral-usb",
    "coral-pcie",
    "hailo-8",
    "hailo-10h",
    "rockchip-npu",
    "qualcomm-dsp",
)
CPU = "cpu"
RUNGS = (
    "bus",
    "driver",
    "firmware",
    "node",
    "permission",
    "library",
    "runtime",
    "compile",
    "golden",
    "measured",
)


@dataclass(frozen=True, slots=True)
class Rung:
    """Step towards the use of an accelerator. `ok` None: not examined. `remedy`: set if it is False, or poor."""

    name: str
    ok: bool | None
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Accelerator. `device` is the /dev path without the root, else the PCI or USB address.

    `facts` are inputs of profiles and cache keys.
    """

    kind: str
    name: str
    device: str
    rungs: tuple[Rung, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Return True if no rung is known to be broken."""
        return self.broken is None

    @property
    def broken(self) -> Rung | None:
        """Return the first broken rung, or None."""
        return next((rung for rung in self.rungs if rung.ok is False), None)

    @property
    def warnings(self) -> tuple[Rung, ...]:
        """Return the rungs that are not broken, but have a remedy."""
        return tuple(rung for rung in self.rungs if rung.ok is not False and rung.remedy)


@dataclass(frozen=True, slots=True)
class Remark:
    """Statement about the machine, such as an accelerator that is absent. `remedy` "": there is nothing to mend."""

    subject: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """Model and `compatible` strings of the device tree, or the DMI product on x86; None and () if unknown."""

    model: str | None = None
    compatible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor. `vendor` and `model` are None if unknown; `features` are sorted, with the kernel's names."""

    vendor: str | None = None
    model: str | None = None
    cores: int | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hardware that was found. `arch` is uname's name (x86_64, aarch64), None if unknown."""

    arch: str | None
    board: Board
    cpu: Cpu
    memory_bytes: int | None
    accelerators: tuple[Accelerator, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is no problem, in words: what was not examined, and remarks without a remedy."""
        rungs = [
            (found, rung) for found in self.accelerators for rung in found.rungs if rung.ok is None and rung.detail
        ]
        unseen = tuple(f"{found.kind} at {found.device}: {rung.name}: {rung.detail}" for found, rung in rungs)
        return unseen + tuple(f"{remark.subject}: {remark.detail}" for remark in self.remarks if not remark.remedy)

    def accelerator(self, kind: str) -> Accelerator | None:
        """Return the first usable accelerator of `kind`, else the first one of that kind, else None."""
        found = [accelerator for accelerator in self.accelerators if accelerator.kind == kind]
        return next((a for a in found if a.usable), found[0] if found else None)


@dataclass(frozen=True, slots=True)
class RuntimeListing:
    """Devices that a runtime reports in its child: OpenVINO's devices, ONNX Runtime's providers, LiteRT's delegates.

    `ok` False: it is not installed, hung or died; `problem` says which.
    """

    ok: bool
    version: str = ""
    devices: tuple[str, ...] = ()
    problem: str = ""
