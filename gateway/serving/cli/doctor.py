"""Verb `edge-gateway doctor`: problems of this device, such as each accelerator's first broken rung, with remedies."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import Inventory
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.domain.selection import Candidate, climb_trials
from gateway.common.terminal.tables import mark, print_json, print_table
from gateway.serving import assembly
from gateway.serving.assembly import HERE, MachineSurvey
from gateway.serving.cli.common import configured, root_folder
from gateway.serving.cli.mqtt_choice import broker_faults
from gateway.serving.config import Config, check_listeners, exposed_secrets, read_security, state_folder
from gateway.serving.model_sources import releases_here


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Problem to fix: its subject, its description and its remedy."""

    subject: str
    problem: str
    remedy: str


def command(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any."""
    config, root = configured(arguments), root_folder(arguments)
    surveyed = asyncio.run(assembly.survey(config, root, ask_all=True))
    findings: list[Diagnosis] = []
    if root == HERE:
        surveyed, findings = _with_trials(config, surveyed, state_folder(arguments.state))
    findings += [*_hardware(surveyed.inventory), *_runtimes(surveyed)]
    if root == HERE:
        findings += [*_models(config), *_listeners(config)]
    if arguments.json:
        origin = surveyed.profile.origin if surveyed.profile else None
        print_json(
            {
                "profile": surveyed.profile_name,
                "profile_from": origin,
                "findings": [asdict(finding) for finding in findings],
                "notes": surveyed.inventory.notes,
            }
        )
    else:
        _print(surveyed, findings)
    return 1 if findings else 0


def _hardware(inventory: Inventory) -> list[Diagnosis]:
    findings = [
        Diagnosis(f"{found.kind} at {found.device}", f"{rung.name}: {rung.detail}", rung.remedy)
        for found in inventory.accelerators
        for rung in (found.broken, *found.warnings)
        if rung is not None
    ]
    return findings + [
        Diagnosis(remark.subject, remark.detail, remark.remedy) for remark in inventory.remarks if remark.remedy
    ]


def _runtimes(surveyed: MachineSurvey) -> list[Diagnosis]:
    """Return runtimes that are broken or in conflict, and plugins that cannot be used.

    An absent one is no finding as long as any engine is installed.
    """
    statuses = (surveyed.statuses or {}).values()
    engines = [status for status in statuses if status.name != "reference"]
    absent_all = bool(engines) and not any(status.version for status in engines)
    return [
        Diagnosis(f"runtime {status.name}", status.problem, status.remedy)
        for status in engines
        if status.problem and (status.version or absent_all)
    ] + [
        Diagnosis(f"provider {provider} {plugin.version}", plugin.problem, plugin.remedy)
        for provider, plugin in surveyed.plugins.items()
        if plugin.problem
    ]


def _with_trials(config: Config, surveyed: MachineSurvey, folder: Path) -> tuple[MachineSurvey, list[Diagnosis]]:
    """Return the survey with the rungs of earlier trials, and findings if the state cannot be written."""
    problems: list[str] = []
    inventory = climb_trials(surveyed.inventory, _trials(config, surveyed, folder, problems.append))
    findings = [Diagnosis("state", *problem.rsplit("; ", 1)) for problem in problems]
    return MachineSurvey(inventory, surveyed.profile, surveyed.statuses, surveyed.listings), findings


def _trials(config: Config, surveyed: MachineSurvey, folder: Path, remark: Callable[[str], None]) -> list[Candidate]:
    """Return the candidates with the results of earlier trials on this device, without new trials."""
    if surveyed.profile is None or not os.path.lexists(folder):  # also False if the folder is not accessible
        return []
    with assembly.opened(config, surveyed, folder, remark) as loader:
        try:
            releases = asyncio.run(releases_here(config))
        except ConfigurationError:  # reported as a finding of its own
            return []
        manifests = [release.manifest for release in releases if release.manifest]
        return [candidate for manifest in manifests for candidate in loader.candidates(manifest)]


def _models(config: Config) -> list[Diagnosis]:
    try:
        releases = asyncio.run(releases_here(config))
    except ConfigurationError as error:
        return [Diagnosis("models", str(error), "")]
    return [_unserved(release) for release in releases if release.problem]


def _unserved(release: Release) -> Diagnosis:
    version = "" if release.version in {"", NO_VERSION} else f" version {release.version}"
    return Diagnosis(f"model {release.name}{version}", release.problem, "do what the problem says, or remove the files")


def _listeners(config: Config) -> list[Diagnosis]:
    try:
        check_listeners(config, read_security(config))
    except ConfigurationError as error:
        return [Diagnosis("configuration", str(error), "")]
    found = [Diagnosis(setting, *problem) for setting, problem in exposed_secrets(config).items()]
    remedy = "correct it; the gateway tries this broker again and serves the rest"
    return found + [Diagnosis("MQTT broker", fault, remedy) for fault in broker_faults(config)]


def _print(surveyed: MachineSurvey, findings: list[Diagnosis]) -> None:
    print(f"profile {surveyed.profile_sentence}")
    for name, status in (surveyed.statuses or {}).items():
        listed = ", ".join(surveyed.listings[name].devices) if name in surveyed.listings else ""
        what = f"{status.version} lists {listed}" if status.version else status.problem
        print(f"{mark(not status.problem)} runtime {name}: {what}")
    for accelerator in surveyed.inventory.accelerators:
        print(f"{mark(accelerator.usable)} {accelerator.kind} at {accelerator.device}: {accelerator.name}")
    for note in surveyed.inventory.notes:
        print(f"- {note}")
    if not findings:
        print("\nno problem found")
        return
    print()
    print_table(("where", "what is wrong", "what to do"), [(f.subject, f.problem, f.remedy) for f in findings])
