"""Transfer of the spool to the controller, in compressed batches of JSON lines, until they are acknowledged.

`POST /v1/self/telemetry`, `application/x-ndjson`, gzip. A record: {"stream", "boot_epoch", "seq", "at", "kind",
"class", "document"}. Dropped numbers, with their count by class: {"stream", "boot_epoch", "seq", "last", "dropped":
{class: count}}. The answer gives, for each source, the highest number up to which nothing is missing: {"acknowledged":
[{"stream", "boot_epoch", "seq"}, …]}.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.common.transfer.source import FetchError
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.settings import ReportSettings
from gateway.device.store.journal_rows import time_text
from gateway.device.store.spool import Spool
from gateway.device.store.spool_rows import Gap, SpooledRecord

PATH = "/v1/self/telemetry"
POISON = frozenset({400, 413, 422})
"""Status codes after which these lines are not sent again: the controller will never take them."""
SHRINK = 4
"""Factor by which a refused batch is reduced, until the line that is refused is found."""


def send(spool: Spool, controller: ControllerClient, settings: ReportSettings) -> int:
    """Send waiting entries in at most `batches` requests. Return how many the controller acknowledged.

    Raise FetchError, StoreError; entries that were not acknowledged stay.
    """
    gone, rows = 0, settings.batch_rows
    for _ in range(settings.batches):
        batch = spool.batch(rows, settings.batch_bytes)
        if not batch:
            break
        try:
            answer = controller.send("POST", PATH, lines(batch), "application/x-ndjson", "gzip")
        except FetchError as error:
            rows = _fewer(spool, batch, error)
            continue
        moved = _acknowledge(spool, batch, answer)
        if not moved:
            raise FetchError("the controller acknowledged none of the records that were sent", retry_after_s=0.0)
        gone += moved
    return gone


def lines(entries: Iterable[SpooledRecord | Gap]) -> bytes:
    """Return the body of a request."""
    text = "".join(f"{line(entry)}\n" for entry in entries)
    return gzip.compress(text.encode(), mtime=0)


def line(entry: SpooledRecord | Gap) -> str:
    """Return the JSON line of an entry. The document of a record is inserted as it was kept."""
    key: dict[str, Any] = {"stream": entry.stream, "boot_epoch": entry.boot_epoch, "seq": entry.seq}
    if isinstance(entry, Gap):
        dropped = {priority.name.lower(): count for priority, count in entry.dropped.items()}
        return json.dumps({**key, "last": entry.last, "dropped": dropped}, separators=(",", ":"))
    more = {"at": time_text(entry.at), "kind": entry.kind, "class": entry.priority.name.lower()}
    head = json.dumps({**key, **more}, separators=(",", ":"))
    return f'{head[:-1]},"document":{entry.payload}}}'


def _fewer(spool: Spool, batch: Sequence[SpooledRecord | Gap], error: FetchError) -> int:
    """Return how many rows to try next; drop a single row that is refused. Raise `error` for any other status."""
    if error.status not in POISON:
        raise error
    if len(batch) > 1:
        return max(1, len(batch) // SHRINK)
    if not isinstance(batch[0], SpooledRecord):
        raise error
    spool.give_up(batch[0])
    return 1


def _acknowledge(spool: Spool, batch: Sequence[SpooledRecord | Gap], answer: dict[str, Any]) -> int:
    """Remove acknowledged entries of the batch's sources, and skip numbers that are neither here nor at the controller.

    Return how many entries changed. Other content is ignored.
    """
    sources = {(entry.stream, entry.boot_epoch): entry.seq for entry in reversed(batch)}
    positions = answer.get("acknowledged")
    gone = 0
    for one in positions[: len(sources)] if isinstance(positions, list) else []:
        if not isinstance(one, dict):
            continue
        stream, epoch, seq = (one.get(key) for key in ("stream", "boot_epoch", "seq"))
        if isinstance(stream, str) and type(epoch) is int and type(seq) is int and 0 <= seq < 2**63:
            first = sources.get((stream, epoch), 0)
            gone += spool.acknowledged(stream, epoch, seq) if first else 0
            if seq + 1 < first:
                spool.skip(stream, epoch, seq + 1, first - 1)
                gone += 1
    return gone
