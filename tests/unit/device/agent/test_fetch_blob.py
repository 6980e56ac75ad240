"""Blobs into the store, from servers that behave, break off, lie and stall; killed in the middle, and gone on with."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import SpaceError
from gateway.common.store.settings import StoreSettings
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import FetchError
from gateway.common.transfer.web import WebSource
from gateway.device.agent.fetch.fetch import blob_path, fetch_blob
from tests.simulators.bad_server import BadServer, Behaviour, answer, cut, endless, say, serve, silence, trickle
from tests.simulators.constants import settings_with

CONTENT = random.Random(4).randbytes(1_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)
ROOT = Path(__file__).parents[4]
QUICK = settings_with(
    FetchSettings(connect_timeout_s=2, read_timeout_s=0.2, blob_deadline_s=10),
    minimum_rate_bytes_per_s=1000,
    minimum_rate_window_s=0.3,
    attempts=3,
    backoff_base_s=0.001,
)


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    store = LocalBlobs(tmp_path / "blobs", StoreSettings(keep_free_bytes=0))
    store.prepare()
    return store


def part(blobs: LocalBlobs) -> Path:
    path = blobs.path(DIGEST)
    return path.with_name(f"{path.name}.part")


@contextmanager
def serving(*script: Behaviour) -> Iterator[tuple[WebSource, BadServer]]:
    with BadServer(list(script)).running() as server:
        source = WebSource(server.url, QUICK)
        try:
            yield source, server
        finally:
            source.close()


def refused(blobs: LocalBlobs, *script: Behaviour) -> tuple[FetchError, int]:
    """Return the error, and how many requests it took; no blob is there."""
    with serving(*script) as (source, server):
        with pytest.raises(FetchError) as caught:
            fetch_blob(source, blobs, DIGEST, SIZE)
        assert not blobs.has(DIGEST, SIZE)
        return caught.value, len(server.exchanges)


def fetched(blobs: LocalBlobs, *script: Behaviour) -> BadServer:
    """Return the server, after the blob came and is right."""
    with serving(*script) as (source, server):
        assert fetch_blob(source, blobs, DIGEST, SIZE) == blobs.path(DIGEST)
    assert blobs.path(DIGEST).read_bytes() == CONTENT
    assert not part(blobs).exists()
    return server


def test_a_blob_comes_whole_and_progress_is_told(blobs: LocalBlobs) -> None:
    told: list[tuple[int, int]] = []
    with serving(serve(CONTENT)) as (source, server):
        fetch_blob(source, blobs, DIGEST, SIZE, lambda *now: told.append(now))
    assert server.exchanges[0].path == f"/{blob_path(DIGEST)}"
    assert blobs.path(DIGEST).read_bytes() == CONTENT
    assert told == sorted(told)
    assert told[-1] == (SIZE, SIZE)


def test_what_is_there_is_not_fetched(blobs: LocalBlobs) -> None:
    blobs.put(CONTENT)
    with serving(silence) as (source, server):
        assert fetch_blob(source, blobs, DIGEST, SIZE) == blobs.path(DIGEST)
        assert server.exchanges == []


def test_an_empty_blob_needs_no_request(blobs: LocalBlobs) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    with serving(silence) as (source, server):
        assert fetch_blob(source, blobs, empty, 0).read_bytes() == b""
        assert server.exchanges == []


def test_a_server_that_breaks_off_many_times_sends_no_byte_twice(blobs: LocalBlobs) -> None:
    server = fetched(blobs, *[cut(CONTENT, 100_000)] * 9, serve(CONTENT))
    assert len(server.exchanges) == 10, "more than `attempts`: each of them brought something"
    assert server.body_bytes == SIZE
    assert [exchange.range_start() for exchange in server.exchanges] == [100_000 * n for n in range(10)]


def test_breaking_off_without_progress_is_given_up_and_what_came_stays(blobs: LocalBlobs) -> None:
    error, requests = refused(blobs, cut(CONTENT, 10))
    assert (requests, error.final) == (QUICK.attempts, False)
    assert part(blobs).read_bytes() == CONTENT[:30]


def test_the_next_run_goes_on_where_this_one_stopped(blobs: LocalBlobs) -> None:
    refused(blobs, cut(CONTENT, 400_000), say(b""))
    server = fetched(blobs, serve(CONTENT))
    assert server.exchanges[0].headers["range"] == "bytes=400000-"
    assert server.body_bytes == SIZE - 400_000


@pytest.mark.parametrize("how", ["hash", "longer", "other"])
def test_a_part_that_was_spoilt_is_fetched_anew(blobs: LocalBlobs, how: str) -> None:
    spoilt = {"hash": b"x" * 1000, "longer": CONTENT + b"x", "other": b"x" * SIZE}[how]
    part(blobs).write_bytes(spoilt)
    fetched(blobs, serve(CONTENT))


def test_a_part_that_is_whole_needs_no_request(blobs: LocalBlobs) -> None:
    part(blobs).write_bytes(CONTENT)
    assert fetched(blobs, silence).exchanges == []


def test_wrong_bytes_are_dropped_and_the_source_is_named(blobs: LocalBlobs) -> None:
    wrong = bytes(SIZE)
    with serving(serve(wrong)) as (source, server):
        with pytest.raises(FetchError, match="another mirror") as caught:
            fetch_blob(source, blobs, DIGEST, SIZE)
        assert source.name in str(caught.value)
        assert (len(server.exchanges), caught.value.final) == (1, True)
    assert list(blobs.path(DIGEST).parent.iterdir()) == []


def test_a_spoilt_part_and_a_wrong_source_end(blobs: LocalBlobs) -> None:
    part(blobs).write_bytes(b"x" * 1000)
    _, requests = refused(blobs, serve(bytes(SIZE)))
    assert requests == 2
    assert not part(blobs).exists()


ODD_RANGES: dict[str, Behaviour] = {
    "knows no ranges": serve(CONTENT, ranges=False),
    "says 416": answer("416 Range Not Satisfiable", "Content-Range: bytes */5"),
    "another start": answer("206 Partial", f"Content-Range: bytes 0-{SIZE - 400_001}/{SIZE}", body=CONTENT[400_000:]),
    "another end": answer("206 Partial", f"Content-Range: bytes 400000-400009/{SIZE}", body=CONTENT[400_000:400_010]),
    "another size": answer("206 Partial", "Content-Range: bytes 400000-400009/400010", body=CONTENT[:10]),
    "no range said": answer("206 Partial", body=CONTENT[400_000:]),
    "many ranges": answer("206 Partial", "Content-Type: multipart/byteranges; boundary=x", body=b"--x"),
    "nonsense": answer("206 Partial", "Content-Range: bytes x-y/z", body=CONTENT[400_000:]),
}


@pytest.mark.parametrize("odd", ODD_RANGES.values(), ids=ODD_RANGES)
def test_a_server_that_cannot_go_on_is_asked_for_all_of_it(blobs: LocalBlobs, odd: Behaviour) -> None:
    part(blobs).write_bytes(CONTENT[:400_000])
    server = fetched(blobs, odd, serve(CONTENT, ranges=False))
    assert server.exchanges[0].headers["range"] == "bytes=400000-"
    assert all("range" not in exchange.headers for exchange in server.exchanges[1:])


def test_a_server_that_says_416_for_ever_is_given_up(blobs: LocalBlobs) -> None:
    part(blobs).write_bytes(CONTENT[:400_000])
    error, requests = refused(blobs, answer("416 Range Not Satisfiable"))
    assert (error.status, error.final, requests) == (416, True, 2)
    assert part(blobs).read_bytes() == CONTENT[:400_000]


LIES: dict[str, Behaviour] = {
    "shorter than signed": serve(CONTENT[:-1]),
    "longer than signed": serve(CONTENT + b"x"),
    "longer, unsaid": say(b"HTTP/1.1 200 OK\r\n\r\n" + CONTENT + b"x"),
    "without end": endless(b"HTTP/1.1 200 OK\r\n\r\n"),
    "part of it, unasked": answer("206 Partial", f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}", body=CONTENT),
    "compressed": serve(CONTENT, "Content-Encoding: gzip"),
    "not there": answer("404 Not Found"),
    "gone": answer("410 Gone"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_cannot_be_right_is_final(blobs: LocalBlobs, lie: Behaviour) -> None:
    error, requests = refused(blobs, lie)
    assert (error.final, requests) == (True, 1)
    assert not part(blobs).exists() or part(blobs).stat().st_size <= SIZE


SLOW: dict[str, Behaviour] = {
    "a byte now and then": trickle(f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode(), 0.02),
    "a header now and then": trickle(b"HTTP/1.1 200 OK\r\nX: ", 0.02),
    "silence": silence,
    "truncated": say(f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\nx".encode()),
    "in trouble": answer("500 Broken"),
}


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
def test_a_slow_or_broken_server_is_given_up_for_now(blobs: LocalBlobs, slow: Behaviour) -> None:
    error, _ = refused(blobs, slow)  # a request without an answer may not have been read when it is given up
    assert not error.final
    assert f"failure {QUICK.attempts} in a row" in str(error)


def test_a_stall_in_the_middle_is_gone_on_from(blobs: LocalBlobs) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode()
    server = fetched(blobs, trickle(head + CONTENT[:500_000], 60), serve(CONTENT))
    assert server.exchanges[1].range_start() == 500_000


def test_the_rate_is_held(blobs: LocalBlobs) -> None:
    pauses: list[float] = []
    least = {"minimum_rate_bytes_per_s": 200_000, "minimum_rate_window_s": 0.5, "read_timeout_s": 0.2}
    settings = settings_with(FetchSettings(rate_limit_bytes_per_s=100_000), rate_burst_bytes=1000, **least)
    now_ns = [0]

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now_ns[0] += round(seconds * 1e9)

    with BadServer([serve(CONTENT)]).running() as server:
        source = WebSource(server.url, settings, now_ns=lambda: now_ns[0], pause=pause)
        fetch_blob(source, blobs, DIGEST, SIZE)
        source.close()
    assert sum(pauses) == pytest.approx((SIZE - 1000) / 100_000, rel=1e-6), "the clock stands still but for pauses"


def test_no_room_is_said_before_a_byte_is_asked_for(tmp_path: Path) -> None:
    small = LocalBlobs(tmp_path / "blobs", StoreSettings(quota_bytes=SIZE - 1))
    small.prepare()
    with serving(serve(CONTENT)) as (source, server):
        with pytest.raises(SpaceError, match="quota"):
            fetch_blob(source, small, DIGEST, SIZE)
        assert server.exchanges == []
    assert list((tmp_path / "blobs" / "sha256").iterdir()) == []


FETCHING = """
import sys
from pathlib import Path
from gateway.device.agent.fetch.fetch import fetch_blob
from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.web import WebSource
from gateway.common.store.blobs import LocalBlobs
url, folder, digest, size = sys.argv[1:]
blobs = LocalBlobs(Path(folder))
blobs.prepare()
say = lambda here, _: print(here, flush=True)
fetch_blob(WebSource(url, FetchSettings()), blobs, digest, int(size), say)
"""


def test_killed_in_the_middle_it_goes_on_with_what_had_come(blobs: LocalBlobs, tmp_path: Path) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode()
    with BadServer([trickle(head + CONTENT[:300_000], 60), serve(CONTENT)]).running() as server:
        words = [sys.executable, "-c", FETCHING, server.url, str(tmp_path / "blobs"), DIGEST, str(SIZE)]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            while int(child.stdout.readline()) < 300_000:
                pass
            os.kill(child.pid, signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        assert not blobs.has(DIGEST, SIZE)
        assert part(blobs).read_bytes() == CONTENT[:300_000]
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=30)
        assert blobs.path(DIGEST).read_bytes() == CONTENT
        assert server.exchanges[1].range_start() == 300_000
        assert server.exchanges[1].body_bytes == SIZE - 300_000


def test_a_blob_that_the_disk_spoilt_is_fetched_anew(blobs: LocalBlobs) -> None:
    blobs.put(CONTENT)
    blobs.path(DIGEST).write_bytes(CONTENT[::-1])
    fetched(blobs, serve(CONTENT))
