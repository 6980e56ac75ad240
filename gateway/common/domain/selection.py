"""Selection of a variant: the ladder filters and breaks ties, the golden set gates, the measured objective decides.

Source: gateway/decisions/0003-trials-decide-everything.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gateway.common.domain.errors import suggest
from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import ACCELERATOR_KINDS, CPU, Accelerator, Inventory, Rung
from gateway.common.domain.manifest import LEVELS, ModelManifest, Variant
from gateway.common.domain.profile import LadderStep, Profile
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import Measurement, RuntimeStatus, SessionBudget, Verdict

OBJECTIVES: Mapping[str, Callable[[Measurement], float]] = {
    "latency": lambda measured: measured.run_us,
    "throughput": lambda measured: measured.loaded_us,
    "energy": lambda measured: measured.cpu_us,
}
"""Measurements that each objective minimises. Energy is estimated by CPU time."""

UNITS: Mapping[str, str] = {"latency": "µs", "throughput": "µs per row", "energy": "µs of CPU time"}
"""Unit of each objective."""

TRIAL_RUNGS = ("compile", "golden", "measured")
"""Rungs of an accelerator that only a trial of a variant can decide."""

MEASURED_ROWS = 8
"""Rows that a trial measures apart and together. Joined runs may have more."""

TIE_LEAD = 0.10
"""Share below which a lead does not count: ladder order decides."""


@dataclass(frozen=True, slots=True)
class Site:
    """Device as selection uses it. `runtimes` None: the tree of another machine, whose runtimes cannot be examined.

    `threads` of one run; `runs`: threads of all runs of a model that take place at the same time. `isolated`: patterns
    of models whose sessions serve from worker processes.
    """

    inventory: Inventory
    profile: Profile
    runtimes: Mapping[str, RuntimeStatus] | None
    threads: int = 1
    cache_dir: str = ""
    runs: int = 1
    objective: str = "latency"
    isolated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Variant on an accelerator. `rank` 1 is the ladder's best; None if the ladder has no step for it."""

    variant: Variant
    accelerator: str | None
    rank: int | None
    eligible: bool
    reason: str
    budget: SessionBudget = SessionBudget()
    device: Accelerator | None = None
    verdict: Verdict | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Return variant, accelerator and plugin provider, which distinguish candidates of one release."""
        return self.variant.name, self.accelerator or "", self.budget.provider

    @property
    def where(self) -> str:
        """Return the accelerator and, if there is one, the plugin provider, for people."""
        return " by ".join(filter(None, self.place[1:]))

    @property
    def fits(self) -> bool:
        """Return True if its hardware and software are present, whatever its trial here found."""
        return self.eligible or self.verdict is not None

    @property
    def passed(self) -> bool:
        """Return True if it is eligible and its trial here passed, at any level."""
        return self.eligible and self.verdict is not None and self.verdict.passed

    @property
    def is_provisional(self) -> bool:
        """Return True if it must be measured again: the machine was busy, or a version before 0092 measured it."""
        verdict = self.verdict
        if verdict is None or verdict.measured is None:
            return False
        return bool(verdict.measured.disturbed) or (self.budget.runs > 1 and not verdict.parallel)

    @property
    def threads(self) -> int:
        """Return the threads of a run."""
        return self.verdict.threads if self.verdict else 1

    @property
    def runs(self) -> int:
        """Return the runs that take place at a time."""
        return min(self.verdict.runs, self.budget.runs) if self.verdict else 1

    @property
    def ran_bytes(self) -> int:
        """Return the memory that it takes with its largest runs, by the trial's, which had few rows (0: not known)."""
        if self.verdict is None or self.verdict.measured is None:
            return 0
        rows = self.verdict.joining.rows if self.verdict.joining else 1
        return self.verdict.measured.memory_bytes * max(1, -(-rows // MEASURED_ROWS))

    @property
    def level(self) -> str:
        """Return the level that its trial reached (one of LEVELS), or "" if it was not tried."""
        return self.verdict.level if self.verdict else ""


def plan(manifest: ModelManifest, site: Site) -> tuple[Candidate, ...]:
    """Return every variant on every accelerator with a step, in ladder order; then variants without a step."""
    placed = [
        (position, variant.accuracy or 0.0, index, _place(manifest, variant, step, provider, site))
        for index, variant in enumerate(manifest.variants)
        for position, step in _positions(variant, site.profile)
        for provider in _providers(step, site.runtimes)
    ]
    placed.sort(key=lambda entry: (entry[0], -entry[1], entry[2]))
    ranked = [replace(entry[3], rank=rank) for rank, entry in enumerate(placed, 1)]
    named = {candidate.variant.name for candidate in ranked}
    rest = [_unplaced(variant, site.profile) for variant in manifest.variants if variant.name not in named]
    return (*ranked, *rest)


def with_verdict(candidate: Candidate, verdict: Verdict | None, manifest: ModelManifest) -> Candidate:
    """Return the candidate with the result of its trial here.

    A failure, too much loss of accuracy or too much memory makes it ineligible.
    """
    if verdict is None or not candidate.eligible:
        return candidate
    if not verdict.passed:
        return replace(candidate, verdict=verdict, eligible=False, reason=verdict.reason)
    obstacle = _too_much(manifest, verdict.accuracy_loss, "the golden answers") or _memory_obstacle(candidate, verdict)
    if obstacle:
        return replace(candidate, verdict=verdict, eligible=False, reason=obstacle)
    return replace(candidate, verdict=verdict, reason=verdict.reason)


def settled(manifest: ModelManifest, verdict: Verdict | None) -> ModelManifest:
    """Return the manifest as it is served: a bare model has rows only if they are independent."""
    joining = verdict.joining if verdict else None
    if not manifest.inspected or (joining is not None and joining.allowed):
        return manifest
    return replace(manifest, batch=False)


def joining_obstacle(manifest: ModelManifest, verdict: Verdict | None) -> str:
    """Return why requests for a model may not share a run, or "" if its trial proved that they may."""
    if manifest.batch is False and (verdict is None or verdict.joining is None):
        return "the manifest says that the first dimension does not count rows"
    if verdict is None or verdict.joining is None:
        return "the shapes have no dimension of rows" if not manifest.batched else "it was not tried"
    return verdict.joining.reason


def required_level(manifest: ModelManifest, *, signed: bool, configured: str) -> str:
    """Return the least level that a release must reach to serve.

    `configured` decides if it is set. By default, a model added by hand serves at any level, and one that its owner
    signed must be proven unless the release requires less.
    """
    if configured:
        return configured
    return (manifest.require or LEVELS[-1]) if signed else LEVELS[0]


def level_obstacle(verdict: Verdict, required: str) -> str:
    """Return why a verdict's level does not suffice, with the remedy, or ""."""
    if LEVELS.index(verdict.level) >= LEVELS.index(required):
        return ""
    remedy = "add a golden set" if required == LEVELS[-1] else "add a golden set, or inputs that it accepts"
    return (
        f"is {verdict.level}, but must be {required} here ({verdict.reason}); {remedy}, "
        f'set require = "{verdict.level}" in its manifest, or [selection] require'
    )


def choose(candidates: Sequence[Candidate], objective: str) -> Candidate | None:
    """Return the candidate that passed with the best objective; below a lead of 10 %, the first in ladder order.

    Candidates of a lower level of verification are chosen only if no other passed.
    """
    costs = _costs(candidates, objective)
    if not costs:
        return next((candidate for candidate in candidates if candidate.passed), None)
    least = min(costs.values())
    level = {rank for rank, paid in costs.items() if paid == least or paid * (1.0 - TIE_LEAD) < least}
    return next(candidate for candidate in candidates if candidate.rank in level)


def argument(candidates: Sequence[Candidate], chosen: Candidate, objective: str) -> str:
    """Return one sentence for people that explains why `chosen` serves."""
    costs, unit = _costs(candidates, objective), UNITS[objective]
    own = costs.pop(chosen.rank, None)
    if own is None:
        return "first in ladder order; nothing was measured here yet"
    left = len(untried(candidates))
    waiting = f"; {left} more {'is' if left == 1 else 'are'} not tried yet" if left else ""
    if not costs:
        return f"the only one that passed here, {own:.0f} {unit}{waiting}"
    rank, least = min(costs.items(), key=lambda entry: entry[1])
    rival = next(_distinguished(c, chosen) for c in candidates if c.rank == rank)
    if least < own:
        return f"{own:.0f} {unit}, within 10 % of {rival} ({least:.0f}) and before it in ladder order{waiting}"
    return f"best {objective}: {own:.0f} {unit}, {rival} {least:.0f}{waiting}"


def _costs(candidates: Sequence[Candidate], objective: str) -> dict[int | None, float]:
    """Return the costs that the objective minimises, by rank, of candidates that passed here at the highest level."""
    cost = OBJECTIVES[objective]
    passed = [c for c in candidates if c.passed and c.verdict and c.verdict.measured]
    best = max((LEVELS.index(c.level) for c in passed), default=0)
    return {
        c.rank: cost(c.verdict.measured)
        for c in passed
        if c.verdict and c.verdict.measured and LEVELS.index(c.level) == best
    }


def _distinguished(candidate: Candidate, chosen: Candidate) -> str:
    """Return the variant's name, with its accelerator and provider if they differ from the chosen one's."""
    name = candidate.variant.name
    return name if candidate.place[1:] == chosen.place[1:] else f"{name} on {candidate.where}"


def untried(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the eligible candidates without a verdict, best in ladder order first."""
    return tuple(candidate for candidate in candidates if candidate.eligible and candidate.verdict is None)


def _positions(variant: Variant, profile: Profile) -> list[tuple[tuple[int, int], LadderStep]]:
    """Return the (step, precision) positions of the ladder that fit this variant, once per accelerator."""
    found: dict[str, tuple[tuple[int, int], LadderStep]] = {}
    for index, step in enumerate(profile.ladder):
        fits = step.runtime == variant.runtime and step.accelerator in variant.accelerators
        if fits and variant.precision in step.precisions and step.accelerator not in found:
            found[step.accelerator] = ((index, step.precisions.index(variant.precision)), step)
    return list(found.values())


def _providers(step: LadderStep, runtimes: Mapping[str, RuntimeStatus] | None) -> list[str]:
    """Return the providers to try on a step: "" for the runtime itself, then installed plugins, or a missing one.

    The step's option `providers` limits them, and has the first choice first.
    """
    spec, status = RUNTIMES[step.runtime], (runtimes or {}).get(step.runtime)
    plugins = [plugin.provider for plugin in spec.plugins_on(step.accelerator)]
    found = [""] if not plugins or step.accelerator == CPU or step.accelerator in spec.devices else []
    found += [name for name in plugins if status and name in status.plugins]
    if plugins and (wanted := step.options.get("providers")):
        names = dict.fromkeys(name if name in plugins else "" for name in map(str.strip, wanted.split(",")))
        found, plugins = [name for name in names if name in found], [name for name in names if name]
    return found or plugins[:1] or [""]


def _place(manifest: ModelManifest, variant: Variant, step: LadderStep, provider: str, site: Site) -> Candidate:
    device = None if step.accelerator == CPU else site.inventory.accelerator(step.accelerator)
    allowed = site.profile.budget.memory_bytes
    compiled = f"{site.cache_dir}/{variant.content}" if site.cache_dir and step.accelerator != CPU else ""
    spec = RUNTIMES[variant.runtime]
    most = spec.runs or (site.runs if step.accelerator == CPU else 1)
    runs = min(most, manifest.runs or most)
    chosen = step.isolate or any(fnmatchcase(manifest.name, pattern) for pattern in site.isolated)
    budget = SessionBudget(
        site.threads,
        step.accelerator,
        step.options,
        compiled,
        allowed,
        provider,
        runs,
        site.objective,
        chosen or spec.isolated,
    )
    obstacle = (
        _device_obstacle(step, device)
        or _feature_obstacle(variant, site.inventory)
        or _runtime_obstacle(variant, site.runtimes)
        or _plugin_obstacle(variant, step.accelerator, provider, site.runtimes)
        or _accuracy_loss(manifest, variant.accuracy)
    )
    reason = obstacle or "not tried on this device yet"
    return Candidate(variant, step.accelerator, None, not obstacle, reason, budget, device)


def _unplaced(variant: Variant, profile: Profile) -> Candidate:
    where = ", ".join(variant.accelerators)
    reason = f"profile {profile.name} has no step for {variant.runtime} {variant.precision} on {where}"
    if unknown := [name for name in variant.accelerators if name not in {CPU, *ACCELERATOR_KINDS}]:
        reason = f"{reason}; there is no accelerator {unknown[0]!r}{suggest(unknown[0], ACCELERATOR_KINDS)}"
    return Candidate(variant, None, None, False, reason)


def _device_obstacle(step: LadderStep, device: Accelerator | None) -> str:
    if step.accelerator == CPU:
        return ""
    if device is None:
        return f"this device has no {step.accelerator}"
    rung = device.broken
    if rung is None:
        return ""
    return f"{step.accelerator} at {device.device}: {rung.name}: {rung.detail}" + (
        f"; {rung.remedy}" if rung.remedy else ""
    )


def _feature_obstacle(variant: Variant, inventory: Inventory) -> str:
    missing = [need for need in variant.needs if need not in inventory.cpu.features]
    return f"needs the CPU feature {', '.join(missing)}, which this CPU lacks" if missing else ""


def _runtime_obstacle(variant: Variant, runtimes: Mapping[str, RuntimeStatus] | None) -> str:
    if runtimes is None:
        return ""
    status = runtimes.get(variant.runtime) or RuntimeStatus(variant.runtime, problem="unknown runtime")
    return f"runtime {status.name}: {status.problem}; {status.remedy}".rstrip("; ") if status.problem else ""


def _plugin_obstacle(
    variant: Variant, accelerator: str, provider: str, runtimes: Mapping[str, RuntimeStatus] | None
) -> str:
    if not provider or runtimes is None:
        return ""
    status = runtimes[variant.runtime].plugins.get(provider)
    if status is None:
        missing = RUNTIMES[variant.runtime].plugin(provider).distributions[0]
        return f"{provider} is not installed; {HERE.pip} install {missing}"
    if status.problem:
        return f"{status.problem}; {status.remedy}"
    lacks = status.accelerators is not None and accelerator not in status.accelerators
    return f"{provider} {status.version} offers no {accelerator} on this device" if lacks else ""


def _memory_obstacle(candidate: Candidate, verdict: Verdict) -> str:
    allowed = candidate.budget.memory_bytes
    taken = verdict.measured.memory_bytes if verdict.measured else 0
    if not allowed or taken <= allowed:
        return ""
    return f"takes {taken / 2**20:.0f} MiB of memory, more than the {allowed / 2**20:.0f} MiB that the profile allows"


def _accuracy_loss(manifest: ModelManifest, accuracy: float | None) -> str:
    """Return an obstacle if the release itself states too large a loss of accuracy against its reference variant."""
    reference = manifest.reference()
    if reference is None or reference.accuracy is None or accuracy is None:
        return ""
    return _too_much(manifest, reference.accuracy - accuracy, reference.name)


def _too_much(manifest: ModelManifest, loss: float | None, against: str) -> str:
    allowed = manifest.max_accuracy_loss
    if loss is None or loss <= allowed + 1e-9:
        return ""
    return f"loses {loss:.4f} of accuracy against {against}, more than max_accuracy_loss {allowed:g}"


def climb_trials(inventory: Inventory, candidates: Sequence[Candidate]) -> Inventory:
    """Return the inventory with the rungs that trials decide: `compile`, `golden` and `measured` of each accelerator.

    One variant that passed proves all three. If every trial failed, the rung at which the first one failed is broken.
    """
    return replace(
        inventory, accelerators=tuple(_climbed(accelerator, candidates) for accelerator in inventory.accelerators)
    )


def _climbed(accelerator: Accelerator, candidates: Sequence[Candidate]) -> Accelerator:
    tried = [c for c in candidates if c.accelerator == accelerator.kind and c.verdict is not None]
    passed = next((candidate for candidate in tried if candidate.passed), None)
    if passed is not None:
        judged = {name: Rung(name, True, f"{passed.variant.name}: {passed.reason}") for name in TRIAL_RUNGS}
    elif tried:
        remedy = "update driver and runtime, then run explain --again"
        name = "golden" if tried[0].verdict and tried[0].verdict.answered else "compile"
        judged = {name: Rung(name, False, f"{tried[0].variant.name}: {tried[0].reason}", remedy)}
    else:
        return accelerator
    rungs = tuple(judged.get(rung.name, rung) if rung.ok is None else rung for rung in accelerator.rungs)
    return replace(accelerator, rungs=rungs)
