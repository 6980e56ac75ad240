"""States of streams on the disk: what is read is what was written, in time and within bounds; damage begins again."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.pipeline import TrackStep
from gateway.serving.domain.infer import SequenceState
from gateway.serving.engine import stream_files, stream_store
from gateway.serving.engine.stream_store import StreamStore
from gateway.serving.engine.streams import Streams
from gateway.serving.pipelines.slices import whole_of
from gateway.serving.pipelines.streams import STATES
from gateway.serving.pipelines.tracking import CountedPlaces, StreamCounts, Tracks, count_objects, follow
from gateway.serving.pipelines.windows import StreamValues
from tests.simulators.pipelines import asked

pytestmark = pytest.mark.asyncio
KEEPS = StreamLimits(20_000, 600.0, keep_on_disk=True)
OWNER = ("people", "d1", "text")
FORMS = {
    "Tracks": ["frame", "following", "table"],
    "StreamCounts": ["frame", "totals", "table"],
    "StreamValues": ["values", "due"],
    "SequenceState": ["owner", "tensors"],
}
"""Fields of the states in files of format 1."""


def keep(streams: Streams, name: str, states: Mapping[str, Any], caller: str = "") -> None:
    """Let a request of a stream leave states."""
    entry: Any = SimpleNamespace(ticket=SimpleNamespace(request=asked({}, caller=caller, stream=name)))
    stream = streams.join(entry)
    streams.keep(stream, dict(states))
    streams.leave(stream, entry)


def made(seed: int) -> dict[str, Any]:
    """Return states of all kinds."""
    rng = np.random.default_rng(seed)
    step, tracks, counts = TrackStep("people", "found"), Tracks(), None
    places = CountedPlaces(np.array([[[0, 0.5], [1, 0.5]]]), [np.array([[0, 0], [1, 0], [1, 1]])], 30)
    for _ in range(3):
        boxes = np.tile(rng.uniform(0, 100, (4, 2)), 2) + np.array([0, 0, 10, 20])
        tracks, numbers, _ = whole_of(follow(tracks, boxes, np.full(4, 0.9), step))
        seen = numbers > 0
        counts, *_ = count_objects(counts, numbers[seen], boxes[seen, :2] / 200, time.monotonic() - 5, places)
    state = SequenceState(("m", "1", "d"), {"h": rng.normal(size=(1, 3)), "n": np.array([[seed]], np.int32)})
    return {"t": tracks, "c": counts, "w": StreamValues(rng.integers(0, 9, (5, 2)), 3), "s": state}


def plain(value: Any) -> Any:
    """Return a state in a form that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist() if value.dtype.kind != "f" else np.nan_to_num(value, nan=-7.0).tolist()
    if dataclasses.is_dataclass(value):
        return type(value).__name__, {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return {key: plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def found(streams: Streams) -> dict[Any, Any]:
    return {stream.key: plain(stream.states) for stream in streams.newest()}


async def opened(folder: Path, owner: tuple[str, ...] = OWNER) -> tuple[StreamStore, Streams]:
    """Return the store and the streams of another process."""
    store = StreamStore(folder, lambda: STATES)
    await store.read()
    return store, store.of(owner, KEEPS, often=True)


async def seen(folder: Path, owner: tuple[str, ...] = OWNER) -> dict[Any, Any]:
    """Return the streams of another process, which ends."""
    store, streams = await opened(folder, owner)
    states = found(streams)
    await store.close()
    return states


async def written(folder: Path, count: int = 3) -> dict[Any, Any]:
    """Write streams as a process does that ends, and return them."""
    store, streams = await opened(folder)
    for seed in range(count):
        keep(streams, f"s{seed}", made(seed), f"caller {seed % 2}")
    await store.close()
    return found(streams)


async def test_streams_go_on_after_a_restart(tmp_path: Path) -> None:
    before = await written(tmp_path)
    (file,) = tmp_path.glob("*.streams")
    assert file.stat().st_mode & 0o777 == 0o600
    store, streams = await opened(tmp_path)
    after = found(streams)
    assert list(after) == list(before)  # in the order of their use
    times = [(each.pop("c"), other.pop("c")) for each, other in zip(before.values(), after.values(), strict=True)]
    assert after == before
    for (_, first), (_, second) in times:
        np.testing.assert_allclose(first.pop("table")[1], second.pop("table")[1], atol=0.5)  # seconds of this process
        assert first == second
    assert streams._size == sum(stream.size for stream in streams.newest())
    keep(streams, "s0", {}, "caller 0")  # it ended
    await store.close()
    assert ("caller 0", "s0") not in await seen(tmp_path)


async def test_the_form_of_files_is_that_of_their_number() -> None:
    assert {kind.__name__: [one.name for one in dataclasses.fields(kind)] for kind in STATES} == FORMS
    assert stream_files.FORMAT == 1


@pytest.mark.parametrize(("gone_s", "left"), [(0.0, 2), (-1e6, 2), (550.0, 1), (601.0, 0)])
async def test_idle_time_goes_on_while_the_gateway_is_away(
    gone_s: float, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    store, streams = await opened(tmp_path)
    keep(streams, "old", made(1))
    next(iter(streams.newest())).used_s -= 100
    keep(streams, "new", made(2))
    await store.close()
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + gone_s)
    streams = (await opened(tmp_path))[1]
    assert [name for _, name in found(streams)] == ["new", "old"][:left]
    if left == 1:
        (stream,) = streams.newest()
        assert time.monotonic() - stream.used_s > 549
        assert began_s - stream.used_s < 551


async def test_stays_are_times_of_the_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, streams = await opened(tmp_path)
    table = np.array([[1, 0.5, 0.5, 1, time.monotonic() - 40.0]])
    keep(streams, "a", {"c": StreamCounts(1, np.zeros((0, 2)), table)})
    await store.close()
    booted_s, now_s = time.monotonic, time.time()
    monkeypatch.setattr(time, "monotonic", lambda: booted_s() + 1e5)  # another boot, 20 s later
    monkeypatch.setattr(time, "time", lambda: now_s + 20.0)
    (stream,) = (await opened(tmp_path))[1].newest()
    assert time.monotonic() - stream.states["c"].table[0, 4] == pytest.approx(60.0, abs=5)


async def test_other_releases_begin_again_and_leave_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = await written(tmp_path)
    store, streams = await opened(tmp_path, ("people", "d2", "text"))
    assert len(streams) == 0
    assert "streams of people begin again: those on the disk are of another release" in caplog.text
    await store.close()
    assert (await seen(tmp_path)).keys() == before.keys()  # after a way back


@pytest.mark.parametrize("seed", range(12))
async def test_a_damaged_file_is_refused_with_one_line(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await written(tmp_path)
    (file,) = tmp_path.glob("*.streams")
    content, chance = bytearray(file.read_bytes()), random.Random(seed)
    if seed % 3 == 0:
        del content[chance.randrange(len(content)) :]
    elif seed % 3 == 1:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    else:
        content += bytes(chance.randrange(1, 99))
    file.write_bytes(content)
    streams = (await opened(tmp_path))[1]
    assert len(streams) == 0
    assert [one.getMessage().count("begin again") for one in caplog.records] == [1]
    assert list(tmp_path.glob("*.streams")) == []
    keep(streams, "a", made(1))  # it serves


@pytest.mark.parametrize("content", [b"", b"none", b"PK\3\4" * 100])
async def test_a_foreign_file_is_refused(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "people-0.streams").write_bytes(content)
    (tmp_path / ".tmp-0").write_bytes(content)
    (tmp_path / "notes").write_bytes(content)
    assert len((await opened(tmp_path))[1]) == 0
    assert "it is no file of streams" in caplog.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes", "streams.lock"]


@pytest.mark.parametrize("change", ["format", "kind", "numbers"])
async def test_what_another_gateway_wrote_is_refused(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as other:
        if change == "format":
            other.setattr(stream_files, "FORMAT", 2)
        if change == "numbers":
            other.setattr(stream_files, "_packed", lambda value: ("O", value.shape, bytes(8 * value.size)))
        await written(tmp_path)
    store = StreamStore(tmp_path, lambda: STATES[1:] if change == "kind" else STATES)
    await store.read()
    assert len(store.of(OWNER, KEEPS)) == 0
    assert "begin again" in caplog.text


async def test_bytes_are_bounded_and_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_files, "FILE_BYTES", 20_000)
    store, streams = await opened(tmp_path)
    for seed in range(20):
        keep(streams, f"s{seed}", made(seed))
    await store.close()
    assert "states of people: " in store.problem
    assert "of 20 do not fit into 20000 bytes" in store.problem
    (file,) = tmp_path.glob("*.streams")
    assert file.stat().st_size < 21_000
    kept = [name for _, name in await seen(tmp_path)]
    assert kept == [f"s{seed}" for seed in range(19, 19 - len(kept), -1)]
    assert len(kept) > 3


async def test_all_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await written(tmp_path)
    monkeypatch.setattr(stream_store, "READ_BYTES", 100)
    assert len((await opened(tmp_path))[1]) == 0
    assert "the files have more than 100 bytes" in caplog.text


async def test_a_full_disk_is_said_and_the_former_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await written(tmp_path)
    store, streams = await opened(tmp_path)
    keep(streams, "more", made(9))
    with monkeypatch.context() as full:
        full.setattr(stream_files, "RESERVE_BYTES", 2**62)
        await store.close()
    assert "of the disk are free" in store.problem
    assert "(EG-209)" in store.problem
    assert (await seen(tmp_path)).keys() == before.keys()


async def test_without_a_disk_it_is_said(tmp_path: Path) -> None:
    store = StreamStore()
    keep(store.of(OWNER, KEEPS, often=True), "a", made(1))
    await store.close()
    assert "not on a disk (EG-210)" in store.problem
    assert StreamStore(tmp_path).of(OWNER, StreamLimits()) is not None


async def test_states_are_written_while_they_change_and_those_of_sequences_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamStore, "save_s", 0.0)
    store, streams = await opened(tmp_path)
    sums = store.of(("sums", "1", "d"), KEEPS)
    plain_streams = store.of(("plain", "1"), StreamLimits())
    for each in (streams, sums, plain_streams):
        keep(each, "a", made(1))
    while not list(tmp_path.glob("*.streams")):
        await asyncio.sleep(0.01)
    (file,) = tmp_path.glob("*.streams")
    assert file.name.startswith("people-")
    after_kill = StreamStore(shutil.copytree(tmp_path, tmp_path / "killed"), lambda: STATES)
    await after_kill.read()
    assert [len(after_kill.of(owner, KEEPS)) for owner in (OWNER, ("sums", "1", "d"))] == [1, 0]
    await store.close()
    assert len(list(tmp_path.glob("*.streams"))) == 2
    again = StreamStore(tmp_path, lambda: STATES)
    await again.read()
    assert [each.name[:7] for each in tmp_path.glob("*.streams")] == ["people-"]  # nothing older after a kill
    await again.close()  # of targets that did not come: kept for the next start, too
    assert [len(await seen(tmp_path, owner)) for owner in (OWNER, ("sums", "1", "d"))] == [1, 1]


async def test_one_process_writes(tmp_path: Path) -> None:
    store, streams = await opened(tmp_path)
    other, others = await opened(tmp_path)
    assert "another edge-gateway uses this folder" in other.problem
    keep(others, "b", made(2))
    await other.close()
    keep(streams, "a", made(1))
    await store.close()
    assert list(await seen(tmp_path)) == [("", "a")]


async def test_ten_thousand_streams_pass_a_restart(tmp_path: Path) -> None:
    store, streams = await opened(tmp_path)
    states = made(1)
    for number in range(10_000):
        keep(streams, f"s{number}", states, f"caller {number % 7}")
    await store.close()
    after = (await opened(tmp_path))[1]
    assert len(after) == 10_000
    assert after._size == streams._size


async def test_a_stop_while_the_files_are_read_loses_nothing(tmp_path: Path) -> None:
    before, go = await written(tmp_path), threading.Event()

    def kinds() -> Any:
        go.wait(60)
        return STATES

    store = StreamStore(tmp_path, kinds)
    reads = asyncio.create_task(store.read())
    await asyncio.sleep(0)
    reads.cancel()
    await asyncio.wait({reads})
    go.set()
    await store.close()
    assert (await seen(tmp_path)).keys() == before.keys()


async def test_a_file_that_cannot_be_read_now_is_left(tmp_path: Path) -> None:
    before = await written(tmp_path)

    def kinds() -> Any:
        raise MemoryError

    store = StreamStore(tmp_path, kinds)
    await store.read()
    await store.close()
    assert (await seen(tmp_path)).keys() == before.keys()
