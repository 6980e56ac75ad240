"""Device profiles: class of a device, its budget, and its ladder of ways to run a model.

The file format is described for people in device_profiles/SCHEMA.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gateway.common.domain.document import Table, read_document
from gateway.common.domain.inventory import ACCELERATOR_KINDS, CPU, Inventory
from gateway.common.domain.manifest import PRECISIONS
from gateway.common.domain.runtimes import RUNTIMES, RuntimeSpec

SCHEMA = 1
PRIORITY_LIMIT = 1000
WORKER_NICE = 10
"""Nice value of threads that run models, unless a profile has another.

From this value on the event loop takes precedence.
"""
NICE_LIMIT = 19
"""Highest nice value of the kernel, the least urgent one (nice(2))."""
LADDER_ACCELERATORS = (CPU, *ACCELERATOR_KINDS)


@dataclass(frozen=True, slots=True)
class DeviceMatch:
    """Conditions on a device: one of `arch`, one of `compatible` of the board, one of `accelerators`. All must hold."""

    arch: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()

    def holds(self, inventory: Inventory) -> bool:
        """Return True if the conditions hold.

        They use facts of bus and device tree only, never whether an accelerator is usable.
        """
        kinds = {accelerator.kind for accelerator in inventory.accelerators}
        return (
            (not self.arch or inventory.arch in self.arch)
            and _offers_any(inventory.board.compatible, self.compatible)
            and _offers_any(kinds, self.accelerators)
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of inference on a device. `threads` and `memory_bytes` 0: all there is; `watts` None: not bounded.

    `resident_bytes`: what open model versions may take together, unless the configuration says it; 0: not bounded.
    """

    threads: int = 0
    memory_bytes: int = 0
    watts: float | None = None
    worker_nice: int = WORKER_NICE
    resident_bytes: int = 0


OTHERS = "others"
"""Runtime name in a profile's ladder for every runtime that can use the accelerator and has no other step there."""


@dataclass(frozen=True, slots=True)
class LadderStep:
    """Step of a ladder: accelerator, runtime, and precisions, best first. `isolate`: its sessions have processes."""

    accelerator: str
    runtime: str
    precisions: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    isolate: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """Class of devices. Among those that match, the highest `priority` wins; `ladder` is best first.

    `origin` is its file, or "signed by the fleet".
    """

    name: str
    description: str
    priority: int
    match: DeviceMatch
    budget: Budget
    ladder: tuple[LadderStep, ...]
    origin: str = field(default="", compare=False)


def choose_profile(profiles: Sequence[Profile], inventory: Inventory) -> Profile | None:
    """Return the matching profile of highest priority (ties: by name), or None."""
    matching = [profile for profile in profiles if profile.match.holds(inventory)]
    return min(matching, key=lambda profile: (-profile.priority, profile.name), default=None)


def read_profile(text: str, file: str) -> Profile:
    """Parse one device profile. Raises ConfigurationError (file, table, key, line)."""
    top = read_document(text, file)
    top.integer("schema", low=SCHEMA, high=SCHEMA)
    profile = Profile(
        name=top.text("name"),
        description=top.text("description"),
        priority=top.integer("priority", low=0, high=PRIORITY_LIMIT),
        match=_match(top.table("match", required=True)),
        budget=_budget(top.table("budget")),
        ladder=_without_others([_step(table) for table in top.tables("ladder")]),
        origin=file,
    )
    if not profile.ladder:
        top.refuse("ladder", "missing; name at least one [[ladder]] step")
    top.finish()
    return profile


def _offers_any(found: Iterable[str], wanted: Sequence[str]) -> bool:
    return not wanted or not set(wanted).isdisjoint(found)


def _match(table: Table | None) -> DeviceMatch:
    if table is None:
        return DeviceMatch()
    match = DeviceMatch(
        arch=table.texts("arch", ()),
        compatible=table.texts("compatible", ()),
        accelerators=table.texts("accelerators", (), among=ACCELERATOR_KINDS),
    )
    table.finish()
    return match


def _budget(table: Table | None) -> Budget:
    if table is None:
        return Budget()
    budget = Budget(
        threads=table.integer("threads", 0, low=0, high=1024),
        memory_bytes=table.integer("memory_bytes", 0, low=0, high=2**50),
        watts=table.number("watts", low=0.0, high=10_000.0) if "watts" in table else None,
        worker_nice=table.integer("worker_nice", WORKER_NICE, low=0, high=NICE_LIMIT),
        resident_bytes=table.integer("resident_bytes", 0, low=0, high=2**50),
    )
    table.finish()
    return budget


def _step(table: Table) -> LadderStep:
    step = LadderStep(
        accelerator=table.text("accelerator", among=LADDER_ACCELERATORS),
        runtime=table.text("runtime", among=(*RUNTIMES, OTHERS)),
        precisions=table.texts("precisions", among=PRECISIONS),
        options=_options(table.table("options")),
        isolate=table.flag("isolate", False),
    )
    table.finish()
    return step


def _without_others(ladder: Sequence[LadderStep]) -> tuple[LadderStep, ...]:
    """Return the ladder with each step for OTHERS replaced by one step per runtime that the ladder does not name."""
    named = {(step.accelerator, step.runtime) for step in ladder}
    return tuple(
        replace(step, runtime=name)
        for step in ladder
        for name, spec in RUNTIMES.items()
        if name == step.runtime or (step.runtime == OTHERS and _is_other(step.accelerator, spec, named))
    )


def _is_other(accelerator: str, spec: RuntimeSpec, named: AbstractSet[tuple[str, str]]) -> bool:
    usable = accelerator == CPU or bool(spec.lists(accelerator))
    return usable and (accelerator, spec.name) not in named


def _options(table: Table | None) -> dict[str, str]:
    if table is None:
        return {}
    return {key: table.text(key) for key in table.remaining()}
