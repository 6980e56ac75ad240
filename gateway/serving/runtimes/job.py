"""Messages between parent and child: a job is written to stdin, lines of JSON are read from stdout."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.settings import TrialSettings


@dataclass(frozen=True, slots=True)
class Trial:
    """Task to open, evaluate and measure one variant.

    `left_out` are parts (see `ChildLine`) that did not end in an earlier process.
    """

    manifest: ModelManifest
    variant: Variant
    files: Path
    budget: SessionBudget
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """Task to report inputs and outputs of a bare model file."""

    runtime: str
    file: Path


@dataclass(frozen=True, slots=True)
class Listing:
    """Task to list the devices of a runtime, or the accelerators that one of its plugins offers."""

    runtime: str
    plugin: str = ""


Task = Trial | Inspection | Listing

FORKED, AGAIN = b"f", b"a"
"""Message to the fork server: fork a process for the task, or let the forked process begin again by exec.

The libraries of accelerators must not be forked (CUDA C++ Programming Guide, "Initialization").
"""
REPORT = struct.Struct("<idq")
"""Report of the fork server on the end of a process: exit code (-N: signal N), CPU time in s, most memory in KiB."""


@dataclass(frozen=True, slots=True)
class ChildTask:
    """Task with its settings."""

    task: Task
    settings: TrialSettings


def write_job(job: ChildTask) -> bytes:
    """Return a job as a pickle: it is only sent from a process to its own child."""
    return pickle.dumps(job)


def read_job(stream: IO[bytes]) -> ChildTask:
    """Read one job. Raises EOFError if the parent has ended."""
    job: ChildTask = pickle.load(stream)  # noqa: S301 - written by our own parent
    return job


@dataclass(frozen=True, slots=True)
class ChildLine:
    """Line of the child: its stage, its result, or the problem that ended it.

    `transient`: the fault is temporary. A stage that is a `part` may be left out, and is abandoned if it takes longer
    than `limit_s`.
    """

    stage: str = ""
    part: str = ""
    limit_s: float | None = None
    result: Mapping[str, Any] | None = None
    problem: str = ""
    remedy: str = ""
    transient: bool = False

    def encode(self) -> bytes:
        """Return the line as JSON with a newline."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_line(raw: bytes) -> ChildLine:
    """Parse a line of the child. Raises VariantError for other content."""
    try:
        document = json.loads(raw)
        facts = ("stage", "part", "limit_s", "result", "problem", "remedy", "transient")
        return ChildLine(*(document[fact] for fact in facts))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VariantError(f"the trial process answered nonsense: {raw[:80]!r}") from error
