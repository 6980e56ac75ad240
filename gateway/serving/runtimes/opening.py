"""Checks of every runtime before it opens a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Variant
from gateway.common.domain.verdict import SessionBudget


def model_file(variant: Variant, files: Path, suffix: str) -> Path:
    """Return the artifact to open: the first whose name ends in `suffix`.

    Raises VariantError if there is none, or an artifact of the variant is absent or cannot be read.
    """
    path = next((artifact.path for artifact in variant.artifacts if artifact.path.endswith(suffix)), None)
    if path is None:
        names = ", ".join(artifact.path for artifact in variant.artifacts)
        raise VariantError(
            f"variant {variant.name} names no {suffix} file among its artifacts ({names}), which runtime "
            f"{variant.runtime} opens",
            remedy=f"name a {suffix} file under artifacts, or another runtime",
        )
    for artifact in variant.artifacts:
        existing(files / artifact.path)
    return files / path


def existing(file: Path) -> Path:
    """Return `file`. Raises VariantError if it is absent, and a transient one if it cannot be read."""
    try:
        with file.open("rb"):
            return file
    except (FileNotFoundError, NotADirectoryError):
        raise VariantError(
            f"the model file {file} does not exist", remedy="restore it, or remove the variant"
        ) from None
    except OSError as error:
        remedy = "let the gateway's user read it and each folder above it (chmod, chown), then reload the gateway"
        problem = f"the model file {file} cannot be read: {error.strerror or error}"
        raise VariantError(problem, remedy=remedy, transient=True) from None


def check_accelerator(runtime: str, budget: SessionBudget, known: Sequence[str]) -> None:
    """Check that the runtime can run on the budget's accelerator. Raises VariantError."""
    if budget.accelerator not in known:
        raise VariantError(
            f"runtime {runtime} cannot use {budget.accelerator}; it can use {', '.join(known)}",
            remedy="correct the variant's accelerators or the device profile's ladder",
        )


def read_options(runtime: str, budget: SessionBudget, known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the budget's options, checked. Raises VariantError.

    `known` lists each option's values (none: any text).
    """
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
