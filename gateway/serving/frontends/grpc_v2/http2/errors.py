"""Error codes of HTTP/2 (RFC 9113, section 7), and the two scopes of a peer's error: a stream or the connection."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Reason for resetting a stream or closing a connection."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ProtocolError(Exception):
    """A broken rule that concerns the whole connection; the peer gets GOAWAY and the connection is closed."""

    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem


class StreamError(Exception):
    """A broken rule of one stream, which is reset; the other streams continue."""

    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem
