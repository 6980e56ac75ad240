"""Trials: work that may crash, hang or return wrong answers runs in a child process before a variant serves."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.verdict import (
    PluginStatus,
    RuntimeStatus,
    SessionBudget,
    Signature,
    Verdict,
    read_signature,
    read_verdict,
)
from gateway.serving.runtimes.child import UnendingPartError, ask_child
from gateway.serving.runtimes.installed import installed_version
from gateway.serving.runtimes.job import Inspection, Listing, Trial
from gateway.serving.runtimes.settings import TrialSettings


async def try_variant(
    manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget, settings: TrialSettings
) -> Verdict:
    """Load, evaluate and measure a variant in a child. Never raises for faults of the variant: the verdict has them.

    A part of the trial that does not end, such as a generated input for which a loop runs forever, is left out in
    another child, as long as the deadline of the whole trial allows. If other load may be why it did not end, the
    verdict is transient, also if the variant passed.
    """
    trial, end_s = Trial(manifest, variant, files, budget), time.monotonic() + settings.deadline_s
    held_up = False
    while True:
        try:
            verdict = read_verdict(await ask_child(trial, round(end_s - time.monotonic(), 1), settings))
            return replace(verdict, transient=held_up or verdict.transient)
        except UnendingPartError as error:
            held_up |= error.transient
            trial = replace(trial, left_out=(*trial.left_out, error.part))
            if time.monotonic() > end_s - settings.part_s:  # too late for another child
                return Verdict(False, str(error), transient=held_up)
        except VariantError as error:
            return Verdict(False, str(error), transient=held_up or error.transient)


async def inspect_file(runtime: str, file: Path, settings: TrialSettings) -> Signature:
    """Return inputs and outputs of a bare model file, read in a child. Raises VariantError."""
    return read_signature(await ask_child(Inspection(runtime, file), settings.deadline_s, settings))


async def runtime_status(name: str, settings: TrialSettings) -> tuple[RuntimeStatus, tuple[str, ...] | None]:
    """Return a runtime's version and devices. A child lists the devices, because that can hang. Never raises.

    A transient fault is tried once more. After the second one the devices are None, not known: trials use them or not.
    """
    status = installed_version(name)
    if status.problem:
        return status, ()
    for _ in range(2):
        try:
            found = await ask_child(Listing(name), settings.deadline_s / 3, settings)
        except VariantError as error:
            if not error.transient:
                return replace(status, problem=error.reason, remedy=error.remedy), ()
        else:
            # together: one that hangs in a driver delays the start once, however many there are
            asked = (_plugin_status(status, name, settings) for name in status.plugins)
            plugins = dict(zip(status.plugins, await asyncio.gather(*asked), strict=True))
            offers = [
                f"{kind} by {name} {one.version}" for name, one in plugins.items() for kind in one.accelerators or ()
            ]
            return replace(status, plugins=plugins), (*found["devices"], *offers)
    return status, None


async def _plugin_status(status: RuntimeStatus, provider: str, settings: TrialSettings) -> PluginStatus:
    """Return what a plugin offers, or why it cannot be used; as it was, if a fault is temporary."""
    plugin, spec = status.plugins[provider], RUNTIMES[status.name].plugin(provider)
    remedy = f"update the device's driver or the package, or {HERE.pip} uninstall {' '.join(spec.distributions)}"
    try:
        found = await ask_child(Listing(status.name, provider), settings.deadline_s / 3, settings)
    except VariantError as error:
        return plugin if error.transient else replace(plugin, problem=error.reason, remedy=remedy)
    problem = "" if found["devices"] else f"{provider} {plugin.version} offers no device that this gateway can use here"
    return replace(plugin, accelerators=tuple(found["devices"]), problem=problem, remedy=remedy)
