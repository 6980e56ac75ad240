"""Verb `edge-gateway probe`: the inventory of this machine, or of a copied tree."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from gateway.common.domain.inventory import Accelerator
from gateway.common.terminal.tables import mark, print_json, print_table
from gateway.serving import assembly
from gateway.serving.assembly import MachineSurvey
from gateway.serving.cli.common import configured, root_folder
from gateway.serving.hardware.probe import inventory_json


def command(arguments: argparse.Namespace) -> int:
    """Print the inventory."""
    surveyed = asyncio.run(assembly.survey(configured(arguments), root_folder(arguments)))
    if arguments.json:
        print_json(document(surveyed))
    else:
        _print(surveyed)
    return 0


def document(surveyed: MachineSurvey) -> dict[str, Any]:
    """Return the document of `--json`."""
    origin = surveyed.profile.origin if surveyed.profile else None
    providers = {name: plugin.version for name, plugin in surveyed.plugins.items()}
    inventory = inventory_json(surveyed.inventory, surveyed.profile_name)
    return {**inventory, "profile_from": origin, "providers": providers}


def _print(surveyed: MachineSurvey) -> None:
    inventory = surveyed.inventory
    cpu, memory = inventory.cpu, inventory.memory_bytes
    facts = (
        ("profile", surveyed.profile_sentence),
        ("architecture", inventory.arch or "unknown"),
        ("board", inventory.board.model or "unknown"),
        ("processor", f"{cpu.model or 'unknown'} ({cpu.cores or '?'} cores)"),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
        *(("provider", f"{name} {plugin.version}") for name, plugin in surveyed.plugins.items()),
    )
    for name, value in facts:
        print(f"{name:14}{value}")
    print()
    if inventory.accelerators:
        rows = [_row(accelerator) for accelerator in inventory.accelerators]
        print_table(("accelerator", "device", "usable", "rungs", "first broken rung, and what to do"), rows)
    else:
        print("no accelerator other than the CPU was found")
    lines = (f"{remark.subject}: {remark.detail}; {remark.remedy}" for remark in inventory.remarks if remark.remedy)
    for note in (*lines, *inventory.notes):
        print(f"- {note}")


def _row(accelerator: Accelerator) -> tuple[str, ...]:
    broken = accelerator.broken or next(iter(accelerator.warnings), None)
    rungs = " ".join(f"{mark(rung.ok)}{rung.name}" for rung in accelerator.rungs if rung.ok is not None)
    advice = f"{broken.name}: {broken.detail}; {broken.remedy}" if broken else ""
    name = f"{accelerator.kind}\n{accelerator.name}"
    return name, accelerator.device, mark(accelerator.usable), rungs, advice
