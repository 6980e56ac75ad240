"""Variants that device profiles ask for, and the file from which each can be made. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.profile import Profile
from gateway.workshop.making.choices import VARIANT_KINDS, VariantKind

FLOATS = ("fp32", "bf16", "fp16")
"""Precisions of files that others are made from, best first."""


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """Variants to make, each with its source.

    `kept` are the release's other variants, `reference` is the float one with which all are compared, `remarks` say
    what is not made.
    """

    tasks: tuple[tuple[VariantKind, Variant], ...]
    kept: tuple[Variant, ...]
    reference: Variant
    remarks: tuple[str, ...]


def wanted_by(profiles: Iterable[Profile]) -> frozenset[tuple[str, str]]:
    """Return the runtimes and precisions in the ladders of device profiles."""
    return frozenset(
        (step.runtime, precision) for each in profiles for step in each.ladder for precision in step.precisions
    )


def make_plan(
    manifest: ModelManifest,
    wanted: Collection[tuple[str, str]],
    only: Sequence[str],
    made: Collection[str],
    features: Collection[str] = (),
) -> QuantizePlan:
    """Return what to make. `only` are names of kinds (none: all); `made` are variants that were made so before.

    `features` are those of this CPU.

    Raises ConfigurationError for an unknown name, or for a model without a float variant.
    """
    known = [kind.name for kind in VARIANT_KINDS]
    unknown = next((name for name in only if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"--only must name some of {', '.join(known)}, not {unknown!r:.80}")
    own = tuple(variant for variant in manifest.variants if variant.name not in made)
    tasks, remarks = list[tuple[VariantKind, Variant]](), list[str]()
    for kind in VARIANT_KINDS:
        is_wanted = not kind.needs and (kind.runtime, kind.precision) in wanted
        if (only and kind.name not in only) or (not only and not is_wanted):
            continue
        source = _source(own, kind)
        if any(variant.name == kind.name for variant in own):
            remarks.append(f"{kind.name} is not made: the release has one of its author")
        elif lacking := [each for each in kind.needs if each not in features]:
            remarks.append(f"{kind.name} is not made: this CPU lacks {', '.join(lacking)}")
        elif source is None:
            remarks.append(f"{kind.name} is not made: it needs a float variant of {' or '.join(kind.sources)}")
        else:
            tasks.append((kind, source))
    new = {kind.name for kind, _ in tasks}
    kept = tuple(variant for variant in manifest.variants if variant.name not in new)
    return QuantizePlan(tuple(tasks), kept, _reference(own), tuple(remarks))


def _reference(own: Sequence[Variant]) -> Variant:
    floats = [variant for variant in own if variant.precision in FLOATS]
    if not floats:
        raise ConfigurationError("the release has no float variant to make others from; add one with models new")
    return min(floats, key=lambda variant: FLOATS.index(variant.precision))


def _source(own: Sequence[Variant], kind: VariantKind) -> Variant | None:
    """Return the best float variant from which a kind is made: by runtime, then by precision."""
    found = [each for each in own if each.runtime in kind.sources and each.precision in FLOATS]
    rank = {each.name: (FLOATS.index(each.precision), kind.sources.index(each.runtime)) for each in found}
    return min(found, key=lambda each: rank[each.name], default=None)
