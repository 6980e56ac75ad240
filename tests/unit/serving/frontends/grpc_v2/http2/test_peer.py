"""The h2 package as the peer: whatever both sides do, in whatever chunks it travels, each gets what the other said."""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.events import StreamOpened
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from tests.simulators.constants import settings_with
from tests.simulators.http2_model import ASKED, Peers
from tests.simulators.http2_peer import HEAD

WINDOWS = [0, 1, 100, 65_535, 1 << 20]
FRAMES = [16_384, 20_000, 1 << 20]
BOUNDS = [(1 << 20, 1 << 24, 1 << 20), (65_535, 65_536, 16_384), (70_000, 200_000, 30_000)]
PICKS, SIZES = st.integers(0, 99), st.integers(0, 100_000)
CHUNKS = st.lists(st.integers(1, 20_000) | st.just(1 << 20), max_size=8)
EXTRA = st.lists(st.tuples(st.sampled_from(["a", "b", "traceparent"]), st.text("abXY-0 ,", max_size=20)), max_size=3)


class Machine(RuleBasedStateMachine):
    """State machine of two peers; every rule may carry bytes both ways after what it does."""

    @initialize(window=st.sampled_from(WINDOWS), frame_bytes=st.sampled_from(FRAMES), bounds=st.sampled_from(BOUNDS))
    def connect(self, window: int, frame_bytes: int, bounds: tuple[int, int, int]) -> None:
        self.peers = Peers(window, frame_bytes, bounds)

    def carry(self, to_us: list[int], to_them: list[int]) -> None:
        self.peers.carry_to_us(to_us)
        self.peers.carry_to_them(to_them, takes=len(to_them) % 2 == 0)

    @rule(extra=EXTRA, prioritised=st.booleans(), end=st.booleans(), to_us=CHUNKS, to_them=CHUNKS)
    def ask(
        self, extra: list[tuple[str, str]], prioritised: bool, end: bool, to_us: list[int], to_them: list[int]
    ) -> None:
        self.peers.ask(extra, prioritised, end)
        self.carry(to_us, to_them)

    @rule(pick=PICKS, size=SIZES, padding=st.none() | st.integers(0, 255), end=st.booleans(), to_us=CHUNKS)
    def send(self, pick: int, size: int, padding: int | None, end: bool, to_us: list[int]) -> None:
        self.peers.send(pick, size, padding, end)
        self.carry(to_us, [])

    @rule(pick=PICKS, size=SIZES, to_us=CHUNKS, to_them=CHUNKS)
    def respond(self, pick: int, size: int, to_us: list[int], to_them: list[int]) -> None:
        self.carry(to_us, [])
        self.peers.respond(pick, size)
        self.carry([], to_them)

    @rule(pick=PICKS, size=SIZES, end=st.booleans(), to_us=CHUNKS)
    def say(self, pick: int, size: int, end: bool, to_us: list[int]) -> None:
        self.carry(to_us, [])
        self.peers.say(pick, size, end)

    @rule(act=st.sampled_from(["send_trailers", "cancel", "give_up", "prioritise"]), pick=PICKS, to_us=CHUNKS)
    def disturb(self, act: str, pick: int, to_us: list[int]) -> None:
        getattr(self.peers, act)(pick)
        self.carry(to_us, [])

    @rule(act=st.sampled_from(["ping", "ask_for_life", "hold", "release"]), to_us=CHUNKS, to_them=CHUNKS)
    def interrupt(self, act: str, to_us: list[int], to_them: list[int]) -> None:
        getattr(self.peers, act)()
        self.carry(to_us, to_them)

    @rule(pick=PICKS, size=st.integers(1, 100_000), stream=st.booleans(), to_us=CHUNKS)
    def widen(self, pick: int, size: int, stream: bool, to_us: list[int]) -> None:
        self.peers.widen_stream(pick, size) if stream else self.peers.widen(size)
        self.carry(to_us, [])

    @rule(window=st.sampled_from([*WINDOWS, 50, 5000]), frame_bytes=st.sampled_from(FRAMES), to_us=CHUNKS)
    def change_settings(self, window: int, frame_bytes: int, to_us: list[int]) -> None:
        self.peers.change_settings(window, frame_bytes)
        self.carry(to_us, [])

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "peers"):
            self.peers.check()

    def teardown(self) -> None:
        if hasattr(self, "peers"):
            self.peers.finish()


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestMachine = Machine.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_long_conversations(seed: int) -> None:
    """Steps are drawn by chance alone, but many more: most of what is said arrives, and not by `finish`."""
    peers = Peers.converse(random.Random(seed), 400)
    assert sum(len(call.read) for call in peers.calls.values()) > 100_000
    assert sum(len(call.heard) for call in peers.calls.values()) > 20_000
    peers.finish()


def test_a_header_block_split_by_its_peer_is_one_request() -> None:
    """h2 says CONTINUATION where a block is larger than a frame."""
    ours = Http2Connection(settings_with(Http2Limits(), max_header_bytes=100_000), read_request)
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    theirs.initiate_connection()
    theirs.receive_data(b"".join(ours.take()))
    fields = [*ASKED, ("x", "~" * 60_000)]
    theirs.send_headers(1, fields)
    (event,) = ours.receive(memoryview(theirs.data_to_send()), 0)
    assert isinstance(event, StreamOpened)
    assert event.stream.headers[b"x"] == b"~" * 60_000


def test_header_blocks_of_ours_larger_than_a_frame_are_read() -> None:
    ours = Http2Connection(Http2Limits(), read_request)
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    theirs.initiate_connection()
    theirs.send_headers(1, ASKED, end_stream=True)
    (event,) = ours.receive(memoryview(theirs.data_to_send()), 0)
    assert isinstance(event, StreamOpened)
    ours.begin(event.stream, HEAD)
    ours.end(event.stream, encode(((b"grpc-message", b"m" * 40_000),)))
    read = theirs.receive_data(b"".join(ours.take()))
    (trailers,) = (each for each in read if isinstance(each, h2.events.TrailersReceived))
    assert [tuple(map(bytes, header)) for header in trailers.headers] == [(b"grpc-message", b"m" * 40_000)]
