"""Which models of the corpus are joined, why others are not, and mixed requests that show whether that is right.

Each model with an open first dimension has its trial, as in the daemon. Then rows of very different size (NaN and
infinities among them) are run together in runs of any size that the trial allows, and each row's answer is compared
with its answer alone. Models that are not joined are asked as well: do their rows depend on each other?

examples:
  python -m tests.world.joining --json after.json --markdown after.md
  python -m tests.world.joining --groups packages --requests 1000 onnx-asr silero-vad
  python -m tests.world.joining --baseline before.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ROWS, Artifact, ModelManifest
from gateway.common.domain.release import bare_variant
from gateway.common.domain.verdict import SessionBudget, Verdict
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.generate import generated, samples
from gateway.serving.runtimes.job import Trial
from gateway.serving.runtimes.measure import finished
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file, try_variant
from tests.simulators.daemon import ROOT
from tests.world.corpus import GROUPS, collect, sampled
from tests.world.entry import Array, Entry, Hint, Tensors

SCALES = (0.0, 1e-6, 1e-3, 1.0, 1e2, 3e4)
"""Factors of a row's floats. Zero is also a factor of integers: tokens, flags and lengths."""
SPECIAL = (np.nan, np.inf, -np.inf)
SPECIAL_EVERY = 8
"""One row of so many has values that are not finite."""
POOL = 192
"""Different rows of a model; each has other neighbours in each run."""
UNJOINED_ROWS = 8
"""Rows of the largest run of a model that is not joined."""
LIMITS = {2: 2.0**-6, 4: 1e-4, 8: 1e-4}
"""Difference that other kernels at other sizes may cause, by a float's bytes, relative to the row's largest value."""
REPEATED = 3
CHILD_S = 60.0
"""Time that a child may take in addition to `--seconds`."""
JOINED = ("proved", "declared", "sampled")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run, per model: requests at most, seconds at most, the seed of rows and neighbours, known inputs."""

    requests: int = 10_000
    seconds: float = 30.0
    seed: int = 20
    hints: Mapping[str, Hint] = field(default_factory=dict)


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Observed:
    """Mixed requests to one model: how many were run together and how many of their answers were wrong.

    `worst` is the largest difference in units of what is allowed (infinite for other shapes, integers, or NaN in
    another place). `failed` counts runs that the runtime refused although it takes each row alone. `problem`
    says why nothing was seen.
    """

    requests: int = 0
    wrong: int = 0
    worst: float = 0.0
    failed: int = 0
    problem: str = ""

    @property
    def word(self) -> str:
        """What the requests show about rows: dependent, independent as far as seen, or unknown."""
        if self.wrong:
            return "dependent"
        return "none seen" if self.requests else f"unknown: {self.problem}"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: `result` of its trial with the reason, the most rows of a run, and what mixed requests showed."""

    group: str
    model: str
    runtime: str
    result: str
    reason: str = ""
    rows: int = 1
    observed: Observed = field(default_factory=Observed)

    @property
    def right(self) -> bool:
        """Its requests are joined, and no answer was wrong."""
        return self.result in JOINED and not self.observed.wrong and self.observed.requests > 0


def outcome(verdict: Verdict) -> tuple[str, str]:
    """Return what a trial decided about joining, and the reason: the one place that reads `Joining`."""
    joining = verdict.joining
    if not verdict.passed:
        return "refused", verdict.reason
    if verdict.sample is None:
        return "unverified", verdict.reason
    if joining is None:
        return "no rows", "a tensor has no open first dimension"
    contradicted = "vetoed" if joining.basis == "proved" and joining.difference else "not joined"
    return joining.basis if joining.allowed else contradicted, joining.reason


def examined(group: str, entry: Entry, file: Path, options: Options) -> Row | None:
    """Return the row of one model, or None for one whose inputs have no open first dimension."""
    variant = bare_variant(file.name, (Artifact(file.name, "0" * 64, file.stat().st_size),))
    row = Row(group, f"{entry.source}/{entry.name}", entry.runtime, "refused")
    try:
        signature = asyncio.run(inspect_file(entry.runtime, file, TrialSettings()))
    except VariantError as error:
        return replace(row, reason=f"{error}")
    if not any(spec.shape[:1] == (ROWS,) for spec in signature.inputs):
        return None
    manifest = ModelManifest(entry.model, "1", signature.inputs, signature.outputs, (variant,))
    verdict = asyncio.run(try_variant(manifest, variant, file.parent, SessionBudget(), TrialSettings()))
    result, reason = outcome(verdict)
    row = replace(row, result=result, reason=reason)
    if verdict.sample is None or any(spec.shape[:1] != (ROWS,) for spec in signature.outputs):
        return replace(row, observed=Observed(problem="no runs of several rows"))
    rows = verdict.joining.rows if verdict.joining and result in JOINED else UNJOINED_ROWS
    asked = replace(options, hints=entry.hints)
    if result not in JOINED:
        asked = replace(asked, requests=options.requests // 10)
    trial = Trial(manifest, variant, file.parent, SessionBudget())
    seen = _in_child(trial, verdict.sample, rows, asked)
    return replace(row, rows=rows if result in JOINED else 1, observed=seen)


def observed(trial: Trial, sample: int, most: int, options: Options) -> Observed:
    """Run rows of the generated `sample` apart and together, at most `most` at once, and compare."""
    end_s, random = time.monotonic() + options.seconds, np.random.default_rng(options.seed)
    manifest, variant = trial.manifest, trial.variant
    session = get_runtime(variant.runtime).open(manifest, variant, trial.files, trial.budget)
    rows, alone = [], []
    for row in _pool(manifest, sample, options.hints, random):
        try:
            alone.append(finished(manifest, session, row))
        except VariantError:
            continue  # the model does not take every row
        rows.append(row)
        if len(rows) > UNJOINED_ROWS and time.monotonic() > end_s - options.seconds / 2:
            break
    if len(rows) < REPEATED:
        return Observed(problem="it takes no generated rows")
    for row, answer in zip(rows[:REPEATED], alone, strict=False):
        if _apart(finished(manifest, session, row), answer) > min(LIMITS.values()):
            return Observed(problem="two runs on the same input differ")
    seen = Observed()
    while seen.requests < options.requests and (time.monotonic() < end_s or not seen.requests):
        chosen = random.integers(0, len(rows), random.integers(2, max(2, most) + 1))
        try:
            together = finished(manifest, session, _joined(manifest, [rows[index] for index in chosen]))
        except VariantError as error:
            seen = replace(seen, failed=seen.failed + 1, problem=str(error)[:120])
            if time.monotonic() > end_s or seen.failed >= options.requests // 10:
                break
            continue
        apart = [_row_apart(together, alone[index], place, len(chosen)) for place, index in enumerate(chosen)]
        wrong, worst = sum(each > 1 for each in apart), max(seen.worst, *apart)
        seen = replace(seen, requests=seen.requests + len(chosen), wrong=seen.wrong + wrong, worst=worst)
    return seen


def _pool(
    manifest: ModelManifest, sample: int, hints: Mapping[str, Hint], random: np.random.Generator
) -> Iterator[Tensors]:
    """Yield different rows of very different size. Inputs without an open first dimension are the same in each."""
    kind = next(kind for index, kind in enumerate(samples(manifest)) if index == sample)
    shared: Tensors = {}
    for number in range(POOL):
        row, scale = generated(manifest, kind, number), random.choice(SCALES)
        if number % SPECIAL_EVERY == SPECIAL_EVERY - 1:
            scale = random.choice(SPECIAL)
        for spec in manifest.inputs:
            array = _hinted(row[spec.name], hints.get(spec.name), random)
            if spec.shape[:1] == (ROWS,):
                own = random.choice(SCALES) if random.random() < 0.25 else scale  # sometimes inputs of different sizes
                row[spec.name] = _scaled(array, own, random)
            else:
                row[spec.name] = shared.setdefault(spec.name, array)
        yield row


def _hinted(array: Array, hint: Hint | None, random: np.random.Generator) -> Array:
    """Return values of the first shape that the source names: generated ones are short."""
    if hint is None or array.dtype.kind not in "fiu":
        return array
    shape = hint.shapes[0] if hint.shapes else array.shape
    if array.dtype.kind == "f":
        return random.uniform(hint.low, hint.high, shape).astype(array.dtype)
    return random.integers(int(hint.low), max(int(hint.high), int(hint.low) + 1), shape).astype(array.dtype)


def _scaled(array: Array, scale: float, random: np.random.Generator) -> Array:
    """Return floats times `scale`, which replaces one value or all if it is not finite; integers only times zero."""
    if array.dtype.kind == "O" or (array.dtype.kind != "f" and scale):
        return array
    if np.isfinite(scale):
        with np.errstate(over="ignore"):
            return np.asarray(array * np.asarray(scale, array.dtype), array.dtype)
    changed = np.array(array)
    places = slice(None) if random.random() < 0.25 or not array.size else random.integers(0, array.size)
    changed.reshape(-1)[places] = scale
    return changed


def _joined(manifest: ModelManifest, rows: Sequence[Tensors]) -> Tensors:
    return {
        spec.name: np.concatenate([row[spec.name] for row in rows]) if spec.shape[:1] == (ROWS,) else rows[0][spec.name]
        for spec in manifest.inputs
    }


def _row_apart(together: Tensors, alone: Tensors, place: int, count: int) -> float:
    if any(array.shape[:1] != (count,) for array in together.values()):
        return float("inf")
    return _apart({name: array[place : place + 1] for name, array in together.items()}, alone)


def _apart(got: Tensors, expected: Tensors) -> float:
    """Return the largest difference in units of what is allowed: more than 1 is wrong."""
    return max(_tensor_apart(got[name], array) for name, array in expected.items())


def _tensor_apart(got: Array, expected: Array) -> float:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"):
        return 0.0
    finite = np.isfinite(expected) if expected.dtype.kind == "f" else np.zeros(0, bool)
    if not finite.any() or not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    true = expected[finite].astype(np.float64)
    with np.errstate(divide="ignore"):
        apart = np.abs(got[finite].astype(np.float64) - true).max() / (np.abs(true).max() * LIMITS[expected.itemsize])
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf))


def _in_child(trial: Trial, sample: int, most: int, options: Options) -> Observed:
    """Return what `observed` does in a process of its own: a runtime may crash or hang on such inputs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(there, trial, sample, most, options))
    child.start()
    there.close()
    try:
        found: Observed = here.recv() if here.poll(options.seconds + CHILD_S) else Observed(problem="did not end")
    except EOFError:
        found = Observed(problem="the process of the runs crashed")
    child.kill()
    child.join()
    return found


def _child(there: Connection, *arguments: object) -> None:
    try:
        there.send(observed(*arguments))  # type: ignore[arg-type]
    except (VariantError, MemoryError) as error:
        there.send(Observed(problem=f"{error}"[:120]))


def markdown(rows: Sequence[Row]) -> str:
    """Return the totals of each group, and the table of models, with what ended the proof."""
    groups, results = dict.fromkeys(row.group for row in rows), dict.fromkeys(row.result for row in rows)
    lines = [f"| group | models | {' | '.join(results)} | of these dependent |", "| --- " * (len(results) + 3) + "|"]
    for group in (*groups, "all"):
        mine = [row for row in rows if group in {row.group, "all"}]
        counts = Counter(row.result for row in mine)
        bad = Counter(row.result for row in mine if row.observed.wrong)
        told = ", ".join(f"{count} {result}" for result, count in bad.items()) or "0"
        lines.append(f"| {group} | {len(mine)} | {' | '.join(str(counts[each]) for each in results)} | {told} |")
    lines += ["", "| model | runtime | result | rows | requests | wrong | worst | rows depend | reason |"]
    lines.append("| --- " * 9 + "|")
    for row in rows:
        seen = row.observed
        figures = f"{row.rows} | {seen.requests} | {seen.wrong} | {seen.worst:.2g} | {seen.word}"
        reason = row.reason.replace("|", "\\|")[:160]
        lines.append(f"| {row.model} | {row.runtime} | {row.result} | {figures} | {reason} |")
    return "\n".join(lines) + "\n"


def still_joined(rows: Sequence[Row], before: Sequence[Mapping[str, object]]) -> str:
    """Return how many models that were joined before, and answered rightly, are joined now, with those that are not."""
    now = {row.model: row for row in rows}
    kept = [now[str(each["model"])] for each in before if each["right"] and each["model"] in now]
    lost = [f"  {row.model}: {row.result}: {row.reason}" for row in kept if row.result not in JOINED]
    share = 100 * (1 - len(lost) / max(1, len(kept)))
    return "\n".join([f"{len(kept) - len(lost)} of {len(kept)} models ({share:.1f} %) are still joined", *lost])


def main() -> int:
    """Print one line per model, then totals; exit code 1 if an answer of a model that is joined was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="packages,sklearn,torch,openvino", help=f"some of {', '.join(GROUPS)}")
    parser.add_argument("--sample", type=int, default=0, help="models of each group, chosen by chance; 0 for all")
    parser.add_argument("--requests", type=int, default=DEFAULTS.requests, help="per model, a tenth if not joined")
    parser.add_argument("--seconds", type=float, default=DEFAULTS.seconds, help="per model, at most")
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
    parser.add_argument("--torch-python", default="/usr/bin/python3", help="an interpreter that can import torch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write totals and the table")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="--json of an earlier run: what is joined still?")
    parser.add_argument("sources", nargs="*", help="only models whose source/name contains one of these")
    chosen = parser.parse_args()
    options, rows = Options(chosen.requests, chosen.seconds, chosen.seed), []
    with tempfile.TemporaryDirectory(prefix="world-") as scratch:
        for group in chosen.groups.split(","):
            made, folder = Path(scratch) / group / "made", Path(scratch) / group
            entries = collect([group], made, ROOT / ".venv" / "world", chosen.torch_python)
            for entry in sampled(entries, chosen.sample, chosen.seed):
                name = f"{entry.source}/{entry.name}"
                if chosen.sources and not any(each in name for each in chosen.sources):
                    continue
                row = examined(group, entry, entry.write(folder / "models"), options)
                if row is not None:
                    rows.append(row)
                    print(_line(row, options), flush=True)
                    if chosen.json:  # after each model: a run takes an hour
                        told = [{**asdict(each), "right": each.right} for each in rows]
                        chosen.json.write_text(json.dumps(told, indent=1) + "\n")
    if chosen.markdown:
        chosen.markdown.write_text(markdown(rows))
    print(markdown(rows).partition("\n\n")[0])
    if chosen.baseline:
        print(still_joined(rows, json.loads(chosen.baseline.read_text())))
    return int(any(row.observed.wrong for row in rows if row.result in JOINED))


def _line(row: Row, options: Options) -> str:
    seen, bad = row.observed, "WRONG " if row.result in JOINED and row.observed.wrong else ""
    few = " (time is up)" if row.result in JOINED and seen.requests < options.requests else ""
    asked = f"{seen.wrong} of {seen.requests} wrong{few}, worst {seen.worst:.2g}, {seen.failed} runs failed"
    return f"{bad}{row.model} ({row.runtime}): {row.result}, {row.rows} rows; {asked}; {seen.word}; {row.reason[:120]}"


if __name__ == "__main__":
    sys.exit(main())
