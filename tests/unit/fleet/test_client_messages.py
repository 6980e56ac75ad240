"""Server-Sent Events from bytes that come in any pieces."""

from __future__ import annotations

import pytest

from fleet.client.client import Messages, ServerSentMessage

ALIVE = ServerSentMessage()
STREAM = (
    b'retry: 1500\nevent: position\nid: 7\ndata: {"id":"7"}\n\n: heartbeat\n\n'
    b'event:device.event\r\nid:8\r\nodd\r\ndata:{"a": "b: c"}\r\n\r\nid: 9\n\ndata: {}\n\nevent: cut\ndata: {'
)
EXPECTED = [
    ServerSentMessage("position", "7", {"id": "7"}),
    ALIVE,
    ServerSentMessage("device.event", "8", {"a": "b: c"}),
    ServerSentMessage("", "", {}),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_messages_in_pieces(size: int) -> None:
    parser = Messages(1_000, 3.0)
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [message for piece in pieces for message in parser.feed(piece)] == EXPECTED
    assert parser.retry_s == 1.5


def test_fields_of_other_names_are_not_kept() -> None:
    parser = Messages(1_000, 3.0)
    names = (f"name{number}: x\n".encode() for number in range(1_000))
    assert [message for line in names for message in parser.feed(line)] == []
    assert parser._fields == {}


@pytest.mark.parametrize("content", [b"data: [1]\n\n", b"data: {\n\n", b"x" * 1_001])
def test_what_is_no_message_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  of json, too
        list(Messages(1_000, 3.0).feed(content))
