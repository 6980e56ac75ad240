"""Table of journeys: in the terminal, as Markdown for a document, as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gateway.common.terminal.tables import print_table
from tests.world.answers import Judgement
from tests.world.journeys.steps import Grade, MadeVariant, Outcome

HEAD = ("model", "package", "licence", "MB", "runtime, task", "bare file", "models new", "images", "p50")
VARIANT_HEAD = ("model", "variant", "accuracy by models quantize", "kept", "answers of the package", "MB", "p50")


def print_outcomes(outcomes: Sequence[Outcome], packages: Path) -> None:
    """Print one table of models and one of variants."""
    print_table(HEAD, rows(outcomes, packages))
    print_table(VARIANT_HEAD, variant_rows(outcomes))
    for outcome in outcomes:
        for each in (*outcome.failures, *outcome.problems):
            print(f"{outcome.journey.name}: {each}")


def rows(outcomes: Sequence[Outcome], packages: Path) -> list[tuple[str, ...]]:
    """Return a row for each model."""
    known = {each.name.lower().replace("_", "-"): each for each in distributions(path=[str(packages)])}
    found = []
    for each in outcomes:
        package = known[each.journey.package]
        task = f"{each.runtime}, {each.task or 'tensors'}"
        found.append(
            (
                each.journey.name,
                f"{each.journey.package} {package.version}",
                _licence(package.metadata),
                _megabytes(each.size_bytes),
                task,
                _bare(each),
                f"{_grade(each.results)} ({each.journey.unit})" if each.results else "—",
                _grade(each.files),
                _time(each.p50_us),
            )
        )
    return found


def variant_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each variant that was made, or the reason why there is none."""
    found = []
    for each in outcomes:
        if not each.journey.calibration:
            found.append((each.journey.name, "none", each.journey.unquantized, "", "", "", ""))
        found += [_variant(each, variant) for variant in each.variants]
    return found


def markdown(outcomes: Sequence[Outcome], packages: Path) -> str:
    """Return both tables for a document."""
    tables = ((HEAD, rows(outcomes, packages)), (VARIANT_HEAD, variant_rows(outcomes)))
    return "\n".join("".join(_lines(head, body)) for head, body in tables)


def document(outcome: Outcome) -> dict[str, Any]:
    """Return everything of an outcome for programs."""
    return {
        "name": outcome.journey.name,
        "package": outcome.journey.package,
        "runtime": outcome.runtime,
        "task": outcome.task,
        "bytes": outcome.size_bytes,
        "p50_us": outcome.p50_us,
        "bare": {judgement.value: count for judgement, count in outcome.bare.items()},
        "results": outcome.results and asdict(outcome.results),
        "files": outcome.files and asdict(outcome.files),
        "accuracy_is": outcome.accuracy_is,
        "variants": [
            {**each.told, "kept_by_default": each.is_kept, "agreement": each.grade and asdict(each.grade)}
            for each in outcome.variants
        ],
        "failures": list(outcome.failures),
        "problems": list(outcome.problems),
    }


def _variant(outcome: Outcome, variant: MadeVariant) -> tuple[str, ...]:
    told = variant.told
    accuracy = f"{told['accuracy']:.4f} ({outcome.accuracy_is})"
    kept = "yes" if variant.is_kept else "no"
    size, time = _megabytes(told["bytes"]), _time(told["p50_us"])
    return outcome.journey.name, told["name"], accuracy, kept, _grade(variant.grade), size, time


def _bare(outcome: Outcome) -> str:
    counts = outcome.bare
    rounded = f", {counts[Judgement.ROUNDED]} rounded" if counts[Judgement.ROUNDED] else ""
    wrong = f", {counts[Judgement.WRONG]} WRONG" if counts[Judgement.WRONG] else ""
    return f"{counts[Judgement.EXACT]} of {sum(counts.values())} exact{rounded}{wrong}"


def _grade(grade: Grade | None) -> str:
    return f"{grade.within} of {grade.asked} within {grade.bound.distance:g}" if grade else "—"


def _licence(metadata: Any) -> str:
    """Return the licence in the metadata: its expression, its short text, or its classifier."""
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or [] if "License" in each]
    texts = (metadata.get("License-Expression"), metadata.get("License"), *classifiers)
    return next((text for text in texts if text and len(text) < 40), "see package")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.2f}"


def _time(p50_us: float | None) -> str:
    if p50_us is None:
        return "—"
    return f"{p50_us:.0f} µs" if p50_us < 1000 else f"{p50_us / 1000:.1f} ms"


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body)]
