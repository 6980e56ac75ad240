"""Simulated inference sessions: they lend outputs, wait at a gate, fail on demand, and count."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.tensor import Array, Tensors
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.ports import RowProof, RowTensors

LENT_ROWS = 64
SESSION_BYTES = 1_000_000


class Gate:
    """Gate that is open, closed, or open for the next few runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._permits: int | None = None

    def set(self) -> None:
        """Open the gate."""
        self._admit(None)

    def clear(self) -> None:
        """Close the gate."""
        self._admit(0)

    def let(self, count: int = 1) -> None:
        """Open the gate for `count` runs."""
        self._admit(count)

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._permits != 0)
            if self._permits is not None:
                self._permits -= 1

    def _admit(self, permits: int | None) -> None:
        with self._changed:
            self._permits = permits
            self._changed.notify_all()


class SimulatedSession:
    """Session that computes `y = factor · x` by row. Outputs are in one buffer that the next run and `close` overwrite.

    Runs wait while `gate` is closed; `started` is released once a run has begun. The next runs raise `failure`, and so
    does each run with the value `rejected`. Joined runs return `extra_rows` too many.
    """

    lends = True
    in_parts = False
    remarks = ()
    rows = None

    def __init__(self, factor: float, output: str = "y") -> None:
        self.factor, self.output = factor, output
        self.gate = Gate()
        self.started = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.close_failure: Exception | None = None
        self.runs: list[list[float]] = []
        self.threads: set[int] = set()
        self.closed = 0
        self.extra_rows = 0
        self.rejected: float | None = None
        self.burn_s = 0.0
        self.cancels = False
        self.peers: list[SimulatedSession] = []
        self._lent = np.zeros((LENT_ROWS, 1), np.float32)

    def run(self, inputs: Tensors) -> Tensors:
        self._lent.fill(np.nan)
        self.threads.add(threading.get_ident())
        assert not self.closed, "a closed session was run"
        rows: Array = inputs["x"]
        if self._lent.shape[1:] != rows.shape[1:]:
            self._lent = np.full((LENT_ROWS, *rows.shape[1:]), np.nan, np.float32)
        self.runs.append([float(value) for value in rows.ravel()])
        self.started.release()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.rejected is not None and (rows == self.rejected).any():
            raise VariantError(f"index {self.rejected:g} is out of range")
        until_s = time.thread_time() + self.burn_s
        while time.thread_time() < until_s:
            pass
        answer = self._lent[: len(rows) + (self.extra_rows if len(rows) > 1 else 0)]
        answer[: len(rows)] = rows * self.factor
        return {self.output: answer}

    def widen(self, runs: int) -> None:
        """Make peers with this session's settings; each has a gate of its own."""
        while len(self.peers) < runs - 1:
            self.peers.append(SimulatedSession(self.factor, self.output))
            self.peers[-1].lends = self.lends

    def cancel(self) -> bool:
        """Fail the run that waits at the gate, if `cancels`."""
        if self.cancels:
            self.failure = VariantError("cancelled")
            self.gate.let(1)
        return self.cancels

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        for peer in self.peers:
            peer.close()
        self._lent.fill(np.nan)
        self.closed += 1
        if self.close_failure is not None:
            raise self.close_failure


class SimulatedRuntime:
    """Runtime of simulated sessions. `factors`: by variant name; `refuses`: errors by names of broken variants.

    `gates`: those that the openings of these variants pass, rather than `gate`.
    """

    name = "reference"

    def __init__(self) -> None:
        self.lends = True
        self.factors: dict[str, float] = {}
        self.refuses: dict[str, Exception] = {}
        self.sessions: list[SimulatedSession] = []
        self.opened: list[str] = []
        self.gate, self.gates = Gate(), dict[str, Gate]()
        self.opening = threading.Semaphore(0)

    @property
    def memory_bytes(self) -> int:
        """Memory of the open sessions."""
        return SESSION_BYTES * sum(not session.closed for session in self.sessions)

    def version(self) -> str:
        return "1.0"

    def import_engine(self) -> None:
        pass

    def devices(self) -> Sequence[str]:
        return ("CPU",)

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        del variant, files, tensors
        return RowProof()

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> SimulatedSession:
        del files, budget
        self.opening.release()
        self.gates.get(variant.name, self.gate).wait()
        if variant.name in self.refuses:
            raise self.refuses[variant.name]
        self.opened.append(variant.name)
        session = SimulatedSession(self.factors.get(variant.name, 1.0), manifest.outputs[0].name)
        session.lends = self.lends
        self.sessions.append(session)
        return session

    def inspect(self, file: Path) -> Signature:
        raise VariantError(f"{file} is no model that a simulation could read")
