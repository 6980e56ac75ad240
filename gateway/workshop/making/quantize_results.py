"""Results of quantization: the quality of each variant, and which of them are kept. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.workshop.making.evaluation import Basis
from gateway.workshop.making.measures import Quality, is_lossy


@dataclass(frozen=True, slots=True)
class VariantResult:
    """Variant with its quality on the held-out samples and the time of a run here; None: it does not run here.

    `note` says what became of it. `is_kept`: it is in the manifest. `golden` is the quality on the golden set, which
    has fewer samples.
    """

    variant: Variant
    quality: Quality | None
    p50_us: float | None
    is_kept: bool
    note: str = ""
    golden: Quality | None = None

    @property
    def size_bytes(self) -> int:
        """Return the size of its files."""
        return sum(artifact.size_bytes for artifact in self.variant.artifacts)


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """Result for all variants; `basis` is what accuracy is, `failures` are kinds that were not made, and why."""

    results: tuple[VariantResult, ...]
    reference: str
    basis: Basis
    failures: dict[str, str]
    manifest: ModelManifest
    remarks: tuple[str, ...] = ()


def decide(measured: Sequence[VariantResult], sources: Mapping[str, Variant], max_loss: float) -> list[VariantResult]:
    """Return the results with variants that were made and lose too much, or do not run here, left out.

    `sources` are the variants from which others were made, by name.
    """
    best = max((each.quality.accuracy for each in measured if each.quality), default=0.0)
    return [
        _judged(each, sources[each.variant.name], best, max_loss)
        if each.variant.name in sources
        else replace(each, is_kept=True)
        for each in measured
    ]


def _judged(each: VariantResult, source: Variant, best: float, max_loss: float) -> VariantResult:
    """Return the result of a variant that was made; it is not kept if it loses too much or gains nothing."""
    if each.quality is None:
        return each
    if is_lossy(each.quality.accuracy, best, max_loss):
        loss = best - each.quality.accuracy
        return replace(each, is_kept=False, note=f"not written: it loses {loss:.4f}, more than {max_loss:g}")
    size = sum(artifact.size_bytes for artifact in source.artifacts)
    if each.variant.precision != "int8" or each.size_bytes < size:
        return each
    if each.quality.mean_abs == 0.0:
        return replace(each, is_kept=False, note="not written: nothing in it was quantized")
    return replace(each, note=f"{each.note}; it is not smaller: little of it was quantized")
