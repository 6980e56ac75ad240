"""The table of states, walked by every sequence of what can happen, and the window over all streams."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.streams import (
    CLOSED,
    MOVES,
    OPEN,
    PEER_DONE,
    PEER_ENDS,
    RESET,
    WE_END,
    ReceiveWindow,
    Stream,
)


def test_a_stream_is_open_at_first_and_holds_nothing() -> None:
    stream = Stream(1, "head", 5, 10, 20)
    assert (stream.state, stream.waiting, stream.waiting_bytes, stream.call) == (OPEN, None, 0, None)
    assert (stream.id, stream.headers, stream.opened_ns, stream.receive_window, stream.send_window) == (
        1,
        "head",
        5,
        10,
        20,
    )
    assert not hasattr(stream, "__dict__")


@pytest.mark.parametrize("happened", list(itertools.product((PEER_ENDS, WE_END, RESET), repeat=3)))
def test_states(happened: tuple[int, ...]) -> None:
    state = OPEN
    for what in happened:
        state = MOVES[state][what]
    assert state == CLOSED  # three of them always close it
    assert MOVES[OPEN][happened[0]] == (PEER_DONE if happened[0] == PEER_ENDS else CLOSED)


@given(st.integers(65_535, 1 << 20), st.lists(st.integers(0, 1 << 14), max_size=300))
def test_the_window_is_opened_again_before_a_peer_that_keeps_to_it_runs_out(most: int, lengths: list[int]) -> None:
    window, peers = ReceiveWindow(most), most
    for length in lengths:
        peers -= length
        assert peers >= 0
        peers += window.spend(length)
        assert most // 2 <= peers <= most


def test_more_than_the_window() -> None:
    window = ReceiveWindow(100)
    assert window.spend(50) == 0
    with pytest.raises(ProtocolError) as caught:
        window.spend(51)
    assert caught.value.code is Code.FLOW_CONTROL_ERROR
