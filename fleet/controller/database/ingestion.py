"""Decision which rows of a batch of telemetry are stored, and why the others are not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fleet.controller.database.errors import RefusedError
from fleet.controller.database.rows import Json
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.database.spans import Received, Span, spans_of

SCATTERED = "scattered"
WINDOW = "beyond the window"
DUPLICATE = "duplicate"
GAPS = "gaps, scattered"


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a stream. `seq` counts from 1 within a boot; `at` is by the device's clock."""

    seq: int
    at: datetime
    kind: str
    document: Json


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one stream and boot. `lost`: numbers that the device dropped before they could be sent."""

    stream: str
    boot_epoch: int
    rows: Sequence[Row]
    lost: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of a batch. `received`: state after it. `rows`: to store.

    `lost`: how many more numbers are lost for good. `left`: how many rows were left out, by reason.
    """

    received: Received
    rows: Sequence[Row]
    lost: int
    left: Mapping[str, int] = field(default_factory=dict)


def take(received: Received, batch: Batch, settings: TelemetryStorageSettings) -> Taken:
    """Decide on a batch that was checked.

    Rows that are left out can be sent again; rows that were stored before are duplicates. Rows far beyond the
    acknowledged one, or in too many separate runs, are left out. This bounds what a device can make the controller
    remember; a device that sends in order never notices.
    """
    left: Counter[str] = Counter()
    known = received.joined(batch.lost)
    if len(known.beyond) > settings.spans_limit:
        known = received
        left[GAPS] += len(batch.lost)
    lost = known.count() - received.count()
    fresh: dict[int, Row] = {}
    for row in batch.rows:
        if row.seq in known or row.seq in fresh:
            left[DUPLICATE] += 1
        elif row.seq > known.contiguous + settings.window_rows:
            left[WINDOW] += 1
        else:
            fresh[row.seq] = row
    chosen = known.joined(spans_of(fresh))
    if len(chosen.beyond) > settings.spans_limit:
        wanted, chosen = chosen, known.joined([(1, chosen.contiguous)]) if chosen.contiguous else known
        for span in wanted.beyond:  # the runs nearest to the acknowledged row, and all that was known already
            more = chosen.joined([span])
            if len(more.beyond) <= settings.spans_limit:
                chosen = more
        kept = {seq: row for seq, row in fresh.items() if seq in chosen}
        left[SCATTERED] += len(fresh) - len(kept)
        fresh = kept
    return Taken(chosen, [fresh[seq] for seq in sorted(fresh)], lost, dict(left))


def check(batch: Batch, settings: TelemetryStorageSettings) -> None:
    """Raise RefusedError for what no device of ours sends: too many rows, or numbers below 1."""
    if len(batch.rows) > settings.batch_limit_rows:
        problem = f"{len(batch.rows)} rows at once; at most {settings.batch_limit_rows} are accepted"
        raise RefusedError(problem)
    if len(batch.lost) > settings.spans_limit:
        raise RefusedError(f"{len(batch.lost)} gaps at once; at most {settings.spans_limit} are accepted")
    numbers = [row.seq for row in batch.rows] + [number for span in batch.lost for number in span]
    if any(not 1 <= number < 2**63 for number in numbers) or any(first > last for first, last in batch.lost):
        raise RefusedError("rows and gaps are numbered from 1 to 2**63 - 1, the first of a gap before its last")
    if not 0 <= batch.boot_epoch < 2**63:
        raise RefusedError(f"{batch.boot_epoch!r:.40} is not a boot epoch; it is a number from 0 to 2**63 - 1")
