"""Regions by caller: who may register what, how many, and what becomes of those whose owners are gone."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.placement import RegionSpan, read_place
from gateway.serving.frontends.regions import Regions, Registrant, placed_input, requested_output
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.constants import settings_with
from tests.simulators.segments import descriptors, folder, mappings

ANN, BOB = Registrant("ann"), Registrant("bob")
ALLOWED = settings_with(SharedMemorySettings(allowed=True, over_tcp=True, copy_inputs=False), caller_percent=100)


class Clock:
    """Monotonic nanoseconds that a test moves."""

    now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture(scope="module")
def shm() -> Iterator[Path]:
    with folder() as made:
        yield made


def made(shm: Path, content: bytes = bytes(4096), name: str = "") -> str:
    """Make a segment; return its key."""
    name = name or uuid.uuid4().hex
    (shm / name).write_bytes(content)
    return f"/{name}"


def opened(shm: Path, clock: Clock | None = None, **changed: Any) -> Regions:
    return Regions(settings_with(ALLOWED, **changed), shm, clock or Clock())


def refused(fault: Fault, act: Any, *args: Any) -> str:
    with pytest.raises(RequestError) as caught:
        act(*args)
    assert caught.value.fault is fault
    return caught.value.message


def drops(regions: Regions) -> dict[str, float]:
    return {s.labels["reason"]: s.value for s in regions.samples() if s.labels and s.value}


def names(regions: Regions, caller: str = "ann") -> list[str]:
    return [line["name"] for line in regions.status(caller)]


def test_register_status_unregister(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    regions.register(ANN, "frames", key, 8, 100)
    assert regions.status("ann") == regions.status("ann", "frames")
    assert regions.status("ann") == [{"name": "frames", "key": key, "offset": 8, "byte_size": 100}]
    assert bytes(regions.view("ann", "frames", 0, 100)) == bytes(100)
    regions.unregister("ann", "frames")
    regions.unregister("ann", "frames")
    assert regions.status("ann") == []
    assert refused(Fault.NOT_FOUND, regions.status, "ann", "frames") == (
        "Unable to find system shared memory region: 'frames'"
    )
    assert refused(Fault.NOT_FOUND, regions.view, "ann", "frames", 0, 1) == (
        "Unable to find shared memory region: 'frames'"
    )


def test_a_key_needs_no_slash(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    regions.register(ANN, "frames", key.removeprefix("/"), 0, 8)
    assert regions.status("ann")[0]["key"] == key.removeprefix("/")


def test_a_region_is_its_callers_alone(shm: Path) -> None:
    regions = opened(shm)
    regions.register(ANN, "frames", made(shm, b"ann's"), 0, 5)
    regions.register(BOB, "frames", made(shm, b"bob's"), 0, 5)
    assert bytes(regions.view("bob", "frames", 0, 5)) == b"bob's"
    regions.unregister("bob")
    assert (names(regions, "ann"), names(regions, "bob")) == (["frames"], [])
    refused(Fault.NOT_FOUND, regions.view, "bob", "frames", 0, 5)


def test_a_name_is_taken_once(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    regions.register(ANN, "frames", key, 0, 8)
    message = refused(Fault.INVALID, regions.register, ANN, "frames", key, 0, 8)
    assert message == "shared memory region 'frames' already in manager"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "..",
        "/..",
        ".",
        "a/b",
        "../etc/passwd",
        "/proc/self/mem",
        "nul\0",
        "line\n",
        "\ud800",
        "sem.lock",
        "k" * 256,
    ],
    ids=ascii,
)
def test_keys_that_are_no_segments_names(shm: Path, key: str) -> None:
    regions = opened(shm)
    message = refused(Fault.INVALID, regions.register, ANN, "r", key, 0, 8)
    assert message.startswith("failed to register shared memory region 'r': invalid args: key ")


def test_keys_may_be_narrowed(shm: Path) -> None:
    regions = opened(shm, key_prefix="camera-")
    regions.register(ANN, "r", made(shm, name="camera-1"), 0, 8)
    assert "keys must begin with 'camera-'" in refused(Fault.INVALID, regions.register, ANN, "s", made(shm), 0, 8)


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_names_that_are_none(shm: Path, name: str) -> None:
    assert "1 to 255 characters" in refused(Fault.INVALID, opened(shm).register, ANN, name, made(shm), 0, 8)


@pytest.mark.parametrize(
    ("offset", "byte_size"), [(0, 0), (-1, 8), (0, -8), (0, 1001), (4000, 97), (2**64 - 1, 8), (8, 2**64 - 1)]
)
def test_sizes_that_cannot_be(shm: Path, offset: int, byte_size: int) -> None:
    regions = opened(shm, max_region_bytes=1000)
    message = refused(Fault.INVALID, regions.register, ANN, "r", made(shm), offset, byte_size)
    assert message.startswith("failed to register shared memory region 'r': invalid args")
    assert names(regions) == []


def test_strangers_register_nothing(shm: Path) -> None:
    key = made(shm)
    remote = Registrant("ann", local=False)
    assert "only callers on this device" in refused(Fault.DENIED, opened(shm).register, remote, "r", key, 0, 8)
    chosen = opened(shm, callers=("uid:7", "ann"))
    assert "'bob' is not among [shared_memory] callers" in refused(Fault.DENIED, chosen.register, BOB, "r", key, 0, 8)
    chosen.register(ANN, "r", key, 0, 8)


def test_a_known_user_registers_only_segments_of_its_own(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    foreign = Registrant("uid:4321", uid=os.getuid() + 4321)
    assert "it belongs to user" in refused(Fault.DENIED, regions.register, foreign, "r", key, 0, 8)
    regions.register(Registrant("uid", uid=os.getuid()), "r", key, 0, 8)


# ---- bounds, and who gives way ----


def test_regions_in_use_keep_their_place(shm: Path) -> None:
    clock = Clock()
    regions = opened(shm, clock, max_regions=2, idle_s=60.0)
    for name in ("a", "b"):
        regions.register(ANN, name, made(shm), 0, 8)
    clock.wait(59)
    assert "in 100 % of [shared_mem" in refused(Fault.OVERLOADED, regions.register, BOB, "c", made(shm), 0, 8)
    regions.view("ann", "a", 0, 8)
    clock.wait(2)
    regions.register(BOB, "c", made(shm), 0, 8)
    assert (names(regions), names(regions, "bob"), drops(regions)) == (["a"], ["c"], {"idle": 1})


def test_all_regions_together_are_bounded(shm: Path) -> None:
    clock = Clock()
    regions = opened(shm, clock, max_bytes=200)
    regions.register(ANN, "a", made(shm), 0, 120)
    refused(Fault.OVERLOADED, regions.register, ANN, "b", made(shm), 0, 81)
    regions.register(ANN, "b", made(shm), 0, 80)
    clock.wait(61)
    refused(Fault.INVALID, regions.register, ANN, "c", made(shm), 0, 201)
    assert names(regions) == ["a", "b"]
    regions.register(ANN, "c", made(shm), 0, 200)
    assert names(regions) == ["c"]


def test_nobody_gives_way_in_vain(shm: Path) -> None:
    clock = Clock()
    regions = opened(shm, clock, max_bytes=200)
    regions.register(ANN, "idle", made(shm), 0, 100)
    regions.register(ANN, "busy", made(shm), 0, 100)
    clock.wait(61)
    regions.view("ann", "busy", 0, 8)
    refused(Fault.OVERLOADED, regions.register, BOB, "c", made(shm), 0, 101)
    refused(Fault.INVALID, regions.register, BOB, "c", "/absent", 0, 100)
    assert (names(regions), drops(regions)) == (["idle", "busy"], {})
    regions.register(BOB, "c", made(shm), 0, 100)
    assert (names(regions), drops(regions)) == (["busy"], {"idle": 1})


def test_unlinked_and_replaced_segments_are_dropped(shm: Path) -> None:
    regions = opened(shm)
    first, second = made(shm), made(shm)
    regions.register(ANN, "gone", first, 0, 8)
    regions.register(ANN, "replaced", second, 0, 8)
    (shm / first[1:]).unlink()
    (shm / second[1:]).unlink()
    made(shm, name=second[1:])
    regions.register(ANN, "replaced", second, 0, 8)
    assert (names(regions), drops(regions)) == (["replaced"], {"unlinked": 2})


def test_callers_that_die_again_and_again_never_exhaust_the_bounds(shm: Path) -> None:
    """Their segments stay behind, as a C++ program's do; a UNIX socket has told which process registered them."""
    regions, keys = opened(shm, max_regions=3), [made(shm) for _ in range(3)]
    for number in range(12):
        caller = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        regions.register(Registrant("ann", pid=caller.pid), f"r{number}", keys[number % 3], 0, 8)
        regions.sweep()
        assert names(regions) == [f"r{number}"]
        caller.kill()
        caller.communicate()
    regions.sweep()
    assert (names(regions), drops(regions)) == ([], {"ended": 12})


def test_ten_thousand_registrations_leave_nothing(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    gc.collect()  # what earlier tests of this process left open may be closed at any time
    before = None
    for number in range(10_001):
        regions.register(Registrant("ann", pid=os.getpid()), "r", key, 0, 4096)
        regions.destination("ann", RegionSpan("r", 8), "y").put(b"12345678")
        regions.unregister("ann", "r")
        if not number:
            before = descriptors(shm)
    assert (descriptors(shm), mappings(shm / key[1:])) == (before, 0)


# ---- what requests see ----


@pytest.mark.parametrize("datatype", Datatype)
def test_what_must_not_change_under_the_model_is_copied(shm: Path, datatype: Datatype) -> None:
    regions, key = opened(shm), made(shm)
    regions.register(ANN, "r", key, 0, 4096)
    raw = regions.raw("ann", RegionSpan("r", 64), datatype)
    copied = {"BYTES", "BOOL", "BF16", "INT32", "UINT32", "INT64", "UINT64"}
    assert isinstance(raw.obj, mmap.mmap) != (datatype.label in copied)


def test_unaligned_numbers_are_copied(shm: Path) -> None:
    regions, key = opened(shm), made(shm)
    regions.register(ANN, "r", key, 0, 4096)
    assert not isinstance(regions.raw("ann", RegionSpan("r", 4, 2), Datatype.FP32).obj, mmap.mmap)
    assert isinstance(regions.raw("ann", RegionSpan("r", 4, 3), Datatype.UINT8), memoryview)
    regions.register(ANN, "odd", key, 3, 64)
    assert not isinstance(regions.raw("ann", RegionSpan("odd", 4), Datatype.FP32).obj, mmap.mmap)
    assert isinstance(regions.raw("ann", RegionSpan("odd", 4, 1), Datatype.FP32), memoryview)


def test_everything_is_copied_where_the_operator_wants_it(shm: Path) -> None:
    regions, key = opened(shm, copy_inputs=True), made(shm)
    regions.register(ANN, "r", key, 0, 4096)
    view = regions.view("ann", "r", 0, 64)
    assert (isinstance(view.obj, mmap.mmap), bytes(view)) == (False, bytes(64))


def test_a_region_in_use_stays_until_the_request_ends(shm: Path) -> None:
    regions, key = opened(shm), made(shm, b"\x07" * 4096)
    regions.register(ANN, "r", key, 0, 4096)
    array = np.frombuffer(regions.view("ann", "r", 0, 4096), "u1")
    output = regions.destination("ann", RegionSpan("r", 4, 8), "y")
    regions.unregister("ann")
    (shm / key[1:]).rename(shm / "elsewhere")
    assert (array[0], mappings(shm / "elsewhere")) == (7, 1)
    assert output.put(b"done") == {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 8}
    assert (shm / "elsewhere").read_bytes()[8:12] == b"done"
    del array, output
    assert mappings(shm / "elsewhere") == 0


def test_an_output_that_does_not_fit_names_both_sizes(shm: Path) -> None:
    regions = opened(shm)
    regions.register(ANN, "r", made(shm), 0, 16)
    message = refused(Fault.INVALID, regions.destination("ann", RegionSpan("r", 8), "scores").put, bytes(9))
    assert message == (
        "shared memory size specified with the request for output 'scores' (8 bytes) should be at least 9 bytes to "
        "hold the results"
    )
    refused(Fault.INVALID, regions.destination, "ann", RegionSpan("r", 8, 9), "scores")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"region": 1, "byte_size": 8}, "invalid value type for 'shared_memory_region' parameter for tensor 'x', exp"),
        ({"region": "r"}, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter"),
        ({"byte_size": 8}, "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter"),
        ({"offset": 8}, "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter"),
        ({"region": "r", "byte_size": "8"}, "invalid value type for 'shared_memory_byte_size' parameter"),
        ({"region": "r", "byte_size": True}, "invalid value type for 'shared_memory_byte_size' parameter"),
        ({"region": "r", "byte_size": 8.0}, "invalid value type for 'shared_memory_byte_size' parameter"),
        ({"region": "r", "byte_size": 8, "offset": "8"}, "invalid value type for 'shared_memory_offset' parameter"),
        ({"region": "r", "byte_size": 0}, "must be more than 0, not 0"),
        ({"region": "r", "byte_size": -1}, "must be more than 0, not -1"),
    ],
)
def test_parameters_that_contradict_themselves(said: dict[str, Any], problem: str) -> None:
    parameters = {f"shared_memory_{key}": value for key, value in said.items()}
    assert problem in refused(Fault.INVALID, read_place, parameters, "x")


def test_a_place_is_read() -> None:
    said = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert read_place(said, "x") == RegionSpan("r", 8)
    assert read_place({**said, "shared_memory_offset": 4}, "x") == RegionSpan("r", 8, 4)
    assert read_place({"classification": 1}, "x") is None


def test_without_permission_the_setting_is_named() -> None:
    said = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert "[shared_memory] allowed = true" in refused(Fault.UNSUPPORTED, placed_input, None, said, "x")
    assert "output 'y' is in shared memory" in refused(Fault.UNSUPPORTED, requested_output, None, "ann", said, "y")


def test_classes_do_not_go_into_shared_memory(shm: Path) -> None:
    said = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "classification": 1}
    message = refused(Fault.INVALID, requested_output, opened(shm), "ann", said, "y")
    assert message == "output can't set both 'shared_memory_region' and 'classification'"


@pytest.mark.parametrize("changed", [{"max_regions": 0}, {"key_prefix": "a/b"}, {"key_prefix": "k" * 256}])
def test_settings_that_cannot_work(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"shared_memory.{next(iter(changed))}"):
        SharedMemorySettings(**changed)
