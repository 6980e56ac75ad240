"""Identities of the devices, kept between simulations: keys, certificates, releases. JSON lines, mode 0600."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fleet.disk import write_durably
from gateway.common.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SimulatedIdentity:
    """An enrolled device.

    `identity`: its key, certificate and chain in PEM. `repository`, `assignment`: paths at the controller. `committed`:
    path, size and digest of what it runs, by slot.
    """

    character: str
    device: str
    identity: str
    repository: str
    assignment: str
    poll_s: float
    committed: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetIdentities:
    """Identities of a fleet. `pinned`: the root from enrolment, as JSON."""

    pinned: str = ""
    identities: tuple[SimulatedIdentity, ...] = ()


def read_identities(file: Path) -> FleetIdentities:
    """Read identities. Return none if the file does not exist. Raise ConfigurationError for any other content."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return FleetIdentities()
    try:
        return FleetIdentities(lines[0], tuple(SimulatedIdentity(**json.loads(line)) for line in lines[1:]))
    except (ValueError, TypeError, IndexError) as error:
        problem = f"holds no simulated devices ({error!s:.100}); remove it to enrol new ones"
        raise ConfigurationError(problem, file=str(file)) from None


def write_identities(file: Path, pinned: str, identities: Iterable[SimulatedIdentity]) -> None:
    """Replace the file atomically. Raise OSError."""
    lines = [pinned, *(json.dumps(asdict(identity)) for identity in identities)]
    write_durably(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
