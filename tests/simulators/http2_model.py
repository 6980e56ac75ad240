"""Model of our HTTP/2 connection with the h2 package as its client, and of what both sides must receive.

Bytes wait in `to_us` and `to_them` and are delivered in chunks of any size. h2 must never report an error of our side.
GOAWAY is not used: h2 accepts nothing after it.
"""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import h2.settings

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.events import (
    DataReceived,
    PingAcknowledged,
    RequestReceived,
    StreamDropped,
    StreamOpened,
)
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from tests.simulators.constants import settings_with
from tests.simulators.http2_peer import HEAD, TRAILERS

Codes = h2.settings.SettingCodes
ASKED = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "gateway"),
    ("te", "trailers"),
]
RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
MILLISECOND_NS = 1_000_000
ACK = frames.frame(frames.SETTINGS, frames.ACK, 0)
"""Boundary of chunks: h2 applies a new frame size from its next chunk on."""
LARGE = bytes(range(251)) * 1200


class Call:
    """Expected state of one stream on both sides."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields
        self.stream: Stream | None = None
        self.asked, self.heard = bytearray(), bytearray()
        self.asked_end = self.heard_end = False
        self.said, self.read = bytearray(), bytearray()
        self.said_head = self.said_end = self.read_end = False
        self.gone = False
        """Reset by either side: data in transit may be lost, but must not be wrong."""


class Peers:
    """Both sides of a connection. Each method is an action of one side; `finish` delivers everything."""

    def __init__(self, window: int, frame_bytes: int, limits: tuple[int, int, int]) -> None:
        """Set the client's window and largest frame; our window per stream and in total, and our largest frame."""
        self.calls: dict[int, Call] = {}
        self.to_us, self.to_them, self.greeted = bytearray(), bytearray(), False
        self.now_ns = self.pings = self.pongs = self.our_pings = self.our_pongs = 0
        stream, connection, frame = limits
        bounds = settings_with(
            Http2Limits(),
            stream_window_bytes=stream,
            connection_window_bytes=connection,
            max_frame_bytes=frame,
            max_streams=8,
            resets_burst=10_000,
            controls_burst=10_000,
            max_ping_strikes=10_000,
        )
        self.ours = Http2Connection(bounds, read_request)
        self.theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.theirs.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                Codes.INITIAL_WINDOW_SIZE: window,
                Codes.MAX_FRAME_SIZE: frame_bytes,
                Codes.ENABLE_PUSH: 0,
            },
        )
        self.theirs.max_inbound_frame_size = frame_bytes  # h2 changes it by SETTINGS only
        self.theirs.initiate_connection()

    # ---- the client ------------------------------------------------------------------------------------------------
    def ask(self, extra: list[tuple[str, str]], prioritised: bool, end: bool) -> None:
        if self.theirs.open_outbound_streams >= 8:
            return
        number = self.theirs.get_next_available_stream_id()
        fields = ASKED + [(name, value.strip()) for name, value in extra]
        weight = {"priority_weight": 5, "priority_depends_on": 0} if prioritised else {}
        self.theirs.send_headers(number, fields, end_stream=end, **weight)
        self.calls[number] = call = Call(fields)
        call.asked_end = end

    def asking(self) -> list[int]:
        return [number for number, call in self.calls.items() if not (call.asked_end or call.gone or call.read_end)]

    def send(self, pick: int, size: int, padding: int | None, end: bool) -> None:
        numbers = self.asking()
        if not numbers:
            return
        number = numbers[pick % len(numbers)]
        overhead = 0 if padding is None else padding + 1
        room = min(self.theirs.local_flow_control_window(number), self.theirs.max_outbound_frame_size) - overhead
        payload = LARGE[pick : pick + min(size, room)] if room >= 0 else None
        if payload is None:
            return
        self.theirs.send_data(number, payload, end_stream=end, pad_length=padding)
        self.calls[number].asked += payload
        self.calls[number].asked_end = end

    def send_trailers(self, pick: int) -> None:
        numbers = self.asking()
        if numbers:
            number = numbers[pick % len(numbers)]
            self.theirs.send_headers(number, [("x-checksum", "1")], end_stream=True)
            self.calls[number].asked_end = True

    def cancel(self, pick: int) -> None:
        numbers = [number for number, call in self.calls.items() if not (call.gone or call.read_end)]
        if numbers:
            number = numbers[pick % len(numbers)]
            self.theirs.reset_stream(number, 8)
            self.calls[number].gone = True

    def widen(self, size: int) -> None:
        self.theirs.increment_flow_control_window(size)

    def widen_stream(self, pick: int, size: int) -> None:
        numbers = [number for number, call in self.calls.items() if not (call.gone or call.read_end)]
        if numbers:
            self.theirs.increment_flow_control_window(size, numbers[pick % len(numbers)])

    def change_settings(self, window: int, frame_bytes: int) -> None:
        """Change settings, once the first ones are acknowledged.

        h2 would take that acknowledgement for one of the later settings.
        """
        if self.greeted:
            self.theirs.update_settings({Codes.INITIAL_WINDOW_SIZE: window, Codes.MAX_FRAME_SIZE: frame_bytes})

    def ping(self) -> None:
        self.theirs.ping(b"are you?")
        self.pings += 1

    def prioritise(self, depends: int) -> None:
        self.theirs.prioritize(2 * depends + 101, weight=3, depends_on=0)

    # ---- the server ------------------------------------------------------------------------------------------------
    def answering(self) -> list[Call]:
        return [call for call in self.calls.values() if call.stream is not None and not (call.said_end or call.gone)]

    def respond(self, pick: int, size: int) -> None:
        calls = [call for call in self.answering() if not call.said_head]
        if calls:
            call = calls[pick % len(calls)]
            assert call.stream is not None
            body = LARGE[pick : pick + size]
            self.ours.respond(call.stream, HEAD, (body[:5], body[5:]), len(body), TRAILERS)
            call.said += body
            self._say_end(call)

    def say(self, pick: int, size: int, end: bool) -> None:
        calls = self.answering()
        if not calls:
            return
        call = calls[pick % len(calls)]
        assert call.stream is not None
        if not call.said_head:
            self.ours.begin(call.stream, HEAD)
            call.said_head = True
        self.ours.data(call.stream, LARGE[pick : pick + size])
        call.said += LARGE[pick : pick + size]
        if end:
            self.ours.end(call.stream, TRAILERS.payload)
            self._say_end(call)

    def _say_end(self, call: Call) -> None:
        call.said_head = call.said_end = True

    def give_up(self, pick: int) -> None:
        calls = self.answering()
        if calls:
            call = calls[pick % len(calls)]
            assert call.stream is not None
            self.ours.reset(call.stream, Code.CANCEL)
            call.gone = True

    def hold(self) -> None:
        self.ours.hold()

    def release(self) -> None:
        self.ours.release()

    def ask_for_life(self) -> None:
        self.ours.ping(b"alive?!!")
        self.our_pings += 1

    # ---- transport -------------------------------------------------------------------------------------------------
    def carry_to_us(self, chunks: list[int]) -> None:
        self.to_us += self.theirs.data_to_send()
        for size in chunks:
            chunk, self.to_us = self.to_us[:size], self.to_us[size:]
            if chunk:
                self._hear(bytes(chunk))

    def carry_to_them(self, chunks: list[int], takes: bool) -> None:
        self.to_them += b"".join(self.ours.take())
        for size in chunks:
            place = self.to_them.find(ACK)
            stop = place + len(ACK) if 0 <= place < size else size
            chunk, self.to_them = self.to_them[:stop], self.to_them[stop:]
            if chunk:
                self._read(bytes(chunk), takes)

    def _hear(self, words: bytes) -> None:
        self.now_ns += MILLISECOND_NS
        for event in self.ours.receive(memoryview(words), self.now_ns):
            if isinstance(event, PingAcknowledged):
                assert event.payload == b"alive?!!"
                self.our_pongs += 1
                continue
            call = self.calls[event.stream.id]
            if isinstance(event, StreamOpened | RequestReceived):
                assert call.stream is None
                call.stream, call.heard_end = event.stream, isinstance(event, RequestReceived) or event.ended
                call.heard += event.payload if isinstance(event, RequestReceived) else b""
                expected: dict[str, str] = {}
                for name, value in call.fields:
                    expected.setdefault(name, value)
                assert {name.decode(): value.decode() for name, value in event.stream.headers.items()} == expected
            elif isinstance(event, DataReceived):
                assert event.stream is call.stream
                assert not call.heard_end
                heard = b"".join(event.parts)
                call.heard += heard
                call.heard_end = event.ended
                self.ours.grant(event.stream, len(heard))
            else:
                assert isinstance(event, StreamDropped)
                assert call.gone

    def _read(self, words: bytes, takes: bool) -> None:
        for event in self.theirs.receive_data(words):
            if isinstance(event, h2.events.ResponseReceived):
                assert [(str(name), str(value)) for name, value in event.headers] == RESPONSE
            elif isinstance(event, h2.events.DataReceived):
                self.calls[event.stream_id].read += event.data
                if takes and event.flow_controlled_length:
                    self.theirs.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                self._note(event)

    def _note(self, event: h2.events.Event) -> None:
        assert not isinstance(event, h2.events.ConnectionTerminated)
        if isinstance(event, h2.events.TrailersReceived):
            assert [(name, value) for name, value in event.headers] == [("grpc-status", "0")]
        elif isinstance(event, h2.events.StreamEnded):
            self.calls[event.stream_id].read_end = True
        elif isinstance(event, h2.events.StreamReset) and event.remote_reset:
            assert self.calls[event.stream_id].gone or event.error_code == Code.NO_ERROR
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.greeted = True
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1

    @classmethod
    def converse(cls, chance: random.Random, steps: int) -> Peers:
        """Perform random actions of both sides."""
        window, frame_bytes = chance.choice([0, 100, 65_535, 1 << 20]), chance.choice([16_384, 20_000, 1 << 20])
        bounds = chance.choice([(1 << 20, 1 << 24, 1 << 20), (65_535, 65_536, 16_384), (70_000, 200_000, 30_000)])
        peers = cls(window, frame_bytes, bounds)
        for _ in range(steps):
            peers.step(chance)
            peers.check()
        return peers

    def step(self, chance: random.Random) -> None:
        """Perform one action and deliver some bytes."""
        pick, size = chance.randrange(100), int(10 ** chance.uniform(0, 5))
        padding = chance.choice([None, None, 0, 200])
        often = [
            lambda: self.ask([("a", str(size))][: pick % 2], pick < 10, pick < 20),
            lambda: self.send(pick, size, padding, pick < 30),
            lambda: self.say(pick, size, pick < 30),
            lambda: self.respond(pick, size),
            lambda: self.widen(size + 1),
            lambda: self.widen_stream(pick, size + 1),
        ]
        seldom = [
            lambda: self.cancel(pick),
            lambda: self.give_up(pick),
            lambda: self.send_trailers(pick),
            lambda: self.prioritise(pick),
            lambda: self.change_settings(
                chance.choice([0, 1, 5000, 65_535, 1 << 20]), chance.choice([16_384, 1 << 18])
            ),
            self.ping,
            self.ask_for_life,
            self.hold,
            self.release,
            self.release,
        ]
        chance.choice(seldom if chance.random() < 0.2 else often)()
        self.carry_to_us([int(10 ** chance.uniform(0, 5)) for _ in range(chance.randrange(4))])
        self.carry_to_them([int(10 ** chance.uniform(0, 5)) for _ in range(chance.randrange(4))], chance.random() < 0.8)

    # ---- invariants ------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Check what must hold at any time."""
        self.nobody_finds_fault()
        self.what_arrived_was_said()
        self.what_waits_is_counted()

    def nobody_finds_fault(self) -> None:
        assert self.ours.failed is None

    def what_arrived_was_said(self) -> None:
        for call in self.calls.values():
            assert call.asked.startswith(call.heard)
            assert call.said.startswith(call.read)

    def what_waits_is_counted(self) -> None:
        assert self.ours.sender.waiting_bytes == sum(stream.waiting_bytes for stream in self.ours.streams.values())

    def finish(self) -> None:
        """Open the windows and deliver everything: all sent data must arrive, and nothing may remain."""
        self.ours.release()
        self.carry_to_us([1 << 30])
        self.carry_to_them([1 << 30], takes=False)
        self.change_settings(1 << 24, 1 << 20)
        for call in self.answering():
            self.say_whole(call)
        for _ in range(50):
            self.to_us += self.theirs.data_to_send()
            self.to_them += b"".join(self.ours.take())
            if not (self.to_us or self.to_them):
                break
            words, self.to_us = bytes(self.to_us), bytearray()
            self._hear(words) if words else None
            for call in self.answering():
                self.say_whole(call)
            self.carry_to_them([1 << 30] * 20, takes=False)
            self.open_window()
        self.all_arrived()

    def say_whole(self, call: Call) -> None:
        assert call.stream is not None
        if not call.said_head:
            self.ours.begin(call.stream, HEAD)
        self.ours.end(call.stream, TRAILERS.payload)
        self._say_end(call)

    def open_window(self) -> None:
        if self.theirs.inbound_flow_control_window < 1 << 24:
            self.theirs.increment_flow_control_window(1 << 24)

    def all_arrived(self) -> None:
        self.nobody_finds_fault()
        self.what_arrived_was_said()
        for call in self.calls.values():
            if call.gone:
                continue
            assert call.stream is not None
            assert call.read_end
            assert call.read == call.said
            assert call.heard == call.asked[: len(call.heard)]
        assert not self.ours.streams
        assert self.ours.sender.waiting_bytes == 0
        assert (self.pongs, self.our_pongs) == (self.pings, self.our_pings)
