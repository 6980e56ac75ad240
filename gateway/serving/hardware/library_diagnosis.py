"""Rungs that require execution, decided from the answers of others. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Accelerator, Inventory, Rung, RuntimeListing
from gateway.common.domain.runtimes import RUNTIMES, RuntimeSpec
from gateway.serving.hardware.families import NEEDS
from gateway.serving.hardware.library import LibraryAnswers
from gateway.serving.hardware.rungs import Needs


def library_sets(inventory: Inventory) -> tuple[tuple[str, ...], ...]:
    """Return the sonames to load, one set per kind found: the input of `ask_libraries`."""
    kinds = dict.fromkeys(accelerator.kind for accelerator in inventory.accelerators)
    sets = (tuple(name for group in NEEDS[kind].libraries for name in group) for kind in kinds)
    return tuple(dict.fromkeys(names for names in sets if names))


def climb(inventory: Inventory, libraries: LibraryAnswers, runtimes: Mapping[str, RuntimeListing]) -> Inventory:
    """Return the inventory with the rungs `library` and `runtime`.

    Rungs without an answer stay null, False ones stay False.
    """
    return replace(
        inventory,
        accelerators=tuple(_climbed(found, libraries, runtimes) for found in inventory.accelerators),
    )


def _climbed(
    accelerator: Accelerator, libraries: LibraryAnswers, runtimes: Mapping[str, RuntimeListing]
) -> Accelerator:
    needs = NEEDS[accelerator.kind]
    judged = {"library": _library(needs, libraries), "runtime": _runtime(accelerator.kind, needs, runtimes)}
    rungs = tuple(judged[rung.name] if rung.name in judged and rung.ok is None else rung for rung in accelerator.rungs)
    return replace(accelerator, rungs=rungs)


def _library(needs: Needs, libraries: LibraryAnswers) -> Rung:
    """Return the rung. Each group needs one library that loads; a group without answers leaves the rung null."""
    verdicts = [_group(group, libraries) for group in needs.libraries]
    refused = next((detail for ok, detail in verdicts if ok is False), None)
    if refused is not None:
        return Rung("library", False, refused, f"{needs.library_remedy} (EG-406)")
    if not verdicts or any(ok is None for ok, _ in verdicts):
        return Rung("library", None)
    return Rung("library", True, ", ".join(detail for _, detail in verdicts))


def _group(names: tuple[str, ...], libraries: LibraryAnswers) -> tuple[bool | None, str]:
    answers = {name: libraries[name] for name in names if name in libraries}
    for name, answer in answers.items():
        if answer.loaded:
            return True, name
    problems = [answer.problem for answer in answers.values() if answer.loaded is False]
    return (False, "; ".join(problems)) if problems else (None, "")


def _runtime(kind: str, needs: Needs, runtimes: Mapping[str, RuntimeListing]) -> Rung:
    """Return the rung of the first runtime that lists the accelerator, else that of the first one that could."""
    rungs = [
        _listed(kind, spec, needs, runtimes[spec.name])
        for spec in sorted(RUNTIMES.values(), key=lambda spec: kind not in spec.devices)  # those with a plugin last
        if spec.name in runtimes and spec.lists(kind)
    ]
    return next((rung for rung in rungs if rung.ok), rungs[0] if rungs else Rung("runtime", None))


def _listed(kind: str, spec: RuntimeSpec, needs: Needs, listing: RuntimeListing) -> Rung:
    names = spec.lists(kind)
    name = f"{spec.name} {listing.version}".strip()
    if not listing.ok:
        return Rung("runtime", False, f"{name}: {listing.problem}", f"{spec.remedy}, and run doctor again")
    if listed := [device for device in listing.devices if re.split(r"\.| by ", device)[0] in names]:
        return Rung("runtime", True, f"{name} lists {', '.join(listed)}")
    seen = ", ".join(listing.devices) or "nothing"
    installs = [f"{HERE.pip} install {plugin.distributions[0]}" for plugin in spec.plugins_on(kind)] + [spec.remedy]
    return Rung(
        "runtime",
        False,
        f"{name} lists {seen}, not {' or '.join(names)}",
        f"{needs.runtime_remedy or installs[0]} (EG-408)",
    )
