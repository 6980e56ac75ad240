"""Triton's system shared memory extension for every frontend that offers it: regions by caller and name.

A region belongs to its caller alone: others neither read it through a model nor unregister it. Two callers may use one
name. This module is independent of protocols; everything runs on the event loop.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.statistics import MetricSample
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.infer import Parameter, RequestedOutput
from gateway.serving.domain.parameters import OutputParameters, read_output_parameters
from gateway.serving.domain.shares import ANONYMOUS, RefusalReason, ShareBounds
from gateway.serving.frontends.not_offered import refuse_shared_memory
from gateway.serving.frontends.placement import PARAMETERS, OutputPlace, RegionSpan, read_place
from gateway.serving.frontends.pools import Pools, RefusalCounters
from gateway.serving.frontends.segment import SHARED_MEMORY, SealedSegment, Segment, invalid
from gateway.serving.frontends.settings import KEY_LIMIT_BYTES, SharedMemorySettings

EXTENSION = "system_shared_memory"
NAME_LIMIT_CHARS = 255
"""Longest name of a region."""
SEALED_KEY = "memfd"
"""Key that `status` reports for a region of sealed memory, which has none."""
SEMAPHORES = "sem."
"""Prefix of semaphores' names in the folder of segments (sem_overview(7)): they hold no tensors."""

_IN_PLACE = frozenset(
    {Datatype.UINT8, Datatype.INT8, Datatype.UINT16, Datatype.INT16, Datatype.FP16, Datatype.FP32, Datatype.FP64}
)
"""Datatypes that are read in place; the others are read from a private copy.

A caller may change its memory at any moment. Data that is decoded (BYTES, BOOL, BF16) or that models use as indices (32
and 64 bit integers) must not change after the check.
"""


@dataclass(frozen=True, slots=True)
class Registrant:
    """Caller that registers a region.

    `local`: it is on this device. `uid`, `pid`: as a UNIX socket reports them, None if it does not. `share_key`: the
    key by which refusals are counted.
    """

    caller: str
    local: bool = True
    uid: int | None = None
    pid: int | None = None
    share_key: str = ANONYMOUS


@dataclass(slots=True)
class _Region:
    name: str
    key: str
    segment: Segment
    used_ns: int
    process: int | None
    dropped: Callable[[], None] | None = None

    def lost(self) -> str:
        """Return why no process can use it again, or ""."""
        if not self.segment.linked:
            return "unlinked"
        return "ended" if self.process is not None and _ended(self.process) else ""


_Known = tuple[str, str]
"""Key of a region: its caller and its name."""


class Regions:
    """All registered regions. Callers are named as in `InferRequest.caller`."""

    def __init__(
        self,
        settings: SharedMemorySettings,
        folder: Path = SHARED_MEMORY,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        refusals: RefusalCounters | None = None,
    ) -> None:
        self._refusals = refusals or Pools().refusals
        self._settings, self._folder, self._clock_ns = settings, folder, clock_ns
        self._regions: dict[_Known, _Region] = {}
        self._dropped = {"unlinked": 0, "ended": 0, "idle": 0}

    def register(self, who: Registrant, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a caller's segment. Raises RequestError: DENIED for callers without permission.

        Raises OVERLOADED if regions in use have reached the limits, and INVALID for other problems, with Triton's
        message.
        """
        self._admit(who)
        _check_name(name)
        self.sweep()
        self._check_new(who, name)
        file = self._file(name, key)
        self._check_size(name, offset, byte_size)
        segment = Segment(name, self._folder / file, offset, byte_size, who.uid)
        self._make_room(who, byte_size)
        process = _watched(segment, who.pid)
        self._regions[who.caller, name] = _Region(name, key, segment, self._clock_ns(), process)

    def register_sealed(
        self, who: Registrant, name: str, descriptor: int, byte_size: int, dropped: Callable[[], None]
    ) -> None:
        """Map a memfd that the caller passed; inputs are read in place. `dropped` is called once its region is dropped.

        Raises as `register` does.
        """
        self._admit(who)
        _check_name(name)
        self.sweep()
        self._check_new(who, name)
        self._check_size(name, 0, byte_size)
        segment = SealedSegment(name, descriptor, byte_size)
        self._make_room(who, byte_size)
        self._regions[who.caller, name] = _Region(name, SEALED_KEY, segment, self._clock_ns(), None, dropped)

    def unregister(self, caller: str, name: str = "") -> None:
        """Forget one of the caller's regions, or all; an unknown name is no error, as in Triton.

        Requests in flight keep their memory.
        """
        for known in [known for known in self._regions if known[0] == caller and name in {"", known[1]}]:
            self._forget(known)

    def status(self, caller: str, name: str = "") -> list[dict[str, Any]]:
        """Return the caller's regions, or the one named `name` (else NOT_FOUND), as Triton's documents."""
        self.sweep()
        found = [region for known, region in self._regions.items() if known[0] == caller and name in {"", known[1]}]
        if name and not found:
            raise unknown_region(name, "system ")
        return [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.segment.offset,
                "byte_size": region.segment.byte_size,
            }
            for region in found
        ]

    def view(self, caller: str, name: str, offset: int, byte_size: int) -> memoryview:
        """Return bytes of a region, read-only: a copy, or in place if `copy_inputs` is false.

        In place they stay mapped as long as the view lives. Raises RequestError NOT_FOUND for a region that the caller
        does not have, INVALID if the bytes are outside it, or the segment was truncated.
        """
        segment = self._segment(caller, name)
        if self._in_place(segment):
            return segment.view(offset, byte_size)
        return segment.copy(offset, byte_size)

    def raw(self, caller: str, place: RegionSpan, datatype: Datatype) -> memoryview:
        """Return an input's bytes: in place, or copied if datatype, alignment or `copy_inputs` requires it.

        Raises as `view` does.
        """
        return self.source(caller, place, datatype)()

    def source(self, caller: str, place: RegionSpan, datatype: Datatype) -> Callable[[], memoryview]:
        """Return the function that reads an input as `raw` does, also if the region is gone. Both raise as `raw` does.

        Large requests that wait for the end of a pass of the event loop are copied one after the other into the same
        memory, just before their runs: it stays in the processor's cache.
        """
        segment = self._segment(caller, place.region)
        aligned = datatype in _IN_PLACE and not (segment.offset + place.offset) % datatype.wire_bytes
        read = segment.view if aligned and self._in_place(segment) else segment.copy
        return partial(read, place.offset, place.byte_size)

    def destination(self, caller: str, place: RegionSpan, output: str) -> OutputPlace:
        """Return the destination of an output.

        The segment is opened for writing now, so that a refusal precedes the run. Raises as `view` does, and INVALID if
        the segment cannot be written.
        """
        segment = self._segment(caller, place.region)
        segment.check(place.offset, place.byte_size)
        segment.writer()
        return OutputPlace(output, place, segment)

    def sweep(self) -> None:
        """Drop regions whose segment was unlinked or replaced, or whose process has ended; each is counted."""
        for known, region in list(self._regions.items()):
            reason = region.lost()
            if reason:
                self._drop(known, reason)

    def samples(self) -> Iterator[MetricSample]:
        """Yield the current regions and the dropped ones as metrics (METRICS.md)."""
        name = "edge_gateway_shared_memory"
        yield MetricSample(f"{name}_regions", "Registered regions.", len(self._regions), counter=False)
        yield MetricSample(
            f"{name}_bytes", "Bytes of registered regions.", self._used_bytes(self._regions), counter=False
        )
        for reason, count in self._dropped.items():
            yield MetricSample(f"{name}_drops_total", "Regions dropped.", count, {"reason": reason})

    def _in_place(self, segment: Segment) -> bool:
        return segment.sealed or not self._settings.copy_inputs

    def _segment(self, caller: str, name: str) -> Segment:
        region = self._regions.get((caller, name))
        if region is None:
            raise unknown_region(name)
        region.used_ns = self._clock_ns()
        return region.segment

    def _admit(self, who: Registrant) -> None:
        if not who.local:
            raise RequestError(
                Fault.DENIED, "only callers on this device may register shared memory; send the tensors' bytes"
            )
        if who.uid is None and not self._settings.over_tcp:
            raise RequestError(
                Fault.DENIED,
                "this connection does not tell its user: register shared memory over the gateway's UNIX socket, or set "
                "[shared_memory] over_tcp = true, which lets any user of this device register over TCP",
            )
        if self._settings.callers and who.caller not in self._settings.callers:
            raise RequestError(
                Fault.DENIED,
                f"caller '{who.caller:.200}' is not among [shared_memory] callers; send the tensors' bytes",
            )

    def _check_new(self, who: Registrant, name: str) -> None:
        if (who.caller, name) in self._regions:
            raise invalid(f"shared memory region '{name}' already in manager")

    def _file(self, name: str, key: str) -> str:
        """Return the segment's file name: `key` without its leading "/"."""
        file = key.removeprefix("/")
        one_component = file.isprintable() and "/" not in file and file not in {"", ".", ".."}
        if not one_component or len(file.encode()) > KEY_LIMIT_BYTES or file.startswith(SEMAPHORES):
            raise _no_registration(name, f"key {key!r:.80} is no name that shm_open(3) gives to a segment")
        if not file.startswith(self._settings.key_prefix):
            raise _no_registration(
                name, f"keys must begin with '{self._settings.key_prefix}' here, and {key!r:.80} does not"
            )
        return file

    def _check_size(self, name: str, offset: int, byte_size: int) -> None:
        limit = min(self._settings.max_region_bytes, self._share(self._settings.max_bytes))
        if offset < 0 or not 0 < byte_size <= limit:
            raise _no_registration(
                name, f"offset {offset} must not be negative, and byte_size {byte_size} must be 1 to {limit}"
            )

    def _make_room(self, who: Registrant, byte_size: int) -> None:
        """Drop idle regions, the longest unused first, to keep the limits of this caller and of all callers.

        None is dropped if that is not enough.
        """
        settings = self._settings
        own = [known for known in self._regions if known[0] == who.caller]
        leaving = self._idle(own, byte_size, self._share(settings.max_regions), self._share(settings.max_bytes))
        if leaving is None:
            raise self._no_room(who, own, RefusalReason.CALLER, settings.caller_percent)
        staying = [known for known in self._regions if known not in leaving]
        more = self._idle(staying, byte_size, settings.max_regions, settings.max_bytes)
        if more is None:
            raise self._no_room(who, [*self._regions], RefusalReason.TOTAL, 100)
        for known in (*leaving, *more):
            self._drop(known, "idle")

    def _idle(self, among: Collection[_Known], byte_size: int, most: int, most_bytes: int) -> list[_Known] | None:
        """Return the regions to drop so that one more is within the limits; None if too many of them are in use."""
        idle_before_ns = self._clock_ns() - int(self._settings.idle_s * 1e9)
        count, used_bytes = len(among), self._used_bytes(among) + byte_size
        leaving: list[_Known] = []
        for known in sorted(among, key=lambda each: self._regions[each].used_ns):
            if count < most and used_bytes <= most_bytes:
                break
            if self._regions[known].used_ns > idle_before_ns:
                return None
            leaving.append(known)
            count, used_bytes = count - 1, used_bytes - self._regions[known].segment.byte_size
        return leaving

    def _share(self, total: int) -> int:
        return ShareBounds.of(total, caller_percent=self._settings.caller_percent, local_percent=0).share

    def _no_room(self, who: Registrant, among: Collection[_Known], reason: RefusalReason, percent: int) -> RequestError:
        self._refusals.count("shared memory regions", who.share_key, reason)
        return RequestError(
            Fault.OVERLOADED,
            f"{len(among)} shared memory regions of {self._used_bytes(among)} bytes are registered, too many of "
            f"them in use to make room in {percent} % of [shared_memory] max_regions and max_bytes; unregister some",
            retry_after_s=self._settings.idle_s,
        )

    def _used_bytes(self, among: Iterable[_Known]) -> int:
        return sum(self._regions[known].segment.byte_size for known in among)

    def _drop(self, known: _Known, reason: str) -> None:
        self._forget(known)
        self._dropped[reason] += 1

    def _forget(self, known: _Known) -> None:
        dropped = self._regions.pop(known).dropped
        if dropped is not None:
            dropped()


def placed_input(regions: Regions | None, parameters: Mapping[str, Parameter], name: str) -> RegionSpan | None:
    """Return the place from an input's parameters; None: in the message.

    Raises INVALID, or UNSUPPORTED without `regions`.
    """
    if regions is None:
        refuse_shared_memory(parameters, f"input '{name:.200}'")
        return None
    return read_place(parameters, name)


def requested_output(
    regions: Regions | None, caller: str, parameters: Mapping[str, Parameter], name: str
) -> tuple[RequestedOutput, OutputParameters]:
    """Return a requested output, and its other parameters. Raises as `placed_input` and `Regions.destination` do."""
    if regions is None:
        refuse_shared_memory(parameters, f"output '{name:.200}'")
    place = read_place(parameters, name)
    if place is None or regions is None:
        read = read_output_parameters(parameters, name)
        return RequestedOutput(name, read.classification), read
    read = read_output_parameters({key: value for key, value in parameters.items() if key not in PARAMETERS}, name)
    if read.classification:
        raise invalid("output can't set both 'shared_memory_region' and 'classification'")
    return RequestedOutput(name, destination=regions.destination(caller, place, name)), read


def unknown_region(name: str, kind: str = "") -> RequestError:
    """Return NOT_FOUND, with Triton's message; `kind` is "system " or "CUDA "."""
    return RequestError(Fault.NOT_FOUND, f"Unable to find {kind}shared memory region: '{name:.200}'")


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_LIMIT_CHARS:
        raise invalid(f"a shared memory region's name must have 1 to {NAME_LIMIT_CHARS} characters, not {len(name)}")


def _no_registration(name: str, why: str) -> RequestError:
    return invalid(f"failed to register shared memory region '{name:.200}': invalid args: {why}")


def _watched(segment: Segment, pid: int | None) -> int | None:
    """Return a descriptor that reports the end of the process; None if there is none. It is closed with `segment`."""
    if not pid:
        return None
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    weakref.finalize(segment, os.close, process)
    return process


def _ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
