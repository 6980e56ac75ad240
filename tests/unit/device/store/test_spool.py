"""The spool of telemetry: numbered, bounded, honest about its losses, and never in anybody's way when it is damaged."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.common.store.errors import SpaceError, StoreError
from gateway.common.store.settings import SpoolSettings
from gateway.device.store.spool import NAME, Spool
from gateway.device.store.spool_rows import OVERHEAD_BYTES, Gap, Priority, SpooledRecord, SpoolRecord
from tests.simulators.constants import settings_with
from tests.simulators.daemon import ROOT

NOW = datetime(2027, 1, 1, tzinfo=UTC)
VITALS, EVIDENCE = Priority.VITALS, Priority.EVIDENCE


def record(stream: str = "vitals", priority: Priority = VITALS, *, text: str = "", at: datetime = NOW) -> SpoolRecord:
    return SpoolRecord(stream, priority, "sample", at, {"text": text})


@contextlib.contextmanager
def opened(folder: Path, boot: str = "boot-1", settings: SpoolSettings | None = None, **more: int) -> Iterator[Spool]:
    with contextlib.closing(Spool.open(folder, boot, NOW, settings, **more)) as spool:
        yield spool


def numbers(spool: Spool, stream: str = "vitals") -> list[int]:
    return [entry.seq for entry in spool.batch(10_000, 10**9) if entry.stream == stream]


def test_what_is_kept_is_numbered_within_its_stream_and_comes_back_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        assert spool.append([record(text="ä"), record("updates", EVIDENCE), record()], NOW, {"cursor": "7"}) == 0
    with opened(tmp_path) as spool:
        assert spool.mark("cursor") == "7"
        first = next(entry for entry in spool.batch(10, 10_000) if entry.stream == "vitals")
        assert first == SpooledRecord("vitals", spool.epoch, 1, VITALS, "sample", NOW, '{"text":"\\u00e4"}')
        assert (numbers(spool), numbers(spool, "updates")) == ([1, 2], [1])
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_numbers_that_were_acknowledged_are_not_given_out_again(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record(), record()], NOW)
        assert spool.acknowledged("vitals", spool.epoch, 2) == 2
    with opened(tmp_path) as spool:
        spool.append([record()], NOW)
        assert numbers(spool) == [3]


def test_only_what_the_fleet_has_without_a_gap_goes(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record() for _ in range(5)], NOW)
        assert spool.acknowledged("vitals", spool.epoch, 3) == 3
        assert spool.acknowledged("vitals", spool.epoch, 3) == 0
        assert spool.acknowledged("vitals", spool.epoch + 1, 9) == spool.acknowledged("other", spool.epoch, 9) == 0
        assert numbers(spool) == [4, 5]


def test_each_boot_has_an_epoch_of_its_own_greater_than_all_before(tmp_path: Path) -> None:
    epochs = []
    for boot in ("one", "one", "two", "three"):
        with opened(tmp_path, boot) as spool:
            spool.append([record()], NOW)
            epochs.append(spool.epoch)
    assert epochs[0] == epochs[1] < epochs[2] < epochs[3]
    with opened(tmp_path, "three", last_epoch=epochs[3] + 5) as spool:
        assert spool.epoch > epochs[3] + 5
        found = [(entry.boot_epoch, entry.seq) for entry in spool.batch(100, 10_000)]
        assert found == [(epochs[0], 1), (epochs[0], 2), (epochs[2], 1), (epochs[3], 1)]


def test_boots_long_ago_are_forgotten_and_counted(tmp_path: Path) -> None:
    for boot in range(6):
        with opened(tmp_path, f"boot-{boot}", settings_with(SpoolSettings(), epochs_limit=3)) as spool:
            spool.append([record(), record()], NOW)
            assert len({entry.boot_epoch for entry in spool.batch(100, 10_000)}) <= 3
    with opened(tmp_path, "boot-5", settings_with(SpoolSettings(), epochs_limit=3)) as spool:
        assert spool.mark("forgotten") == "6"


def test_the_least_important_goes_first_and_leaves_a_gap(tmp_path: Path) -> None:
    settings = SpoolSettings(bytes_limit=4 * OVERHEAD_BYTES + 3 * 512)
    with opened(tmp_path, settings=settings) as spool:
        spool.append([record("updates", EVIDENCE, text="x" * 500), record(text="y" * 500)], NOW)
        spool.append([record(text="y" * 500) for _ in range(5)], NOW)
        entries = spool.batch(100, 10_000)
        assert [entry for entry in entries if isinstance(entry, Gap)] == [Gap("vitals", spool.epoch, 1, 4, {VITALS: 4})]
        assert numbers(spool) == [1, 5, 6]
        assert numbers(spool, "updates") == [1]
        spool.append([record("updates", EVIDENCE, text="x" * 500) for _ in range(5)], NOW)
        assert spool.usage().size_bytes <= settings.bytes_limit


def test_what_is_too_old_goes_and_is_counted(tmp_path: Path) -> None:
    with opened(tmp_path, settings=SpoolSettings(age_limit_d=1.0)) as spool:
        spool.append([record(at=NOW - timedelta(days=2)), record()], NOW)
        assert spool.batch(10, 10_000)[0] == Gap("vitals", spool.epoch, 1, 1, {VITALS: 1})


def test_a_gap_that_reaches_beyond_what_is_acknowledged_stays_whole(tmp_path: Path) -> None:
    with opened(tmp_path, settings=SpoolSettings(age_limit_d=1.0)) as spool:
        spool.append([record(at=NOW - timedelta(days=2)) for _ in range(4)], NOW)
        assert spool.acknowledged("vitals", spool.epoch, 2) == 0
        assert spool.batch(10, 10_000) == (Gap("vitals", spool.epoch, 1, 4, {VITALS: 4}),)
        assert spool.acknowledged("vitals", spool.epoch, 4) == 1


def test_what_the_fleet_refuses_is_counted_as_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record(), record()], NOW)
        first = spool.batch(1, 10_000)[0]
        assert isinstance(first, SpooledRecord)
        for _ in range(2):
            spool.give_up(first)
        assert [type(entry) for entry in spool.batch(10, 10_000)] == [Gap, SpooledRecord]


def test_a_batch_is_bounded_and_takes_what_matters_most_first(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record(text="v" * 1000) for _ in range(20)], NOW)
        spool.append([record("updates", EVIDENCE)], NOW)
        assert [entry.stream for entry in spool.batch(3, 10_000)] == ["updates", "vitals", "vitals"]
        assert len(spool.batch(100, 3_000)) == 3
        assert len(spool.batch(100, 1)) == 1


def test_a_batch_holds_no_more_gaps_than_a_controller_takes(tmp_path: Path) -> None:
    old = NOW - timedelta(days=2)
    with opened(tmp_path, settings=settings_with(SpoolSettings(age_limit_d=1.0), gaps_at_once=3)) as spool:
        spool.append([record(at=old if place % 2 else NOW) for place in range(20)], NOW)
        taken = spool.batch(100, 10**6)
        assert (sum(isinstance(entry, Gap) for entry in taken), len(taken)) == (3, 7)


def test_records_that_are_too_large_and_streams_too_many_are_the_callers_mistake(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings_with(SpoolSettings(), record_limit_bytes=100, streams_limit=2)) as spool:
        with pytest.raises(ValueError, match="at most 100 are kept"):
            spool.append([record(), record(text="x" * 100)], NOW)
        spool.append([record("a"), record("b")], NOW)
        with pytest.raises(ValueError, match="at most 2 streams"):
            spool.append([record("c")], NOW)
        assert spool.usage().records == 2


WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from gateway.device.store.spool import NAME, Spool
from gateway.device.store.spool_rows import Priority, SpoolRecord
now = datetime(2027, 1, 1, tzinfo=UTC)
spool = Spool.open(Path(sys.argv[1]), "boot-1", now)
for number in range(1, 100_000):
    spool.append([SpoolRecord("vitals", Priority.VITALS, "sample", now, {"number": number})], now)
    print(number, flush=True)
"""


def test_a_kill_takes_nothing_that_was_kept(tmp_path: Path) -> None:
    said = 0
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                if int(line) == 50:
                    os.kill(process.pid, signal.SIGKILL)
            said += int(line)
        with opened(tmp_path) as spool:
            found = numbers(spool)
            assert found == list(range(1, len(found) + 1))
            assert said <= len(found) <= said + 1
            said = len(found)


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_spool_is_set_aside_and_begun_anew(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path) as spool:
        before = spool.epoch
        spool.append([record()], NOW)
    (tmp_path / NAME).write_bytes(content)
    with opened(tmp_path, last_epoch=before) as spool:
        assert spool.renewed
        assert (spool.epoch > before, spool.usage().records) == (True, 0)
        spool.append([record()], NOW)
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == content
    with opened(tmp_path) as spool:
        assert (spool.renewed, numbers(spool)) == ("", [1])


def test_a_page_that_rotted_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record(text="x" * 300) for _ in range(300)], NOW)
    file = tmp_path / NAME
    whole, renewed = file.read_bytes(), 0
    for page in range(0, len(whole) // 4096, 3):
        file.write_bytes(whole[: page * 4096] + random.Random(page).randbytes(4096) + whole[(page + 1) * 4096 :])
        with opened(tmp_path) as spool:
            renewed += bool(spool.renewed)
            spool.append([record()], NOW)
    assert renewed > 5


def test_what_another_version_wrote_is_set_aside_too(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as shell:
        shell.execute("PRAGMA user_version = 9")
    with opened(tmp_path) as spool:
        assert "of another program or version (schema 9)" in spool.renewed


def test_a_folder_that_is_none_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Spool.open(tmp_path / "absent", "boot", NOW)


def test_a_full_disk_is_said_and_leaves_all_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append([record()], NOW)
        spool._file._connection.execute("PRAGMA max_page_count = 12")  # as a disk that is full
        with pytest.raises(SpaceError, match="nothing was recorded"):
            spool.append([record(text="x" * 10_000) for _ in range(20)], NOW)
        assert numbers(spool) == [1]


def test_the_file_is_not_much_larger_than_what_it_counts(tmp_path: Path) -> None:
    settings = SpoolSettings(bytes_limit=400_000)
    with opened(tmp_path, settings=settings) as spool:
        for _ in range(40):
            spool.append([record(text="x" * size) for size in range(0, 2000, 40)], NOW)
    assert (tmp_path / NAME).stat().st_size < 1.5 * settings.bytes_limit


def test_copies_of_a_spool_begin_different_epochs_in_the_same_second(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with opened(tmp_path / "a", "one") as spool:
        spool.append([record()], NOW)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with opened(tmp_path / "a", "two") as one, opened(tmp_path / "b", "three") as another:
        assert one.epoch != another.epoch
        assert max(one.epoch, another.epoch) < 2**53  # exact in every JSON reader
