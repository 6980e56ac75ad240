"""Trials: what may crash, hang or lie is tried in a throw-away process before it serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.domain.errors import VariantError
from gateway.domain.manifest import ModelManifest, Variant
from gateway.domain.verdict import Budget, RuntimeStatus, Signature, Verdict, read_signature, read_verdict
from gateway.runtimes.child import ask_child
from gateway.runtimes.installed import installed_version
from gateway.runtimes.job import Inspection, Listing, Trial
from gateway.runtimes.settings import TrialSettings


async def try_variant(
    manifest: ModelManifest, variant: Variant, files: Path, budget: Budget, settings: TrialSettings
) -> Verdict:
    """Load, judge and measure a variant in a child. Never raises for what the variant does: that is the verdict."""
    try:
        said = await ask_child(Trial(manifest, variant, files, budget), settings.deadline_s, settings)
    except VariantError as error:
        return Verdict(False, str(error), transient=error.transient)
    return read_verdict(said)


async def inspect_file(runtime: str, file: Path, settings: TrialSettings) -> Signature:
    """Inputs and outputs of a bare model file, asked in a child. Raises VariantError."""
    return read_signature(await ask_child(Inspection(runtime, file), settings.deadline_s, settings))


async def runtime_status(name: str, settings: TrialSettings) -> tuple[RuntimeStatus, tuple[str, ...]]:
    """A runtime's version and the devices it lists, asked in a child: listing devices can hang. Never raises."""
    status = installed_version(name)
    if status.problem:
        return status, ()
    try:
        said = await ask_child(Listing(name), settings.listing_deadline_s, settings)
    except VariantError as error:
        return replace(status, problem=error.reason, remedy=error.remedy), ()
    return status, tuple(said["devices"])
