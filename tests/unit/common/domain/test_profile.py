from __future__ import annotations

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import Accelerator, Board, Cpu, Inventory, Rung
from gateway.common.domain.profile import Budget, DeviceMatch, LadderStep, Profile, choose_profile, read_profile

TEXT = """\
schema = 1
name = "board"
description = "a board"
priority = 7

[match]
arch = ["aarch64"]

[[ladder]]
accelerator = "cpu"
runtime = "onnx"
precisions = ["int8", "fp32"]
"""
PI_WITH_CORAL = Inventory(
    "aarch64",
    Board("Raspberry Pi 5", ("raspberrypi,5-model-b", "brcm,bcm2712")),
    Cpu(),
    None,
    (Accelerator("coral-usb", "Coral", "2-1", (Rung("bus", True), Rung("driver", False))),),
)


def profile(name: str, priority: int, match: DeviceMatch) -> Profile:
    return Profile(name, "", priority, match, Budget(), (LadderStep("cpu", "onnx", ("fp32",)),))


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        (DeviceMatch(), True),
        (DeviceMatch(arch=("x86_64", "aarch64")), True),
        (DeviceMatch(arch=("x86_64",)), False),
        (DeviceMatch(compatible=("brcm,bcm2711", "brcm,bcm2712")), True),
        (DeviceMatch(compatible=("brcm,bcm2711",)), False),
        (DeviceMatch(accelerators=("coral-pcie", "coral-usb")), True),
        (DeviceMatch(accelerators=("intel-npu",)), False),
        (DeviceMatch(arch=("aarch64",), compatible=("brcm,bcm2712",), accelerators=("coral-usb",)), True),
        (DeviceMatch(arch=("aarch64",), compatible=("brcm,bcm2712",), accelerators=("intel-npu",)), False),
    ],
)
def test_all_that_is_named_must_hold_even_where_the_accelerator_is_broken(match: DeviceMatch, holds: bool) -> None:
    assert match.holds(PI_WITH_CORAL) is holds


def test_an_unknown_architecture_fits_no_named_one() -> None:
    assert not DeviceMatch(arch=("x86_64",)).holds(Inventory(None, Board(), Cpu(), None))


def test_the_highest_priority_wins_and_names_break_ties() -> None:
    low, high = profile("low", 1, DeviceMatch()), profile("high", 9, DeviceMatch())
    other, absent = profile("also-high", 9, DeviceMatch()), profile("absent", 99, DeviceMatch(arch=("x86_64",)))
    assert choose_profile([low, high, absent], PI_WITH_CORAL) == high
    assert choose_profile([high, other], PI_WITH_CORAL) == other
    assert choose_profile([absent], PI_WITH_CORAL) is None


def test_a_file_is_read_whole() -> None:
    full = TEXT + '[ladder.options]\nkey = "value"\n[budget]\nthreads = 3\nmemory_bytes = 5\nwatts = 2.5\n'
    assert read_profile(full, "board.toml") == Profile(
        "board",
        "a board",
        7,
        DeviceMatch(arch=("aarch64",)),
        Budget(3, 5, 2.5),
        (LadderStep("cpu", "onnx", ("int8", "fp32"), {"key": "value"}),),
    )


def test_what_is_left_out_is_not_bounded() -> None:
    assert read_profile(TEXT, "board.toml").budget == Budget(0, 0, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", r"board\.toml:1: schema: must be between 1 and 1, not 2"),
        ("priority = 7", "priority = 1001", r"board\.toml:4: priority: must be between 0 and 1000"),
        ('arch = ["aarch64"]', 'arc = ["aarch64"]', r"board\.toml:7: match\.arc: unknown key"),
        ('arch = ["aarch64"]', 'accelerators = ["gpu"]', r"match\.accelerators: must hold only intel-gpu"),
        ('accelerator = "cpu"', 'accelerator = "gpu"', r"ladder\[0\]\.accelerator: must be one of cpu, intel-gpu"),
        ('accelerator = "cpu"', 'accelerator = "igpu"', r"not 'igpu'; did you mean \"intel-gpu\"\?"),
        ('arch = ["aarch64"]', 'accelerators = ["igpu"]', r"not 'igpu'; did you mean \"intel-gpu\"\?"),
        ('runtime = "onnx"', 'runtime = "tensorrt"', r"ladder\[0\]\.runtime: must be one of onnx"),
        ('["int8", "fp32"]', '["int4"]', r"ladder\[0\]\.precisions: must hold only fp32"),
        ("[[ladder]]", "[ladder]", r"ladder: must be an array of tables"),
        ("[match]", "[budget]\nthreads = 2000\n[match]", r"budget\.threads: must be between 0 and 1024, not 2000"),
        ("[match]", "[budget]\nwatts = nan\n[match]", r"budget\.watts: must be between"),
    ],
)
def test_errors_name_file_table_key_and_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigurationError, match=message):
        read_profile(TEXT.replace(old, new), "board.toml")


def test_a_profile_needs_match_and_ladder() -> None:
    head, ladder = TEXT.split("[[ladder]]")
    with pytest.raises(ConfigurationError, match="ladder: missing"):
        read_profile(head, "board.toml")
    with pytest.raises(ConfigurationError, match="match: missing"):
        read_profile(head.split("[match]")[0] + "[[ladder]]" + ladder, "board.toml")


def test_options_are_texts() -> None:
    with pytest.raises(ConfigurationError, match=r"ladder\[0\]\.options\.n: must be a string"):
        read_profile(f"{TEXT}[ladder.options]\nn = 3\n", "board.toml")
