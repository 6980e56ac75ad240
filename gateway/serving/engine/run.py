"""One run: stack the rows of its tickets, call the session, finish the outputs. Used by one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.common.domain.errors import RequestError, VariantError, lacks_device
from gateway.common.domain.manifest import ModelManifest, fits
from gateway.common.domain.tensor import Array, Raw, Tensors
from gateway.serving.domain.ports import RawSink, Session
from gateway.serving.domain.postprocess import finish_outputs
from gateway.serving.engine.queue import RunPlan
from gateway.serving.engine.ticket import Ticket

if TYPE_CHECKING:
    from gateway.serving.tasks.interpreter import Interpreter

WITNESS_FRESH_TIMES = 10
"""Validity of a witness's answer, as a multiple of its run's duration: bad data costs a tenth more model time."""
WITNESS_FRESH_S = 1.0
"""Longest validity: failures of a model that breaks within that time are attributed to its callers."""


Results = Tensors | RequestError | VariantError | None
"""Results of the model's task for one ticket, or why there are none; None: it does not request any.

RequestError: the outputs do not fit the task. VariantError: the task's own code failed; the caller did nothing wrong.
"""


@dataclass(slots=True)
class Ran:
    """Result of a plan's batch: outputs for all its rows, or the `failure` that all share.

    `*_ns`: monotonic times of the stages. `cost_ns`: cost of the run. `lane`: the run happened on the event loop
    ("inline") or on the worker. `by_caller`: the failure is the fault of the request, not of the model. `overlong`: the
    run was cancelled. `away`: the session cannot run now, which says nothing about the request. `shown`: its caller has
    a part of the answer. `parts`: runs in which a failed joined run was repeated; they hold all its requests.
    `results`: those of the model's task, by ticket; empty if none requests them. `tokens`: what a language model
    read and wrote, and `first_ns`: when it wrote the first one (0: none).
    """

    plan: RunPlan
    outputs: Tensors
    began_ns: int
    gathered_ns: int
    ran_ns: int
    ended_ns: int
    failure: str = ""
    cost_ns: int = 0
    lane: str = "inline"
    by_caller: bool = False
    overlong: bool = False
    away: bool = False
    shown: bool = False
    parts: list[Ran] = field(default_factory=list)
    results: Sequence[Results] = ()
    tokens: tuple[int, int] = (0, 0)
    first_ns: int = 0


Entry = tuple[RawSink, Any, Sequence[Raw], int]
"""A raw request: sink, token, contents, and the time at which it came."""


RawRun = tuple[int, Sequence[Entry], int, int, int, int]
"""A run of raw requests: rows of each, the requests, and when it began, was gathered, had run and ended (ns)."""


class Runner:
    """A session with the steps before and after it.

    `witness` returns an input that the model answered in its trial. If it fails now as well, the model is at fault.
    `checks`: whether outputs may be garbage, as an accelerator's are that forgot its model. The witness decides.
    `in_parts`: see `PartsRunner`. `progressed_ns`: time of the last part (monotonic; 0: there are none).
    """

    in_parts = False
    progressed_ns = 0

    def __init__(
        self,
        session: Session,
        manifest: ModelManifest,
        witness: Callable[[], Tensors | None] | None = None,
        interpreter: Interpreter | None = None,
        *,
        checks: bool = False,
    ) -> None:
        self._session, self._manifest, self._witness = session, manifest, witness
        self._interpreter, self._checks = interpreter, checks
        self._names = [spec.name for spec in manifest.outputs]
        self._finishes = any(spec.postprocess for spec in manifest.outputs)
        self._lends = session.lends
        self._fresh_until_ns = 0
        self._cancelled: RunPlan | None = None

    def run(self, plan: RunPlan) -> Ran:
        """Run a batch, if there is one. A joined run that fails is repeated in parts, so that only the culprit fails.

        Never raises: an engine's error is the failure of the batch, or of the part of it that fails alone.
        """
        ran = self._run(plan)
        if ran.failure and self._cancelled is not None:
            cancelled, self._cancelled = self._cancelled, None
            if cancelled is plan:
                ran.overlong = True
                return ran
            ran = self._run(plan)  # the cancelled run had ended before the engine was asked
        if ran.failure and not (ran.away or lacks_device(ran.failure)) and self._works():
            if len(plan.batch) > 1:
                ran.parts = self._halves(plan.batch)
            else:
                ran = self._run(plan) if self._checks else ran  # an accelerator may have failed for a moment
                if ran.failure and self._cancelled is plan:
                    self._cancelled, ran.overlong = None, True
                else:
                    ran.by_caller = bool(ran.failure) and not (ran.away or lacks_device(ran.failure))
        return ran

    def cancel(self, plan: RunPlan) -> bool:
        """Ask the run of `plan`, on another thread, to end. Return False if the engine cannot do that."""
        self._cancelled = plan
        return self._session.cancel()

    def insist(self, plan: RunPlan) -> bool:
        """Ask once more for the end of a run that was cancelled. Return False if there is no other way to ask."""
        return False

    def _run(self, plan: RunPlan) -> Ran:
        clock = time.monotonic_ns
        began_ns = clock()
        if not plan.batch:
            return Ran(plan, {}, began_ns, began_ns, began_ns, began_ns)
        try:
            inputs = gather(plan.batch)
            gathered_ns = clock()
            outputs, ran_ns = self.compute(inputs, plan.rows if len(plan.batch) > 1 else 0)
            results = self._interpreted(self._interpreter, plan, outputs) if self._interpreter else ()
            ran_ns = clock() if results else ran_ns
        except Exception as error:  # noqa: BLE001  a run's boundary: the callers get an answer to any error
            now_ns = clock()
            words = error.reason if isinstance(error, VariantError) else f"{type(error).__name__}: {error}"
            away = isinstance(error, VariantError) and error.transient
            return Ran(plan, {}, began_ns, began_ns, now_ns, now_ns, words, away=away)
        return Ran(plan, outputs, began_ns, gathered_ns, ran_ns, clock(), "", ran_ns - gathered_ns, results=results)

    @staticmethod
    def _interpreted(interpreter: Interpreter, plan: RunPlan, outputs: Tensors) -> Sequence[Results]:
        """Return the results of the model's task for each ticket: a part of the run, because it takes as long."""
        if not any(ticket.form.interpreted for ticket in plan.batch):
            return ()
        results: list[Results] = []
        stop = 0
        for ticket in plan.batch:
            start, stop = stop, stop + ticket.form.rows
            rows = slice(start, stop) if len(plan.batch) > 1 else None
            results.append(_results(interpreter, ticket, outputs, rows) if ticket.form.interpreted else None)
        return results

    def compute(self, inputs: Tensors, joined_rows: int) -> tuple[Tensors, int]:
        """Run once. Return the finished outputs and the time at which the session returned.

        `joined_rows`: rows of a joined run, which every output must have. Raises whatever the engine raises.
        """
        raw = self._session.run(inputs)
        ran_ns = time.monotonic_ns()
        if self._checks and (garbage := _garbage(self._manifest, raw)):
            raw = {name: array.copy() for name, array in raw.items()} if self._lends else raw  # the witness runs, too
            if not self._works():
                raise VariantError(garbage)
        outputs = finish_outputs(self._manifest, raw) if self._finishes else raw
        if self._lends:  # the callers may keep them: copied once per batch
            named = ((name, outputs[name]) for name in self._names)
            outputs = {name: array.copy() if array is raw.get(name) else array for name, array in named}
        if joined_rows:
            for name in self._names:
                shape = outputs[name].shape
                if not shape or shape[0] != joined_rows:  # no caller may get another caller's rows
                    raise ValueError(f"output '{name}' has shape {list(shape)} for {joined_rows} joined rows")
        return outputs, ran_ns

    def _halves(self, batch: Sequence[Ticket]) -> list[Ran]:
        """Run both halves; a half that fails is halved again. One culprit among n requests costs 2·log2(n) runs."""
        middle, parts = len(batch) // 2, []
        for half in (list(batch[:middle]), list(batch[middle:])):
            ran = self._run(RunPlan(half, sum(ticket.form.rows for ticket in half), []))
            if ran.failure and len(half) > 1:
                parts += self._halves(half)
            else:
                ran.by_caller = bool(ran.failure) and not ran.away
                parts.append(ran)
        return parts

    def _works(self) -> bool:
        """Return True if the model answers its witness now, or if it has none."""
        witness = None
        if self._witness is not None and time.monotonic_ns() >= self._fresh_until_ns:
            with suppress(Exception):  # such as for lack of memory: it counts as none
                witness = self._witness()
        if witness is None:
            return True
        began_ns = time.monotonic_ns()
        try:
            outputs = self._session.run(witness)
            if self._checks and _garbage(self._manifest, outputs):
                return False
        except Exception:  # noqa: BLE001  as in `_run`: any error is the fault of the model
            return False
        ended_ns = time.monotonic_ns()
        self._fresh_until_ns = ended_ns + min(WITNESS_FRESH_TIMES * (ended_ns - began_ns), int(WITNESS_FRESH_S * 1e9))
        return True

    def close(self) -> None:
        """Free the session."""
        self._session.close()


def _results(interpreter: Interpreter, ticket: Ticket, outputs: Tensors, rows: slice | None) -> Results:
    try:
        return interpreter.interpret(outputs, rows, ticket.inputs, ticket.frames)
    except RequestError as refused:
        return refused
    except Exception as error:  # noqa: BLE001  the outputs are there: this must not count as a run that failed
        return VariantError(f"task: {type(error).__name__}: {error}")


def _garbage(manifest: ModelManifest, outputs: Tensors) -> str:
    """Return what is wrong with outputs that an accelerator has spoiled: a shape that is not the manifest's, or NaN."""
    for spec in manifest.outputs:
        array = outputs[spec.name]
        if not fits(array.shape, spec.shape):
            return f"output '{spec.name}' has the shape {list(array.shape)}, expected {list(spec.shape)}"
        if array.dtype.kind == "f" and array.size and holds_nan(array):
            return f"output '{spec.name}' holds NaN"
    return ""


def holds_nan(array: Array) -> bool:
    """Return True if an array of floating-point numbers, which is not empty, holds NaN."""
    if array.dtype != np.float16:
        return bool(np.isnan(array.min()))
    # numpy compares halves one by one, 25 times slower than their bits: a NaN is above infinity, with either sign
    return bool(array.view(np.int16).max() > 0x7C00 or array.view(np.uint16).max() > 0xFC00)


def gather(batch: Sequence[Ticket]) -> Tensors:
    """Return one request's inputs unchanged (no copy), or several stacked along the rows (one copy)."""
    first = batch[0].inputs
    if len(batch) == 1:
        return {name: tensor.array for name, tensor in first.items()}
    return {name: np.concatenate([ticket.inputs[name].array for ticket in batch]) for name in first}
