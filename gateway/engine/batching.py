"""Which waiting requests form the next run, and how their rows go in and come out. Decisions on values, no clock.

The school is nano-vllm's: this file decides and never touches a session; `worker` runs and never decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.domain.tensor import Array, Tensors


@dataclass(slots=True, eq=False)
class Ticket:
    """A waiting request. `future` belongs to the loop; the worker only asks whether it is done (abandoned)."""

    inputs: Tensors
    rows: int
    future: asyncio.Future[Answer]
    queued_ns: int
    deadline_ns: int | None = None
    signature: tuple[object, ...] = field(default=())


@dataclass(slots=True)
class Answer:
    """What a run gave one ticket: its own rows of every output, the times of the run, rows of the whole batch."""

    outputs: dict[str, Array]
    queue_ns: int
    gather_ns: int
    run_ns: int
    scatter_ns: int
    batch_rows: int
    leader: bool


@dataclass(slots=True)
class Plan:
    """What to do next: run `batch` together, tell `expired` that their time is over, forget `abandoned`."""

    batch: list[Ticket]
    expired: list[Ticket]
    abandoned: list[Ticket]


def plan(waiting: deque[Ticket], now_ns: int, batch_rows: int) -> Plan:
    """Take the next run off `waiting`, first in first out: the first live ticket, then those that may join it.

    A ticket joins while the rows stay within `batch_rows` and its inputs differ only in rows. Order is kept: the
    first that cannot join ends the batch.
    """
    decided = Plan([], [], [])
    rows = 0
    while waiting:
        ticket = waiting[0]
        if ticket.future.done():
            decided.abandoned.append(waiting.popleft())
        elif ticket.deadline_ns is not None and ticket.deadline_ns <= now_ns:
            decided.expired.append(waiting.popleft())
        elif not decided.batch or (rows + ticket.rows <= batch_rows and ticket.signature == decided.batch[0].signature):
            rows += ticket.rows
            decided.batch.append(waiting.popleft())
        else:
            break
    return decided


def row_signature(inputs: Tensors) -> tuple[object, ...]:
    """What must be equal for two requests' rows to be stacked: names, dtypes and shapes without the rows."""
    return tuple((name, array.dtype, array.shape[1:]) for name, array in sorted(inputs.items()))


def gather(batch: Sequence[Ticket]) -> Tensors:
    """One request's inputs as they are (no copy), or several stacked along the rows (one copy)."""
    if len(batch) == 1:
        return batch[0].inputs
    return {name: np.concatenate([ticket.inputs[name] for ticket in batch]) for name in batch[0].inputs}


def scatter(batch: Sequence[Ticket], outputs: Tensors) -> list[dict[str, Array]]:
    """Each ticket's own rows, copied: a session's outputs are lent only until its next run.

    ValueError where an output of a joined run has not its rows: nobody may get another caller's.
    """
    if len(batch) == 1:
        return [{name: array.copy() for name, array in outputs.items()}]
    ends = np.cumsum([ticket.rows for ticket in batch])
    for name, array in outputs.items():
        if array.shape[:1] != (ends[-1],):
            raise ValueError(f"output '{name}' has shape {list(array.shape)} for {ends[-1]} joined rows")
    return [
        {name: array[end - ticket.rows : end].copy() for name, array in outputs.items()}
        for ticket, end in zip(batch, ends, strict=True)
    ]
