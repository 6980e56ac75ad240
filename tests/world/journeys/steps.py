"""Steps of a journey: a bare file, `models new`, `models quantize`, and a daemon that serves what they left."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulators.daemon import QUIET, SHORT_TRIALS, running
from tests.simulators.workshop_tools import models as models_command
from tests.world.answers import Judgement, compare
from tests.world.direct import open_direct
from tests.world.entry import Tensors
from tests.world.journeys.record import Ask, Bound, Journey
from tests.world.journeys.served import Served

RUNTIMES = {".onnx": "onnx", ".tflite": "litert", ".xml": "openvino"}
DESCRIBED = "1"
"""Version as `models new` and its author leave it."""
QUANTIZED = "quantized"
"""Version with all variants; each variant that was made is a version of its own, too."""
KEPT_LOSS = 0.01
"""Loss of accuracy up to which variants are kept and served by default."""
MAX_LOSS = "1"
"""Loss of accuracy that is allowed to variants: all that run are kept, and compared with the package."""
EXAMPLES = 3
"""Answers outside a bound that are told."""


class JourneyError(Exception):
    """A command of the journey failed."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Answers of one step: how many were asked and are within the bound, and the greatest distance of the latter."""

    asked: int
    within: int
    worst: float
    bound: Bound

    @property
    def reached(self) -> bool:
        """Return True if enough answers are within the bound."""
        return self.within >= self.bound.share * self.asked - 1e-9


@dataclass(frozen=True, slots=True)
class MadeVariant:
    """Variant as `models quantize` told it; `grade` is its agreement with the package (None: tensors only)."""

    told: dict[str, Any]
    loss: float
    grade: Grade | None

    @property
    def is_kept(self) -> bool:
        """Return True if `models quantize` keeps it by default."""
        return self.loss <= KEPT_LOSS


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a journey. `problems` are answers outside the bounds."""

    journey: Journey
    runtime: str
    task: str
    size_bytes: int
    p50_us: float | None
    bare: dict[Judgement, int]
    results: Grade | None
    files: Grade | None
    variants: Sequence[MadeVariant]
    accuracy_is: str
    failures: Sequence[str]
    problems: Sequence[str]


def travel(journey: Journey, packages: Path, folder: Path) -> Outcome:
    """Take one model through all steps in an empty `folder`. Raises JourneyError if a command fails."""
    (folder / "made").mkdir(parents=True)
    library, made = folder / "models", folder / "made"
    file, asks = journey.file(packages, made), journey.asks(packages)
    _lay_bare(file, library / f"{journey.name}-bare")
    if journey.refused:
        return _bare_only(journey, file, packages, library, asks)
    kind = _described(journey, file, packages, library)
    checked = _checked(library / journey.name / DESCRIBED)
    told = _quantized(journey, packages, library) if journey.calibration else {}
    best = max((each["accuracy"] or 0.0 for each in told.get("variants", [])), default=0.0)
    variants = [each for each in told.get("variants", []) if each["note"].startswith("made") and each["kept"]]
    with running(folder / "gateway", models=library, config=QUIET + SHORT_TRIALS) as daemon:
        served = Served(daemon, journey)
        bare, problems = _bare(served, file, asks)
        results = graded(journey, served.results(DESCRIBED, asks), asks, journey.bounds.results)
        of_files = [Ask(ask.tensors, ask.file_answer) for ask in asks if ask.file]
        posted = served.files(DESCRIBED, asks) if journey.compare else []
        files = graded(journey, posted, of_files, journey.bounds.files)
        bound = journey.bounds.quantized
        made_ones = [
            MadeVariant(each, best - each["accuracy"], graded(journey, served.results(each["name"], asks), asks, bound))
            for each in variants
        ]
    problems += unreached(
        {"models new": results, "files": files, **{each.told["name"]: each.grade for each in made_ones if each.is_kept}}
    )
    return Outcome(
        journey,
        RUNTIMES[file.suffix],
        kind,
        sum(each.stat().st_size for each in _parts(file)),
        checked["measured"]["p50_us"],
        bare,
        results,
        files,
        made_ones,
        told.get("accuracy_is", ""),
        _failures(told),
        problems,
    )


def _bare_only(journey: Journey, file: Path, packages: Path, library: Path, asks: Sequence[Ask]) -> Outcome:
    """Return the outcome of a file that `models new` refuses; JourneyError if it says something else."""
    try:
        _described(journey, file, packages, library)
    except JourneyError as error:
        if journey.refused not in str(error):
            raise
    else:
        raise JourneyError("models new takes it by now: remove `refused`")
    with running(library.parent / "gateway", models=library, config=QUIET + SHORT_TRIALS) as daemon:
        bare, problems = _bare(Served(daemon, journey), file, asks)
    size = sum(each.stat().st_size for each in _parts(file))
    runtime, reason = RUNTIMES[file.suffix], f"models new refuses it: {journey.refused}"
    return Outcome(journey, runtime, "", size, None, bare, None, None, (), "", [reason], problems)


def _failures(told: dict[str, Any]) -> list[str]:
    """Return which variants could not be made, or do not run, and why."""
    remarks = [each for each in told.get("remarks", []) if "could not be made" in each]
    return remarks + [f"{each['name']}: {each['note']}" for each in told.get("variants", []) if not each["kept"]]


def _parts(file: Path) -> list[Path]:
    return [each for each in (file, file.with_suffix(".bin")) if each.exists()]


def _lay_bare(file: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for each in _parts(file):
        shutil.copyfile(each, target / each.name)


def _command(*arguments: object) -> dict[str, Any]:
    """Run an action of `edge-gateway models`, and return what it told; 1 is a finding, not a failure."""
    done = models_command(*arguments, "--json")
    if done.returncode not in {0, 1} or not done.stdout.startswith("{"):
        raise JourneyError(f"models {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _described(journey: Journey, file: Path, packages: Path, library: Path) -> str:
    """Write the version by `models new`, and correct it as its author. Return the kind of its task."""
    options: list[object] = ["--name", journey.name, "--version", DESCRIBED, "--models", library]
    if labels := list(journey.labels(packages)):
        names = library.parent / "labels.json"
        names.write_text(json.dumps(labels))
        options += ["--labels", names]
    _command("new", file, *journey.options, *options)
    manifest = library / journey.name / DESCRIBED / "manifest.toml"
    text = journey.edit(manifest.read_text())
    manifest.write_text(text)
    found = re.search(r'^\[task\]\nkind = "(.*)"', text, re.MULTILINE)
    return found[1] if found else ""


def _checked(folder: Path) -> dict[str, Any]:
    """Return what `models check` measured of the only variant. Raises JourneyError if it does not pass."""
    told = _command("check", folder)
    if not told["ok"]:
        raise JourneyError(f"models check {folder}: {json.dumps(told['releases'])}")
    variant: dict[str, Any] = told["releases"][0]["variants"][0]
    return variant


def _quantized(journey: Journey, packages: Path, library: Path) -> dict[str, Any]:
    """Quantize a copy, and lay out each variant that was made as a version of its own."""
    assert journey.calibration is not None
    folder, samples = _copied(library / journey.name, DESCRIBED, QUANTIZED), library.parent / "samples"
    samples.mkdir()
    journey.calibration(packages, samples)
    told = _command("quantize", folder, "--calibration", samples, "--max-loss", MAX_LOSS)
    for variant in told["variants"]:
        if variant["note"].startswith("made") and variant["kept"]:
            manifest = _copied(library / journey.name, QUANTIZED, variant["name"]) / "manifest.toml"
            head, *blocks = manifest.read_text().split("\n[[variant]]\n")
            (block,) = (each for each in blocks if f'name = "{variant["name"]}"' in each.splitlines())
            manifest.write_text(f"{head}\n[[variant]]\n{block}")
    return told


def _copied(model: Path, version: str, other: str) -> Path:
    """Copy a version to another one. Return its folder."""
    shutil.copytree(model / version, model / other, ignore=shutil.ignore_patterns(".quantized"))
    manifest = model / other / "manifest.toml"
    manifest.write_text(manifest.read_text().replace(f'version = "{version}"', f'version = "{other}"', 1))
    return model / other


def _bare(served: Served, file: Path, asks: Sequence[Ask]) -> tuple[dict[Judgement, int], list[str]]:
    """Return how many answers of the bare model are those of the package's session, or of the runtime."""
    direct = None if asks[0].outputs else open_direct(RUNTIMES[file.suffix], file)
    counts, problems, carried = dict.fromkeys(Judgement, 0), list[str](), Tensors()
    for number, (ask, got) in enumerate(zip(asks, served.bare(asks), strict=True)):
        tensors = ask.tensors | {name: carried[output] for name, output in ask.carried.items()}
        expected = ask.outputs or {} if direct is None else direct.run(tensors)
        carried = expected
        judged = compare(got, expected, shapes_only=number < served.journey.settles)
        counts[judged] += 1
        if judged is Judgement.WRONG and len(problems) < EXAMPLES:
            problems.append(f"bare file, input {number}: {_difference(got, expected)}")
    return counts, problems


def _difference(got: Tensors, expected: Tensors) -> str:
    parts = []
    for name, array in expected.items():
        other = got.get(name, np.empty(0))
        same = other.shape == array.shape and array.dtype.kind == "f"
        parts.append(f"{name} is {np.abs(other - array).max():.3g} off" if same else f"{name} {other.shape}")
    return ", ".join(parts)


def graded(journey: Journey, results: Sequence[Any], asks: Sequence[Ask], bound: Bound) -> Grade | None:
    """Return how many results are within `bound` of the package's answers; None if there are none."""
    if not results or journey.compare is None:
        return None
    pairs = list(zip(results, asks, strict=True))[journey.settles :]
    distances = [journey.compare(result, ask.answer) for result, ask in pairs]
    within = [each for each in distances if each <= bound.distance]
    return Grade(len(distances), len(within), max(within, default=math.inf), bound)


def unreached(grades: dict[str, Grade | None]) -> list[str]:
    return [
        f"{step}: {grade.within} of {grade.asked} answers are within {grade.bound.distance:g} of the package's, "
        f"{grade.bound.share:.0%} must be"
        for step, grade in grades.items()
        if grade is not None and not grade.reached
    ]
