from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.serving.hardware.probe import probe
from tests.devices.asking import Probed
from tests.devices.build import Entries, arm_cpuinfo, device_tree
from tests.devices.catalogue import A76, TREES


def test_x86(probed: Probed) -> None:
    found = probed("plain-x86")
    assert found.arch == "x86_64"
    assert (found.cpu.vendor, found.cpu.model, found.cpu.cores) == ("GenuineIntel", "Intel(R) Xeon(R)", 2)
    assert found.cpu.features == ("amx_bf16", "amx_int8", "avx2", "avx512_vnni", "fpu", "lm")
    assert found.memory_bytes == 16303456 * 1024
    assert (found.board.model, found.board.compatible) == ("LENOVO ThinkEdge SE30", ())


@pytest.mark.parametrize(
    ("tree", "vendor", "model", "cores"),
    [
        ("pi3", "ARM", "Cortex-A53", 4),
        ("pi4", "ARM", "Cortex-A72", 4),
        ("pi5", "ARM", "Cortex-A76", 4),
        ("rk3588-vendor", "ARM", "Cortex-A76 + Cortex-A55", 8),
        ("qcs6490", "ARM", "Cortex-A78 + Cortex-A55", 8),
        ("jetson-xavier", "NVIDIA", "Carmel", 6),
    ],
)
def test_arm_cores_by_implementer_and_part(probed: Probed, tree: str, vendor: str, model: str, cores: int) -> None:
    cpu = probed(tree).cpu
    assert (cpu.vendor, cpu.model, cpu.cores) == (vendor, model, cores)


def test_a_pi4_has_no_dot_product_and_a_pi5_has(probed: Probed) -> None:
    assert "asimddp" not in probed("pi4").cpu.features


def test_a_pi5_has_dot_product_but_no_i8mm(probed: Probed) -> None:
    features = probed("pi5").cpu.features
    assert "asimddp" in features
    assert "i8mm" not in features


def test_features_are_what_all_cores_have(probed: Probed) -> None:
    small, big = arm_cpuinfo("0xd05", features="fp asimd"), arm_cpuinfo("0xd0b", features="fp asimd asimddp")
    both = f"{small['/proc/cpuinfo']}{big['/proc/cpuinfo']}"
    assert probed({"/proc/cpuinfo": both}).cpu.features == ("asimd", "fp")


def test_unknown_parts_and_implementers_are_named_by_number(probed: Probed) -> None:
    cpu = probed(arm_cpuinfo("0xfff", features="fp asimd", implementer="0x77")).cpu
    assert (cpu.vendor, cpu.model) == ("implementer 0x77", "part 0xfff")


@pytest.mark.parametrize(
    ("entries", "arch"),
    [
        ({"/proc/cpuinfo": "processor : 0\nflags : fpu sse2\n"}, "i686"),
        ({"/proc/cpuinfo": "processor : 0\nFeatures : half thumb neon\nCPU part : 0xd08\n"}, "armv7l"),
        ({"/proc/cpuinfo": "processor : 0\nisa : rv64imafdc\n"}, None),
        (device_tree("Board", "vendor,board", "rockchip,rk3566"), "aarch64"),
        (device_tree("Board", "starfive,jh7110"), None),
        ({"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, EABI: aarch64\n"}, "aarch64"),
        ({}, None),
    ],
)
def test_arch_under_another_root(probed: Probed, entries: Entries, arch: str | None) -> None:
    assert probed(entries).arch == arch


def test_an_empty_tree_knows_nothing_and_says_so(probed: Probed) -> None:
    found = probed({})
    assert (found.arch, found.cpu.vendor, found.cpu.model, found.cpu.cores, found.cpu.features) == (None,) * 4 + ((),)
    assert (found.memory_bytes, found.board.model, found.board.compatible, found.accelerators) == (None, None, (), ())


@pytest.mark.parametrize(
    ("system", "board", "expected"),
    [
        (("Dell Inc.", "OptiPlex 7090"), ("Dell Inc.", "0XYZ"), "Dell Inc. OptiPlex 7090"),
        (("HP", "HP EliteDesk 800"), ("HP", "8767"), "HP EliteDesk 800"),
        (("To Be Filled By O.E.M.", "To Be Filled By O.E.M."), ("ASRock", "N100DC-ITX"), "ASRock N100DC-ITX"),
        (("Default string", "Default string"), ("Default string", "Default string"), None),
    ],
)
def test_the_model_of_an_x86_board_is_what_its_maker_filled_in(
    probed: Probed, system: tuple[str, str], board: tuple[str, str], expected: str | None
) -> None:
    keys = ("sys_vendor", "product_name", "board_vendor", "board_name")
    dmi = dict(zip(keys, (*system, *board), strict=True))
    assert probed({f"/sys/class/dmi/id/{key}": f"{text}\n" for key, text in dmi.items()}).board.model == expected


def test_the_live_machine_is_told_by_uname_and_cpuinfo() -> None:
    found = probe(Path("/"))
    assert found.arch == os.uname().machine
    assert found.cpu.cores is not None
    assert found.cpu.cores >= 1
    assert found.memory_bytes is not None
    assert found.memory_bytes > 2**20


def test_an_emulating_processor_is_not_taken_for_the_emulated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    live = os.uname()
    other = "aarch64" if live.machine == "x86_64" else "x86_64"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*live[:4], other)))
    found = probe(Path("/"))
    assert found.arch == other
    assert (found.cpu.vendor, found.cpu.model, found.cpu.features) == (None, None, ())
    assert found.cpu.cores == os.cpu_count()


def test_all_core_features_of_the_catalogue_are_sorted(probed: Probed) -> None:
    assert probed(TREES["pi5"]).cpu.features == tuple(sorted(A76.split()))
