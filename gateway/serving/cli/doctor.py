"""Verb `edge-gateway doctor`: problems of this device in the order of its checks, the first one with its remedy.

`doctor EG-NNN` explains the code of an error; `--bundle FILE` writes a report about this device without secrets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import Accelerator
from gateway.common.domain.selection import Candidate, climb_trials
from gateway.common.terminal.tables import mark, plain, print_json, print_table
from gateway.serving import assembly
from gateway.serving.assembly import HERE, MachineSurvey
from gateway.serving.cli import cameras, checks, probe
from gateway.serving.cli.checks import CheckResult, ExaminedDevice, Results, bounded, refused
from gateway.serving.cli.common import configured, root_folder
from gateway.serving.config import Config, state_folder
from gateway.serving.model_sources import releases_here

LADDER: tuple[tuple[str, float, Callable[[ExaminedDevice], Results] | None], ...] = (
    ("configuration", 10, checks.check_configuration),
    ("permissions", 20, checks.check_permissions),
    ("disk", 10, checks.check_disk),
    ("memory", 20, checks.check_memory),
    ("ports", 10, checks.check_ports),
    ("unit", 10, checks.check_unit),
    ("listeners", 60, checks.check_listeners_answer),
    ("clock", 5, checks.check_clock),
    ("accelerators", 180, None),
    ("broker", 60, checks.check_brokers),
    ("cameras", 180, cameras.check_cameras),
    ("agent", 30, checks.check_agent),
    ("certificates", 10, checks.check_certificates),
    ("models", 60, checks.check_models),
)
"""Checks with their deadlines in seconds, first what a service cannot do without. None: that of `Examination`."""


def command(arguments: argparse.Namespace) -> int:
    """Print the checks and findings; return 1 if there are findings."""
    if arguments.code:
        from gateway.serving.cli.error_codes import print_entry

        return print_entry(arguments.code)
    if arguments.bundle:
        from gateway.serving.cli.bundle import check_name

        check_name(arguments.bundle)
    examination = Examination(arguments)
    examination.carry_out(silent=arguments.json)
    if arguments.bundle:
        from gateway.serving.cli.bundle import print_bundle, write_bundle

        documents: dict[str, Callable[[], Any]] = {"doctor.json": examination.document}
        if examination.surveyed is not None:
            documents["probe.json"] = partial(probe.document, examination.surveyed)
        written = write_bundle(arguments.bundle, examination.device, documents)
        if arguments.json:
            files = [{"file": title, "bytes": int(size or 0), "remark": remark} for title, size, remark in written]
            print_json({**examination.document(), "bundle": {"file": arguments.bundle, "files": files}})
        else:
            print_bundle(arguments.bundle, written)
    elif arguments.json:
        print_json(examination.document())
    else:
        _print_findings(examination.findings)
    _leave_hanging_threads(code := 1 if examination.findings else 0)
    return code


class Examination:
    """Checks of one device, with their results. Another device's tree has accelerators only."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.root = ExaminedDevice(arguments), root_folder(arguments)
        self.surveyed: MachineSurvey | None = None
        self.checks: list[CheckResult] = []

    @property
    def findings(self) -> list[CheckResult]:
        """Return the failed checks, in order."""
        return [check for check in self.checks if check.ok is False]

    def carry_out(self, *, silent: bool) -> None:
        """Carry out all checks, one after the other; print each result unless `silent`."""
        if self.root != HERE:
            self.device.config = configured(self.device.arguments)
        for name, limit_s, check in LADDER:
            if self.root == HERE or check is None:
                found = bounded(name, limit_s, partial(check, self.device) if check else self._accelerators)
                self.checks += found
                for one in () if silent else found:
                    _print_check(one)
        for note in self.surveyed.inventory.notes if self.surveyed and not silent else ():
            print(plain(f"- {note}"))

    def document(self) -> dict[str, Any]:
        """Return the document of `--json`; the first of `findings` is to be mended first."""
        surveyed = self.surveyed
        return {
            "profile": surveyed.profile_name if surveyed else None,
            "profile_from": surveyed.profile.origin if surveyed and surveyed.profile else None,
            "findings": [
                {"subject": one.subject, "problem": one.detail, "remedy": one.remedy, "code": one.code or None}
                for one in self.findings
            ],
            "notes": surveyed.inventory.notes if surveyed else [],
            "checks": [asdict(one) for one in self.checks],
        }

    def _accelerators(self) -> Results:
        config = self.device.config or Config()
        self.surveyed = surveyed = asyncio.run(assembly.survey(config, self.root, ask_all=True))
        if self.root == HERE:
            problems: list[str] = []
            trials = _trials(config, surveyed, state_folder(self.device.arguments.state), problems.append)
            yield from (refused("state", ConfigurationError(problem)) for problem in problems)
            climbed = climb_trials(surveyed.inventory, trials)
            self.surveyed = surveyed = MachineSurvey(climbed, surveyed.profile, surveyed.statuses, surveyed.listings)
        yield CheckResult("profile", surveyed.profile is not None or None, surveyed.profile_sentence)
        yield from _runtimes(surveyed)
        for accelerator in surveyed.inventory.accelerators:
            yield from _accelerator(self.device, accelerator)
        for remark in surveyed.inventory.remarks:
            if remark.remedy:
                yield CheckResult(remark.subject, False, remark.detail, remark.remedy)


def _accelerator(device: ExaminedDevice, accelerator: Accelerator) -> Results:
    """Yield the first broken rung and the warnings. The permission is that of the service's user, where it is known."""
    subject = f"{accelerator.kind} at {accelerator.device}"
    allowed = checks.may_open(device, accelerator.device)
    broken = next(
        (rung for rung in accelerator.rungs if rung.ok is False and (rung.name, allowed) != ("permission", True)), None
    )
    if allowed is False and device.account and (broken is None or broken.name != "permission"):
        remedy = (
            f"sudo usermod -aG $(stat -c %G {accelerator.device}) {device.account.name} && "
            "sudo systemctl restart edge-gateway (EG-404)"
        )
        problem = f"permission: the service's user {device.account.name} may not open {accelerator.device}"
        yield CheckResult(subject, False, problem, remedy)
    elif broken is None:
        yield CheckResult(subject, True, accelerator.name)
    for rung in (broken, *accelerator.warnings):
        if rung is not None:
            yield CheckResult(subject, False, f"{rung.name}: {rung.detail}", rung.remedy)


def _runtimes(surveyed: MachineSurvey) -> Results:
    """Yield runtimes with what they list, those that are broken or in conflict, and plugins that cannot be used.

    An absent one is no finding as long as any engine is installed.
    """
    statuses = (surveyed.statuses or {}).values()
    engines = [status for status in statuses if status.name != "reference"]
    absent_all = bool(engines) and not any(status.version for status in engines)
    for status in statuses:
        listed = ", ".join(surveyed.listings[status.name].devices) if status.name in surveyed.listings else ""
        is_finding = status.problem and status in engines and (status.version or absent_all)
        ok = False if is_finding else None if status.problem else True
        detail = status.problem or f"{status.version} lists {listed}"
        yield CheckResult(f"runtime {status.name}", ok, detail, status.remedy if status.problem else "")
    for provider, plugin in surveyed.plugins.items():
        if plugin.problem:
            yield CheckResult(f"provider {provider} {plugin.version}", False, plugin.problem, plugin.remedy)


def _trials(config: Config, surveyed: MachineSurvey, folder: Path, remark: Callable[[str], None]) -> list[Candidate]:
    """Return the candidates with the results of earlier trials on this device, without new trials."""
    if surveyed.profile is None or not os.path.lexists(folder):  # also False if the folder is not accessible
        return []
    with assembly.opened(config, surveyed, folder, remark) as loader:
        try:
            releases = asyncio.run(releases_here(config))
        except ConfigurationError:  # reported by the check of models
            return []
        manifests = [release.manifest for release in releases if release.manifest]
        return [candidate for manifest in manifests for candidate in loader.candidates(manifest)]


def _print_check(check: CheckResult) -> None:
    place = check.subject if check.subject.startswith((check.rung, "runtime")) else f"{check.rung}: {check.subject}"
    print(plain(f"{mark(check.ok)} {place}: {check.detail}"), flush=True)


def _print_findings(findings: list[CheckResult]) -> None:
    if not findings:
        print("\nno problem found")
        return
    first, *others = findings
    problem, remedy = _without_code(first)
    print(plain(f"\nfirst: {first.subject}: {problem}\nmend it: {remedy}"))
    if first.code:
        print(f"more: edge-gateway doctor {first.code}")
    if others:
        print("\nthen")
        rows = [(one.subject, *_without_code(one), one.code) for one in others]
        print_table(("where", "what is wrong", "what to do", "code"), rows)


def _without_code(check: CheckResult) -> tuple[str, str]:
    """Return problem and remedy without the code, so that commands can be copied."""
    mark = f" ({check.code})"
    return check.detail.replace(mark, ""), check.remedy.replace(mark, "") or "do what the problem says"


def _leave_hanging_threads(code: int) -> None:
    """End this process if a check hangs in a library or driver: an ordinary exit could wait for its threads."""
    if any(thread.name.startswith("doctor-") for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(code)
