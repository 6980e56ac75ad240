"""Queue of records for the fleet, kept until the fleet acknowledges them: bounded, numbered, with losses recorded.

Records of a stream are numbered from 1 within a boot. If there is no space, the least important ones are dropped, the
oldest first, and a gap replaces them. At any time, records and gaps together cover every number that was assigned and
not acknowledged. The spool is no trust root: a damaged one is renamed and replaced.

Durability: write-ahead log. EVIDENCE is on the disk when `append` returns (synchronous FULL). A power failure
may destroy other records that were not synced yet (NORMAL); a kill destroys none. `batch` syncs first, so that no
number is sent that could be assigned twice.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from gateway.common.store.errors import DamagedError
from gateway.common.store.settings import SpoolSettings
from gateway.common.store.sqlite_file import SqliteFile, make_private, set_aside
from gateway.device.store import spool_rows as rows
from gateway.device.store.spool_rows import Gap, Priority, SpooledRecord, SpoolRecord, Usage

NAME = "spool.sqlite"
SCHEMA_VERSION = 1
_WAL_PAGES = 256
"""Size of the log, in pages, at which it is merged into the file: 1 MiB."""
_SCHEMA = (
    """CREATE TABLE source (id INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, boot_epoch INTEGER NOT NULL,
        last INTEGER NOT NULL, UNIQUE (stream, boot_epoch))""",
    """CREATE TABLE record (id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, seq INTEGER NOT NULL,
        priority INTEGER NOT NULL, at_us INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
        bytes INTEGER NOT NULL, UNIQUE (source, seq))""",
    "CREATE INDEX record_priority ON record (priority, id, bytes)",
    "CREATE INDEX record_at ON record (at_us)",
    """CREATE TABLE gap (source INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, dropped TEXT NOT NULL,
        PRIMARY KEY (source, first)) WITHOUT ROWID""",
    "CREATE TABLE mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)


def open_file(folder: Path, settings: SpoolSettings) -> SqliteFile:
    """Open the file. The caller holds the store's lock. Raises DamagedError if it is no spool of this program.

    If two processes switch a new file to a write-ahead log at once, SQLite does not make one wait. Raises StoreError.
    """
    make_private(folder / NAME)
    pragmas = ("journal_mode = WAL", f"wal_autocheckpoint = {_WAL_PAGES}")
    file = SqliteFile(folder / NAME, settings.busy_timeout_ms, pragmas)
    with file.closed_on_error():
        file.check_pages()
        if (version := file.begin(_SCHEMA, SCHEMA_VERSION)) != SCHEMA_VERSION:
            raise file.damage(f"is of another program or version (schema {version})")
    return file


_DROPPED_AT_ONCE = 100
_DROPPED = "record.id, source, seq, priority, bytes"
_MARKS = ("epoch", "boot")
_EPOCHS_PER_S = 2**20
"""Epochs of one second, of which one is drawn: devices with copies of one spool must not use the same numbers."""


class Spool:
    """Spool. Open it with `Spool.open`; close it at the end. Used by one thread at a time.

    `epoch` is that of this boot.
    """

    def __init__(self, file: SqliteFile, settings: SpoolSettings, epoch: int, renewed: str) -> None:
        self._file, self._settings, self.epoch = file, settings, epoch
        self.renewed = renewed
        """Reason why the spool was replaced at this start, or ""."""

    @classmethod
    def open(
        cls, folder: Path, boot: str, now: datetime, settings: SpoolSettings | None = None, *, last_epoch: int = 0
    ) -> Spool:
        """Open the device's spool, and create it if there is none. Raises StoreError.

        `boot` identifies this boot of the machine: another one begins a new epoch. `last_epoch`: the last one that the
        caller remembers, in case the spool was lost.
        """
        settings, renewed = settings or SpoolSettings(), ""
        try:
            file = open_file(folder, settings)
        except DamagedError as error:
            renewed = error.problem
            set_aside(folder / NAME)
            file = open_file(folder, settings)
        try:
            return cls(file, settings, _begun(file, boot, now, last_epoch, settings), renewed)
        except BaseException:  # raised again: the descriptor must not stay open
            file.close()
            raise

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._file.close()

    # ---- in ---------------------------------------------------------------------------------------------------------
    def append(self, records: Iterable[SpoolRecord], now: datetime, marks: Mapping[str, str] | None = None) -> int:
        """Store records and `marks` in one transaction; return the number of records that were dropped for it.

        Raises ValueError for a record that is too large, or for too many streams; StoreError.
        """
        batch = tuple(records)
        payloads = [self._payload(record) for record in batch]
        durable = any(record.priority >= Priority.EVIDENCE for record in batch)
        with self._file.transaction(durable=durable):
            for record, payload in zip(batch, payloads, strict=True):
                self._put(record, payload)
            for name, value in (marks or {}).items():
                self._file.do("INSERT OR REPLACE INTO mark VALUES (?, ?)", (name, value))
            return self._drop_old(now) + self._make_room()

    def mark(self, name: str) -> str | None:
        """Return a small value that is stored with the records, or None. It is lost with the spool."""
        found = self._file.ask("SELECT value FROM mark WHERE name = ?", (name,))
        return str(found[0]["value"]) if found else None

    def _payload(self, record: SpoolRecord) -> str:
        text = json.dumps(record.document, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
        if size > self._settings.record_limit_bytes:
            limit = self._settings.record_limit_bytes
            raise ValueError(f"a record of {record.stream} has {size} bytes, at most {limit} are kept")
        return text

    def _put(self, record: SpoolRecord, payload: str) -> None:
        key = (record.stream, self.epoch)
        found = self._file.ask("SELECT id, last FROM source WHERE stream = ? AND boot_epoch = ?", key)
        if not found:
            held = self._file.ask("SELECT count(*) AS n FROM source WHERE boot_epoch = ?", (self.epoch,))
            if held[0]["n"] >= self._settings.streams_limit:
                raise ValueError(f"a device has at most {self._settings.streams_limit} streams")
            self._file.do("INSERT INTO source (stream, boot_epoch, last) VALUES (?, ?, 0)", key)
            found = self._file.ask("SELECT id, last FROM source WHERE stream = ? AND boot_epoch = ?", key)
        source, seq = found[0]["id"], found[0]["last"] + 1
        self._file.do("UPDATE source SET last = ? WHERE id = ?", (seq, source))
        size = rows.OVERHEAD_BYTES + len(payload.encode())
        values = (source, seq, int(record.priority), rows.time_us(record.at), record.kind, payload, size)
        self._file.do(f"INSERT INTO record ({rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608

    # ---- losses -----------------------------------------------------------------------------------------------------
    def _drop_old(self, now: datetime) -> int:
        oldest = rows.time_us(now - timedelta(days=self._settings.age_limit_d))
        found = self._file.ask(f"SELECT {_DROPPED} FROM record WHERE at_us < ? ORDER BY id", (oldest,))  # noqa: S608
        for row in found:
            self._drop(row)
        return len(found)

    def _make_room(self) -> int:
        dropped, over_bytes = 0, self.usage().size_bytes - self._settings.bytes_limit
        while over_bytes > 0:
            query = f"SELECT {_DROPPED} FROM record ORDER BY priority, id LIMIT ?"  # noqa: S608
            found = self._file.ask(query, (_DROPPED_AT_ONCE,))
            if not found:
                break
            for row in found:
                over_bytes -= self._drop(row)
                dropped += 1
                if over_bytes <= 0:
                    break
        return dropped

    def _drop(self, row: sqlite3.Row) -> int:
        """Replace a record by a gap, which merges with adjacent ones; return the number of freed bytes."""
        source, seq = row["source"], row["seq"]
        self._file.do("DELETE FROM record WHERE id = ?", (row["id"],))
        query = "SELECT * FROM gap WHERE source = ? AND (last = ? OR first = ?)"
        neighbours = self._file.ask(query, (source, seq - 1, seq + 1))
        first = min([seq, *(gap["first"] for gap in neighbours)])
        last = max([seq, *(gap["last"] for gap in neighbours)])
        counts = rows.added({Priority(row["priority"]): 1}, *map(rows.gap_counts, neighbours))
        self._file.do("DELETE FROM gap WHERE source = ? AND first BETWEEN ? AND ?", (source, first, last))
        self._file.do("INSERT INTO gap VALUES (?, ?, ?, ?)", (source, first, last, rows.counts_text(counts)))
        return int(row["bytes"]) + (len(neighbours) - 1) * rows.OVERHEAD_BYTES

    # ---- out --------------------------------------------------------------------------------------------------------
    def batch(self, limit_rows: int, limit_bytes: int) -> tuple[SpooledRecord | Gap, ...]:
        """Return the next entries to send, at least one if there is any. Raises StoreError.

        Streams with the most important records come first. Each stream is in order, so that every acknowledged batch
        advances it.
        """
        self._file.ask("PRAGMA wal_checkpoint(PASSIVE)")  # sync: no number is sent that could be assigned twice
        order = """SELECT source.*, coalesce(max(priority), -1) AS most FROM source
            LEFT JOIN record ON record.source = source.id
            GROUP BY source.id ORDER BY most DESC, boot_epoch, source.id"""
        taken: list[SpooledRecord | Gap] = []
        size = 0
        for source in self._file.ask(order):
            for entry in self._entries(source, limit_rows - len(taken)):
                size += entry.size_bytes
                if taken and size > limit_bytes:
                    return tuple(taken)
                taken.append(entry)
            if len(taken) >= limit_rows:
                break
        return tuple(taken)

    def acknowledged(self, stream: str, boot_epoch: int, seq: int) -> int:
        """Remove the entries of a stream up to `seq`, which the fleet has. Return their number.

        A gap that continues beyond `seq` is kept whole.
        """
        with self._file.transaction(durable=False):
            found = self._file.ask("SELECT id FROM source WHERE stream = ? AND boot_epoch = ?", (stream, boot_epoch))
            if not found:
                return 0
            source = found[0]["id"]
            gone = self._file.do("DELETE FROM record WHERE source = ? AND seq <= ?", (source, seq))
            gone += self._file.do("DELETE FROM gap WHERE source = ? AND last <= ?", (source, seq))
            # sources of earlier boots that have no entries left
            self._file.do(
                """DELETE FROM source WHERE boot_epoch <> ? AND id NOT IN (SELECT source FROM record)
                AND id NOT IN (SELECT source FROM gap)""",
                (self.epoch,),
            )
        return gone

    def skip(self, stream: str, boot_epoch: int, first: int, last: int) -> None:
        """Add a gap for numbers that the fleet acknowledged, and waits for since a restore or a removal."""
        gap = "INSERT OR IGNORE INTO gap SELECT id, ?, ?, '{}' FROM source WHERE stream = ? AND boot_epoch = ?"
        with self._file.transaction(durable=False):
            self._file.do(gap, (first, last, stream, boot_epoch))

    def give_up(self, entry: SpooledRecord) -> None:
        """Drop a record that the fleet refuses permanently; a gap replaces it."""
        query = f"""SELECT {_DROPPED} FROM record JOIN source ON record.source = source.id
            WHERE stream = ? AND boot_epoch = ? AND seq = ?"""  # noqa: S608
        with self._file.transaction(durable=False):
            for row in self._file.ask(query, (entry.stream, entry.boot_epoch, entry.seq)):
                self._drop(row)

    def usage(self) -> Usage:
        """Return the usage of the spool."""
        query = "SELECT count(*) AS n, coalesce(sum(bytes), 0) AS size, (SELECT count(*) FROM gap) AS gaps FROM record"
        found = self._file.ask(query)[0]
        return Usage(found["n"], found["gaps"], found["size"] + found["gaps"] * rows.OVERHEAD_BYTES)

    def _entries(self, source: sqlite3.Row, limit: int) -> Sequence[SpooledRecord | Gap]:
        """Return the first entries of a source, records and gaps in the order of their numbers."""
        key = (source["id"], limit)
        records = self._file.ask("SELECT * FROM record WHERE source = ? ORDER BY seq LIMIT ?", key)
        gaps = self._file.ask("SELECT * FROM gap WHERE source = ? ORDER BY first LIMIT ?", key)
        entries = [rows.kept(source, row) for row in records] + [rows.gap(source, row) for row in gaps]
        ordered = sorted(entries, key=lambda entry: entry.seq)[:limit]
        return ordered[: rows.end_of_gaps(ordered, self._settings.gaps_at_once)]


def _begun(file: SqliteFile, boot: str, now: datetime, last_epoch: int, settings: SpoolSettings) -> int:
    """Return the epoch of this boot: greater than every earlier one, also than those of a lost spool."""
    query = "SELECT name, value FROM mark WHERE name IN (?, ?)"
    known = {row["name"]: row["value"] for row in file.ask(query, _MARKS)}
    before = int(known.get("epoch", 0))
    if known.get("boot") == boot and before >= last_epoch:
        return before
    least = max(max(before, last_epoch) + 1, int(now.timestamp()) * _EPOCHS_PER_S)
    epoch = least + secrets.randbelow(_EPOCHS_PER_S)
    with file.transaction(durable=True):
        for name, value in zip(_MARKS, (str(epoch), boot), strict=True):
            file.do("INSERT OR REPLACE INTO mark VALUES (?, ?)", (name, value))
        _forget(file, settings.epochs_limit - 1)
    return epoch


def _forget(file: SqliteFile, limit: int) -> None:
    """Remove all boots with entries but the last `limit`; the number of their records is remembered."""
    boots = file.ask("SELECT DISTINCT boot_epoch FROM source ORDER BY boot_epoch DESC")[limit:]
    for (epoch,) in boots:
        sources = [row["id"] for row in file.ask("SELECT id FROM source WHERE boot_epoch = ?", (epoch,))]
        for source in sources:
            counted = """INSERT INTO mark SELECT 'forgotten', (SELECT count(*) FROM record WHERE source = :source)
                + (SELECT coalesce(sum(last - first + 1), 0) FROM gap WHERE source = :source)
                WHERE true ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"""
            file.do(counted, {"source": source})
            for statement in ("DELETE FROM record WHERE source = ?", "DELETE FROM gap WHERE source = ?"):
                file.do(statement, (source,))
            file.do("DELETE FROM source WHERE id = ?", (source,))
