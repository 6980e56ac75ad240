"""Golden set of a pipeline: answers of the models that serve now, against those that its author recorded.

The rows are requests of one caller in the queues of its models, next to all others.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.manifest import Golden, ModelManifest, TensorSpec, Tolerance, fits
from gateway.common.domain.pipeline import RUNTIME, keeps_state
from gateway.common.domain.tensor import Array, Tensor, Tensors
from gateway.serving.domain.golden import GoldenResult, GoldenSet, compare_golden, portions, read_golden
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.domain.ports import Pending
from gateway.serving.engine.engine import Futures
from gateway.serving.engine.target import RequestTarget
from gateway.serving.pipelines.outputs import filler
from gateway.serving.tasks.interpreter import RESULT

ROWS = 8
"""Most rows of one of its requests: those of others run in between."""
LIMIT_BYTES = 64 * 2**20
"""Largest golden set of a pipeline, also once unpacked: the daemon itself reads and compares it, not a child."""
LIMIT_S = 60.0
"""Longest time of one of its requests: a slow device takes longer for more rows, and a hung model is noticed."""
AGAIN = "make it again: edge-gateway models golden DIR"
PASSING = frozenset({Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.EXPIRED, Fault.THROTTLED, Fault.INTERNAL})
"""Refusals that say nothing about a pipeline: it is tried again."""


async def check_golden(target: RequestTarget, golden: Golden, folder: Path) -> str:
    """Return how a pipeline passed its golden set. Raises VariantError if it did not, ConfigurationError, OSError."""
    manifest = compared(target.manifest)
    expected = await asyncio.to_thread(read_set, folder / golden.file, golden, manifest)
    try:
        answers = await golden_answers(manifest, target.submit, expected.inputs, target.rows_together(0))
    except RequestError as error:
        words = f"a run of its golden set failed: {error.message}"
        raise VariantError(words, transient=error.in_run or error.fault in PASSING) from error
    found = await asyncio.to_thread(judged, manifest, expected, answers, golden.tolerance.get(RUNTIME, Tolerance()))
    if found.passed:
        return found.words
    late = [name for name, step in target.statistics.steps.items() if step.fallbacks]
    words = f"{found.words}; its fallback answered for step {', '.join(late)}" if late else found.words
    raise VariantError(words, transient=bool(late))


def read_set(file: Path, golden: Golden, manifest: ModelManifest) -> GoldenSet:
    """Read a pipeline's golden set, and check that its inputs are requests. Raises as `check_golden`."""
    with file.open("rb") as stream:
        content = stream.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ConfigurationError(f"has more than {LIMIT_BYTES} bytes; write fewer rows", file=str(file))
    if hashlib.sha256(content).hexdigest() != golden.sha256:
        raise VariantError(f"{file} changed since it was read", transient=True)
    found = read_golden(content, manifest, str(file), LIMIT_BYTES)
    for spec in manifest.inputs:
        if not fits(shape := found.inputs[spec.name].shape, spec.shape):
            raise ConfigurationError(
                f"input {spec.name!r} of the golden set has shape {list(shape)}, expected {list(spec.shape)}; {AGAIN}",
                file=str(file),
            )
    if len(rows := {len(array) for array in found.inputs.values()}) > 1:
        raise ConfigurationError(
            f"the inputs of the golden set differ in their rows: {sorted(rows)}; {AGAIN}", file=str(file)
        )
    return found


def judged(
    manifest: ModelManifest, expected: GoldenSet, answers: Mapping[str, Array], tolerance: Tolerance
) -> GoldenResult:
    """Compare answers with a golden set, lists in one length."""
    wanted, found = dict(expected.outputs), dict(answers)
    for spec in manifest.outputs:
        wanted[spec.name], found[spec.name] = leveled((wanted[spec.name], found[spec.name]), spec)
    return compare_golden(replace(expected, outputs=wanted), found, tolerance, relative=True)


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
    wanted = tuple(RequestedOutput(spec.name) for spec in manifest.outputs)
    # Of a pipeline with state, each row is a frame of one new stream, a second after the one before.
    most_rows, stream, arrived_ns = 1 if (keeps := keeps_state(manifest)) else most_rows, uuid4().hex, 0
    rows = portions(manifest, GoldenSet(inputs, {}), min(ROWS, most_rows))
    while portion := await asyncio.to_thread(next, rows, None):
        arrived_ns += 1_000_000_000
        tensors = {spec.name: Tensor(spec.datatype, portion[spec.name]) for spec in manifest.inputs}
        future: asyncio.Future[InferResponse] = loop.create_future()
        deadline_ns = time.monotonic_ns() + int(LIMIT_S * 1e9)
        request = InferRequest(name, tensors, version, "", wanted, deadline_ns, caller="golden set")
        if keeps:
            request.stream, request.arrived_ns = stream, arrived_ns
        pending = submit(request, Futures(), future)
        try:
            parts.append(await future)
        except asyncio.CancelledError:
            pending.cancel()
            raise
    return await asyncio.to_thread(_stored_outputs, manifest, parts)


def _stored_outputs(manifest: ModelManifest, parts: Sequence[InferResponse]) -> dict[str, Array]:
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
