"""The profiles that ship, the folder they are found in, and the schema's own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import ACCELERATOR_KINDS, Board, Cpu, Inventory
from gateway.common.domain.profile import Budget, Profile, choose_profile, read_profile
from gateway.serving.hardware.profiles import load_profiles, profiles_folder

FOLDER = profiles_folder()
PROFILES = {profile.name: profile for profile in load_profiles(FOLDER)}
SCHEMA = (FOLDER / "SCHEMA.md").read_text(encoding="utf-8")
WANTED = {
    *("generic-x86", "generic-arm64", "intel-igpu", "intel-npu", "amd-gpu", "nvidia-gpu", "coral", "hailo", "qualcomm"),
    *("raspberry-pi-4", "raspberry-pi-5", "jetson", "jetson-orin", "jetson-xavier", "rockchip-rk3588"),
}


def schema_example() -> str:
    found = re.search(r"```toml\n(.*?)```", SCHEMA, re.DOTALL)
    assert found
    return found.group(1)


def test_the_profiles_that_ship() -> None:
    assert PROFILES.keys() == WANTED
    assert {file.stem for file in FOLDER.glob("*.toml")} == WANTED


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_ladder_ends_on_the_cpu_with_numpy_last(profile: Profile) -> None:
    cpu = [step.runtime for step in profile.ladder if step.accelerator == "cpu"]
    assert sorted(cpu) == ["litert", "llamacpp", "onnx", "openvino", "reference"]
    assert [step.accelerator for step in profile.ladder[-5:]] == ["cpu"] * 5
    last = profile.ladder[-1]
    assert (last.runtime, last.precisions) == ("reference", ("fp32",))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_no_pair_of_accelerator_and_runtime_stands_twice(profile: Profile) -> None:
    pairs = [(step.accelerator, step.runtime) for step in profile.ladder]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_schema_gives_every_profile_its_priority(profile: Profile) -> None:
    rows = re.findall(r"^\| ([0-9]+) \| ((?:`[a-z0-9-]+` ?)+)\|", SCHEMA, re.MULTILINE)
    told = {name: int(priority) for priority, names in rows for name in re.findall(r"`([^`]+)`", names)}
    assert told[profile.name] == profile.priority
    assert told.keys() == PROFILES.keys()


def test_equal_priorities_never_fit_one_machine() -> None:
    """Two boards cannot be one board; an accelerator can be in any machine."""
    by_priority: dict[int, list[Profile]] = {}
    for profile in PROFILES.values():
        by_priority.setdefault(profile.priority, []).append(profile)
    for group in by_priority.values():
        names = [word for profile in group for word in (*profile.match.compatible, *profile.match.arch)]
        assert len(names) == len(set(names))


def test_an_npu_comes_before_the_gpu_of_its_chip() -> None:
    steps = [step.accelerator for step in PROFILES["intel-npu"].ladder]
    assert [*dict.fromkeys(steps)] == ["intel-npu", "intel-gpu", "cpu"]
    assert PROFILES["intel-npu"].ladder[0].precisions == ("int8", "fp16")


def test_a_raspberry_pi_keeps_a_core_for_itself() -> None:
    assert PROFILES["raspberry-pi-4"].budget.threads == PROFILES["raspberry-pi-5"].budget.threads == 3


def test_a_machine_of_another_architecture_has_no_profile() -> None:
    assert choose_profile(tuple(PROFILES.values()), Inventory("riscv64", Board(), Cpu(), None)) is None


def test_the_schemas_example_is_a_profile() -> None:
    profile = read_profile(schema_example(), "SCHEMA.md")
    assert profile.budget == Budget(
        threads=3, memory_bytes=1 << 30, resident_bytes=768 << 20, watts=7.5, worker_nice=10
    )
    assert profile.match.compatible == ("example,board", "example,board-lite")
    assert dict(profile.ladder[1].options) == {"example": "a text that the runtime understands"}


def test_the_schemas_table_names_exactly_the_keys_that_are_read() -> None:
    """Each documented key stands in the example, which is read strictly; each key of the example is documented."""
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", SCHEMA, re.MULTILINE))
    table, used = "", set()
    for line in schema_example().splitlines():
        if found := re.fullmatch(r"\[+([a-z.]+)\]+", line):
            table = found.group(1)
            used |= {table} & documented
        elif found := re.match(r"([a-z_]+) = ", line):
            key = f"{table}.{found.group(1)}".strip(".")
            used.add("ladder.options" if table == "ladder.options" else key)
    assert used == documented


@pytest.mark.parametrize("key", ["schema", "name", "description", "priority", "accelerator", "runtime", "precisions"])
def test_the_keys_that_the_schema_calls_needed_are_needed(key: str) -> None:
    assert re.search(rf"^\| `(?:ladder\.)?{key}` \| yes \|", SCHEMA, re.MULTILINE)
    without = re.sub(rf"^{key} = .*\n", "", schema_example(), count=1, flags=re.MULTILINE)
    with pytest.raises(ConfigurationError, match=rf"{key}: missing"):
        read_profile(without, "example.toml")


def test_the_schema_lists_every_kind() -> None:
    assert all(f"`{kind}`" in SCHEMA for kind in ACCELERATOR_KINDS)


def write(folder: Path, name: str, text: str | bytes) -> None:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_a_folder_without_profiles(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_profiles(tmp_path / "away")


def test_two_profiles_of_one_name(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        write(tmp_path, name, schema_example())
    with pytest.raises(ConfigurationError, match=r"b\.toml: name: a second profile called 'example-board'"):
        load_profiles(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'schema = 1\nname = "\xff"', "not UTF-8 at byte 19"),
        (b"schema = ", "not valid TOML"),
        (b"#" * 300_000, "longer than 262144 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, "spoiled.toml", content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_profiles(tmp_path)
    assert "spoiled.toml" in str(caught.value)


def test_a_folder_called_like_a_profile(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load_profiles(tmp_path)
