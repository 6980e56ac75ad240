"""Golden set of a pipeline: answers of the models that serve now, against those that its author recorded.

The rows are requests of one caller in the queues of its models, next to all others.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.manifest import Golden, ModelManifest, TensorSpec, Tolerance, fits
from gateway.common.domain.pipeline import RUNTIME
from gateway.common.domain.tensor import Array, Tensor, Tensors
from gateway.serving.domain.golden import GoldenSet, compare_golden, portions, read_golden
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.domain.ports import Pending
from gateway.serving.engine.engine import Futures
from gateway.serving.engine.target import RequestTarget
from gateway.serving.pipelines.outputs import filler
from gateway.serving.tasks.interpreter import RESULT

ROWS = 8
"""Most rows of one of its requests: those of others run in between."""
LIMIT_S = 60.0
"""Longest time for all rows, as of a trial by default."""
PASSING = frozenset({Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.EXPIRED, Fault.THROTTLED, Fault.INTERNAL})
"""Refusals that say nothing about a pipeline: it is tried again."""


async def check_golden(target: RequestTarget, golden: Golden, folder: Path) -> str:
    """Return how a pipeline passed its golden set. Raises VariantError if it did not, ConfigurationError, OSError."""
    file, manifest = folder / golden.file, compared(target.manifest)
    content = await asyncio.to_thread(file.read_bytes)
    if hashlib.sha256(content).hexdigest() != golden.sha256:
        raise VariantError(f"{file} changed since it was read", transient=True)
    expected = await asyncio.to_thread(read_golden, content, manifest, str(file))
    try:
        answers = await golden_answers(manifest, target.submit, expected.inputs, target.rows_together(0))
    except RequestError as error:
        words = f"a run of its golden set failed: {error.message}"
        raise VariantError(words, transient=error.in_run or error.fault in PASSING) from error
    wanted = dict(expected.outputs)
    for spec in manifest.outputs:
        wanted[spec.name], answers[spec.name] = leveled((wanted[spec.name], answers[spec.name]), spec)
    found = compare_golden(replace(expected, outputs=wanted), answers, golden.tolerance.get(RUNTIME, Tolerance()))
    if found.passed:
        return found.words
    late = [name for name, step in target.statistics.steps.items() if step.fallbacks]
    words = f"{found.words}; its fallback answered for step {', '.join(late)}" if late else found.words
    raise VariantError(words, transient=bool(late))


def compared(manifest: ModelManifest) -> ModelManifest:
    """Return the manifest with the outputs of a golden set: the document only repeats them, rounded."""
    return replace(manifest, outputs=tuple(spec for spec in manifest.outputs if spec.name != RESULT))


async def golden_answers(
    manifest: ModelManifest, submit: Callable[..., Pending], inputs: Tensors, most_rows: int
) -> dict[str, Array]:
    """Return a pipeline's outputs for rows, as a golden set has them: texts are bytes. Raises RequestError.

    `submit` is that of a target or of the engine; `most_rows` of one request.
    """
    name, version, loop, parts = manifest.name, manifest.version, asyncio.get_running_loop(), list[InferResponse]()
    deadline_ns = time.monotonic_ns() + int(LIMIT_S * 1e9)
    wanted = tuple(RequestedOutput(spec.name) for spec in manifest.outputs)
    for portion in portions(manifest, GoldenSet(inputs, {}), min(ROWS, most_rows)):
        tensors = {spec.name: Tensor(spec.datatype, portion[spec.name]) for spec in manifest.inputs}
        future: asyncio.Future[InferResponse] = loop.create_future()
        request = InferRequest(name, tensors, version, "", wanted, deadline_ns, caller="golden set")
        pending = submit(request, Futures(), future)
        try:
            parts.append(await future)
        except asyncio.CancelledError:
            pending.cancel()
            raise
    found = dict[str, Array]()
    for spec in manifest.outputs:
        arrays = [stored(part.outputs[spec.name].array) for part in parts]
        found[spec.name] = np.concatenate(leveled(arrays, spec))
    return found


def stored(array: Array) -> Array:
    """Return an array as a golden set has it: texts and images as bytes of one length."""
    if array.dtype != object:
        return array
    return np.array([each.encode() if isinstance(each, str) else each for each in array.flat], "S").reshape(array.shape)


def leveled(arrays: Sequence[Array], spec: TensorSpec) -> list[Array]:
    """Return arrays of an output with lists of one length, filled up as answers are; others as they are."""
    if not all(fits(array.shape, spec.shape) for array in arrays):
        return list(arrays)
    found, sizes = list[Array](), [max(each) for each in zip(*(array.shape[1:] for array in arrays), strict=True)]
    for array in arrays:
        found.append(np.full((len(array), *sizes), filler(spec.datatype), array.dtype))
        found[-1][tuple(map(slice, array.shape))] = array
    return found
