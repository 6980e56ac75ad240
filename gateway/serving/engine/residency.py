"""Ledger of open model versions: what they take of each budget, and which ones go first. Decisions on values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import log2

from gateway.common.domain.inventory import CPU
from gateway.common.domain.selection import Candidate

MIB = 1024 * 1024
DAY_MINUTES = 24 * 60
FIRST_BYTES_PER_S = 200 * MIB
"""Speed at which a version is assumed to be opened before that was measured: a guess, the same for all."""


@dataclass(frozen=True, slots=True)
class ResidentCost:
    """Cost of an open version: bytes by budget, and the time that opening it takes.

    `measured`: when it was opened here; otherwise by the trial, or the files' size if that measured none. `alone`:
    nothing was closed during the measurement.
    """

    nbytes: Mapping[str, int]
    reload_s: float = 0.0
    measured: bool = False
    alone: bool = False

    @property
    def total(self) -> int:
        """Return the bytes of all budgets."""
        return sum(self.nbytes.values())

    @property
    def density(self) -> float:
        """Return the time of opening it again per byte, rounded to a power of 2: noise must not outweigh use."""
        return 2.0 ** round(log2(max(self.reload_s, 1e-6) / max(self.total, 1)))


def expected_cost(candidate: Candidate, budgets: Mapping[str, int], shared_bytes: int = 0) -> ResidentCost:
    """Return the cost of a candidate before it was opened here: as its trial measured, at least its files' size.

    The process of a trial has memory that this one shares or has already: `shared_bytes` as far as that is known. So
    what the trial measured refuses nothing: it counts as all of the budget if it is more. What an accelerator takes of
    its own memory is not measured in the trial: the files' size stands for it.
    """
    files = sum(each.size_bytes for each in candidate.variant.artifacts)
    measured = candidate.verdict.measured.memory_bytes if candidate.verdict and candidate.verdict.measured else 0
    own = max(files, min(measured - shared_bytes, budgets.get(CPU, measured)))
    nbytes = {CPU: own} | ({kind: files} if (kind := candidate.accelerator or CPU) != CPU else {})
    return ResidentCost(nbytes, own / FIRST_BYTES_PER_S)


def revised_cost(
    before: ResidentCost, candidate: Candidate, added_bytes: int, took_s: float, *, alone: bool
) -> ResidentCost:
    """Return the cost after opening a version added `added_bytes` to the process and took `took_s`.

    Its files are the least: weights that were mapped and not read yet come in later. A measurement next to other work
    does not lower an earlier one, for that work may have freed memory meanwhile.
    """
    least = sum(each.size_bytes for each in candidate.variant.artifacts) if alone else before.nbytes[CPU]
    return ResidentCost({**before.nbytes, CPU: max(added_bytes, least)}, took_s, measured=True, alone=alone)


@dataclass(frozen=True, slots=True)
class Resident:
    """Version that is open, being opened (a reservation), or being closed.

    `late`: it is being closed, which does not end. `replaces`: number of one that answers nothing any more, and is not
    counted until this one is open. `credit` is its value H in GreedyDual-Size: the lowest one goes
    first (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997).
    """

    model: str
    version: str
    cost: ResidentCost
    priority: int = 1
    pinned: bool = False
    used_ns: int = 0
    credit: float = 0.0
    closing: bool = False
    late: bool = False
    replaces: int | None = None


@dataclass(slots=True)
class Ledger:
    """Residents by number, and the budgets in bytes. Nothing is bounded on a device without a budget."""

    budgets: Mapping[str, int]
    residents: dict[int, Resident] = field(default_factory=dict)
    inflation: float = 0.0
    """L of GreedyDual-Size: the credit of the last version that was closed to make room."""
    _numbers: count[int] = field(default_factory=count)

    def add(self, resident: Resident) -> int:
        """Reserve what a version takes, before it is opened. Return its number."""
        number = next(self._numbers)
        self.residents[number] = self._credited(resident)
        return number

    def revise(self, number: int, cost: ResidentCost) -> None:
        """Count what a version really takes from now on."""
        self.residents[number] = self._credited(replace(self.residents[number], cost=cost))

    def succeed(self, number: int) -> None:
        """Note that a version is open. What it replaces, if anything, is being closed, and counts again."""
        each = self.residents[number]
        if each.replaces in self.residents:
            self.close(each.replaces)
        self.residents[number] = replace(each, replaces=None)

    def close(self, number: int) -> None:
        """Note that a version is being closed. What it takes is counted until `remove`."""
        self.residents[number] = replace(self.residents[number], closing=True)

    def overdue(self) -> None:
        """Note that what is being closed now does not end. It makes no room any more until `remove`."""
        for number, each in self.residents.items():
            self.residents[number] = replace(each, late=each.closing)

    def remove(self, number: int) -> None:
        """Free what a version took."""
        self.residents.pop(number, None)

    def used(self, kind: str) -> int:
        """Return the bytes that are taken or reserved of one budget."""
        return sum(each.cost.nbytes.get(kind, 0) for each in self._counted(None))

    def excess(self, cost: ResidentCost) -> str:
        """Return why a version cannot be open even with nothing else next to it, or ""."""
        found = (
            f"takes {cost.nbytes.get(kind, 0) / MIB:.0f} MiB of {_memory(kind)}, more than the {budget / MIB:.0f} MiB "
            f"of {_setting(kind)}; raise that, or take a smaller variant (EG-315)"
            for kind, budget in self.budgets.items()
            if cost.nbytes.get(kind, 0) > budget
        )
        return next(found, "")

    def lacking(self, cost: ResidentCost | None = None, replaces: int | None = None) -> dict[str, int]:
        """Return the bytes by which each budget is too small for what is taken and `cost`, if it is.

        `replaces`: number of the version that is not counted, because `cost` is that of the one in its place.
        """
        taken = [*(each.cost.nbytes for each in self._counted(replaces)), cost.nbytes if cost else {}]
        lacks = {kind: sum(each.get(kind, 0) for each in taken) - budget for kind, budget in self.budgets.items()}
        return {kind: nbytes for kind, nbytes in lacks.items() if nbytes > 0}

    def victims(
        self, cost: ResidentCost | None, idle: Mapping[int, int], replaces: int | None = None
    ) -> tuple[int, ...] | None:
        """Return what to close so that `cost` fits once it is closed, the first to go first; None if nothing helps.

        `idle`: when each version that answers nothing now was used last (monotonic). What is being closed already makes
        room as well, unless it is late. Order: by priority, then by credit, then the least recently used. Of these,
        none is closed that a later one makes needless.
        """
        lacks = self.lacking(cost, replaces)
        for each in self.residents.values():
            lacks = _less(lacks, each) if each.closing and not each.late else lacks
        self._touch(idle)
        order = sorted(
            (each for each in self.residents.items() if each[0] in idle and not (each[1].pinned or each[1].closing)),
            key=lambda each: (-each[1].priority, each[1].credit, each[1].used_ns),
        )
        chosen = list[int]()
        for number, each in order:
            if (left := _less(lacks, each)) != lacks:
                chosen.append(number)
                lacks = left
        if lacks and any(nbytes > 0 for nbytes in lacks.values()):
            return None
        for number in tuple(reversed(chosen)):
            without = {kind: nbytes + self.residents[number].cost.nbytes.get(kind, 0) for kind, nbytes in lacks.items()}
            if all(nbytes <= 0 for nbytes in without.values()):
                chosen.remove(number)
                lacks = without
        self.inflation = max((self.inflation, *(self.residents[number].credit for number in chosen)))
        return tuple(chosen)

    def _counted(self, replaces: int | None) -> Iterator[Resident]:
        left = {replaces, *(each.replaces for each in self.residents.values())}
        return (each for number, each in self.residents.items() if number not in left)

    def _touch(self, used_ns: Mapping[int, int]) -> None:
        """Renew the credit of versions that were used since the last decision: only decisions change `inflation`."""
        for number, last_ns in used_ns.items():
            if (each := self.residents[number]).used_ns < last_ns:
                self.residents[number] = self._credited(replace(each, used_ns=last_ns))

    def _credited(self, resident: Resident) -> Resident:
        return replace(resident, credit=self.inflation + resident.cost.density)


def _less(lacks: Mapping[str, int], resident: Resident) -> dict[str, int]:
    """Return what is lacking once a version is closed; the same if it takes nothing of what is lacking."""
    held = resident.cost.nbytes
    if not any(nbytes > 0 and held.get(kind) for kind, nbytes in lacks.items()):
        return dict(lacks)
    return {kind: nbytes - held.get(kind, 0) for kind, nbytes in lacks.items()}


def _memory(kind: str) -> str:
    return "memory" if kind == CPU else f"the memory of {kind}"


def _setting(kind: str) -> str:
    return "[residency] memory_mib" if kind == CPU else f"[[residency.accelerator]] {kind}"


def due(times: Sequence[str], before: str, now: str) -> bool:
    """Return True if one of the `times` of a day ("HH:MM") came after the minute `before`, up to the minute `now`.

    None came if the clock was set back.
    """
    began, elapsed = _minute(before), (_minute(now) - _minute(before)) % DAY_MINUTES
    return elapsed < DAY_MINUTES // 2 and any(0 < (_minute(time) - began) % DAY_MINUTES <= elapsed for time in times)


def _minute(time: str) -> int:
    hours, minutes = time.split(":")
    return int(hours) * 60 + int(minutes)
