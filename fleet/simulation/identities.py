"""Who the devices are, from one simulation to the next: keys, certificates, what they run. JSON lines, mode 0600."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gateway.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Identity:
    """An enrolled device: `identity` is its key, certificate and chain in PEM; `repository`, `assignment`: paths at the
    controller; `committed`: by slot, path, size and digest of what it runs."""

    character: str
    device: str
    identity: str
    repository: str
    assignment: str
    poll_s: float
    committed: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """All of a fleet. `pinned`: the root that enrolments brought, as JSON."""

    pinned: str = ""
    identities: tuple[Identity, ...] = ()


def read_identities(file: Path) -> Kept:
    """What is kept there; nothing where there is no such file. Raises ConfigurationError for any other content."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return Kept()
    try:
        return Kept(lines[0], tuple(Identity(**json.loads(line)) for line in lines[1:]))
    except (ValueError, TypeError, IndexError) as error:
        problem = f"holds no simulated devices ({error!s:.100}); remove it to enrol new ones"
        raise ConfigurationError(problem, file=str(file)) from None


def write_identities(file: Path, pinned: str, identities: Iterable[Identity]) -> None:
    """Replace what is kept there."""
    made = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(f"{pinned}\n")
        stream.writelines(f"{json.dumps(asdict(identity))}\n" for identity in identities)
    made.replace(file)
