"""What parent and child say to each other: a job goes in by stdin, lines of JSON come out by stdout."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gateway.domain.errors import VariantError
from gateway.domain.manifest import ModelManifest, TensorSpec, Variant
from gateway.domain.tensor import DATATYPES
from gateway.domain.verdict import Budget, Measurement, Signature, Verdict
from gateway.runtimes.settings import TrialSettings


@dataclass(frozen=True, slots=True)
class Trial:
    """Open, judge and measure one variant."""

    manifest: ModelManifest
    variant: Variant
    files: Path
    budget: Budget


@dataclass(frozen=True, slots=True)
class Inspection:
    """Inputs and outputs of a bare model file."""

    runtime: str
    file: Path


@dataclass(frozen=True, slots=True)
class Listing:
    """Devices of a runtime."""

    runtime: str


Task = Trial | Inspection | Listing


@dataclass(frozen=True, slots=True)
class Job:
    """A task, and who waits for it."""

    task: Task
    settings: TrialSettings
    parent_pid: int


def write_job(job: Job) -> bytes:
    """A pickle: it only ever goes from a process to its own child."""
    return pickle.dumps(job)


def read_job(stream: IO[bytes]) -> Job:
    """Read one job. Raises EOFError where the parent has gone."""
    job: Job = pickle.load(stream)  # noqa: S301 - written by our own parent
    return job


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the child: the stage it has reached, its result, or the problem that ended it (`transient`: the fault
    of the moment)."""

    stage: str = ""
    result: Mapping[str, Any] | None = None
    problem: str = ""
    remedy: str = ""
    transient: bool = False

    def encode(self) -> bytes:
        """JSON and a newline."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_line(raw: bytes) -> Line:
    """Raises VariantError where the child said something else."""
    try:
        said = json.loads(raw)
        return Line(said["stage"], said["result"], said["problem"], said["remedy"], said["transient"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VariantError(f"the trial process answered nonsense: {raw[:80]!r}") from error


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Plain values only."""
    return asdict(verdict)


def verdict_from_json(said: Mapping[str, Any]) -> Verdict:
    """The inverse of `verdict_to_json`."""
    measured = said["measured"]
    return Verdict(**{**said, "measured": Measurement(**measured) if measured is not None else None})


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """Names, datatypes and shapes."""
    return {
        "inputs": [_described(spec) for spec in signature.inputs],
        "outputs": list(map(_described, signature.outputs)),
    }


def signature_from_json(said: Mapping[str, Any]) -> Signature:
    """The inverse of `signature_to_json`."""
    return Signature(tuple(map(_spec, said["inputs"])), tuple(map(_spec, said["outputs"])))


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.label, "shape": list(spec.shape)}


def _spec(said: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(said["name"], DATATYPES[said["datatype"]], tuple(said["shape"]))
