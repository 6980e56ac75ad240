"""What every runtime checks before it opens a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.domain.errors import VariantError
from gateway.domain.manifest import Variant
from gateway.domain.verdict import Budget


def model_file(variant: Variant, files: Path, suffix: str) -> Path:
    """The artifact to open: the first whose name ends in `suffix`. Raises VariantError where it is not there."""
    path = next((artifact.path for artifact in variant.artifacts if artifact.path.endswith(suffix)), None)
    if path is None:
        names = ", ".join(artifact.path for artifact in variant.artifacts)
        raise VariantError(
            f"variant {variant.name} names no {suffix} file among its artifacts ({names}), which runtime "
            f"{variant.runtime} opens",
            remedy=f"name a {suffix} file under artifacts, or another runtime",
        )
    return existing(files / path)


def existing(file: Path) -> Path:
    """`file`, if it is there. Raises VariantError otherwise."""
    if not file.exists():
        raise VariantError(f"the model file {file} does not exist", remedy="restore it, or remove the variant")
    return file


def check_accelerator(runtime: str, budget: Budget, known: Sequence[str]) -> None:
    """Raises VariantError where the runtime cannot run on the budget's accelerator."""
    if budget.accelerator not in known:
        raise VariantError(
            f"runtime {runtime} cannot use {budget.accelerator}; it can use {', '.join(known)}",
            remedy="correct the variant's accelerators or the device profile's ladder",
        )


def read_options(runtime: str, budget: Budget, known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The budget's options, checked: `known` names each option's values (none: any text). Raises VariantError."""
    for name, value in budget.options.items():
        if name not in known:
            offered = ", ".join(known) or "none"
            raise VariantError(
                f"runtime {runtime} has no option {name!r} on {budget.accelerator}; it has {offered}",
                remedy="correct [ladder.options] of the device profile",
            )
        if known[name] and value not in known[name]:
            raise VariantError(
                f"option {name!r} of runtime {runtime} must be one of {', '.join(known[name])}, not {value!r}",
                remedy="correct [ladder.options] of the device profile",
            )
    return dict(budget.options)
