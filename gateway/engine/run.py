"""One run: the rows of its tickets stacked, through the session, finished. Used by one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.domain.manifest import ModelManifest
from gateway.domain.ports import Session
from gateway.domain.postprocess import finish_outputs
from gateway.domain.tensor import Array, Tensors
from gateway.engine.queue import Plan
from gateway.engine.ticket import Ticket


@dataclass(slots=True)
class Ran:
    """What became of a plan's batch: outputs for all its rows, or the `failure` that all share; monotonic times of the
    stages; what the run cost (`cost_ns`), whether it happened on the loop or on the worker (`lane`)."""

    plan: Plan
    outputs: Tensors
    began_ns: int
    gathered_ns: int
    ran_ns: int
    ended_ns: int
    failure: str = ""
    cost_ns: int = 0
    lane: str = "inline"


class Runner:
    """A session with what comes before and after it."""

    def __init__(self, session: Session, manifest: ModelManifest) -> None:
        self._session, self._manifest = session, manifest
        self._names = [spec.name for spec in manifest.outputs]
        self._finishes = any(spec.postprocess for spec in manifest.outputs)
        self._lends = session.lends

    def run(self, plan: Plan) -> Ran:
        """Run a batch, if there is one. Never raises: what an engine raises is the failure of this batch."""
        clock = time.monotonic_ns
        began_ns = clock()
        if not plan.batch:
            return Ran(plan, {}, began_ns, began_ns, began_ns, began_ns)
        try:
            inputs = gather(plan.batch)
            gathered_ns = clock()
            raw = self._session.run(inputs)
            ran_ns = clock()
            outputs = self._finished(raw)
            if len(plan.batch) > 1:
                self._check_rows(outputs, plan.rows)
        except Exception as error:  # noqa: BLE001  a run's boundary: whatever an engine raises, the callers get an answer
            now_ns = clock()
            return Ran(plan, {}, began_ns, began_ns, now_ns, now_ns, f"{type(error).__name__}: {error}")
        return Ran(plan, outputs, began_ns, gathered_ns, ran_ns, clock(), "", ran_ns - gathered_ns)

    def close(self) -> None:
        """Free the session."""
        self._session.close()

    def _finished(self, raw: Tensors) -> Tensors:
        """Outputs that the callers may keep: what the session only lends is copied, once for the whole batch."""
        outputs = finish_outputs(self._manifest, raw) if self._finishes else raw
        if not self._lends:
            return outputs
        return {name: _kept(outputs[name], raw.get(name)) for name in self._names}

    def _check_rows(self, outputs: Tensors, rows: int) -> None:
        """ValueError where an output of a joined run has not its rows: nobody may get another caller's."""
        for name in self._names:
            shape = outputs[name].shape
            if not shape or shape[0] != rows:
                raise ValueError(f"output '{name}' has shape {list(shape)} for {rows} joined rows")


def _kept(array: Array, lent: Array | None) -> Array:
    return array.copy() if array is lent else array


def gather(batch: Sequence[Ticket]) -> Tensors:
    """One request's inputs as they are (no copy), or several stacked along the rows (one copy)."""
    first = batch[0].inputs
    if len(batch) == 1:
        return {name: tensor.array for name, tensor in first.items()}
    return {name: np.concatenate([ticket.inputs[name].array for ticket in batch]) for name in first}
