"""Any order of what callers and their segments may do: bounds hold, and each answer is right."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.placement import RegionSpan
from gateway.serving.frontends.regions import Regions, Registrant
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples
from tests.simulators.segments import SHARED_MEMORY, descriptors, mappings

CALLERS, NAMES, KEYS = st.sampled_from("aaaab"), st.sampled_from("aaab"), st.sampled_from("ab")
OFFSETS = st.sampled_from([0, 0, 1, 100, 4096, -1])
SIZES = st.sampled_from([1, 100, 100, 4000, 8192, 9999, 0])
MAX_REGIONS, MAX_BYTES = 3, 16_000
KNOWN = {Fault.INVALID, Fault.NOT_FOUND, Fault.OVERLOADED}


class Callers(RuleBasedStateMachine):
    """Two callers, two names, two segments that are made, cut, written and unlinked at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.folder = Path(tempfile.mkdtemp(prefix="edge-gateway-test-", dir=SHARED_MEMORY))
        bounds = settings_with(
            SharedMemorySettings(allowed=True, over_tcp=True, max_regions=MAX_REGIONS, max_bytes=MAX_BYTES),
            caller_percent=100,
            idle_s=10.0,
        )
        self.regions = Regions(bounds, self.folder, lambda: self.now_ns)
        self.held: list[Any] = []

    def teardown(self) -> None:
        self.held.clear()
        for caller in "ab":
            self.regions.unregister(caller)
        shutil.rmtree(self.folder)
        assert (mappings(self.folder), descriptors(self.folder)) == (0, 0)

    @initialize()
    def begin(self) -> None:
        for key in "ab":
            (self.folder / key).write_bytes(bytes(12_288))
            self.regions.register(Registrant("a"), key, key, 0, 5000)

    @rule(key=KEYS, size=st.sampled_from([12_288, 8192, 4100, 100, 0]), fill=st.integers(0, 255))
    def write(self, key: str, size: int, fill: int) -> None:
        self.held.clear()  # what is held must not be read once its segment was cut
        (self.folder / key).write_bytes(bytes([fill]) * size)

    @rule(key=KEYS)
    def unlink(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)

    @rule(seconds=st.integers(0, 20))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * 10**9

    @rule(caller=CALLERS, name=NAMES, key=KEYS, offset=OFFSETS, size=SIZES)
    def register(self, caller: str, name: str, key: str, offset: int, size: int) -> None:
        self.attempt(lambda: self.regions.register(Registrant(caller), name, key, offset, size))

    @rule(caller=CALLERS, name=NAMES | st.just(""))
    def unregister(self, caller: str, name: str) -> None:
        self.regions.unregister(caller, name)

    @rule(caller=CALLERS, name=NAMES, offset=OFFSETS, size=SIZES)
    def read(self, caller: str, name: str, offset: int, size: int) -> None:
        known = self.attempt(lambda: self.regions.status(caller, name))
        view = self.attempt(lambda: self.regions.view(caller, name, offset, size))
        if view is not None:
            (line,) = known
            start = line["offset"] + offset
            assert offset + size <= line["byte_size"]
            assert bytes(view) == (self.folder / line["key"]).read_bytes()[start : start + size]
            self.held.append(np.frombuffer(view, "u1") if size else view)
            event("read")

    @rule(caller=CALLERS, name=NAMES, offset=OFFSETS, size=st.sampled_from([1, 100, 4000, 9999]))
    def put(self, caller: str, name: str, offset: int, size: int) -> None:
        destination = self.attempt(lambda: self.regions.destination(caller, RegionSpan(name, size, offset), "y"))
        if destination is not None:
            self.held.append(destination)
            self.attempt(lambda: destination.put(b"\xaa" * size))
            event("written")

    def attempt(self, act: Any) -> Any:
        try:
            return act()
        except RequestError as error:
            if error.fault not in KNOWN:
                raise
            return None

    @invariant()
    def bounds_hold(self) -> None:
        told = {sample.name: sample.value for sample in self.regions.samples() if not sample.labels}
        assert told["edge_gateway_shared_memory_regions"] <= MAX_REGIONS
        assert told["edge_gateway_shared_memory_bytes"] <= MAX_BYTES


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=examples(250), stateful_step_count=40, deadline=None)
