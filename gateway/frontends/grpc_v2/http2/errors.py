"""Error codes of HTTP/2 (RFC 9113, section 7), and what a peer's mistake costs it: a stream or the connection."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Why a stream is reset or a connection closed."""

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
    """The peer broke a rule that the whole connection stands on; it is told by GOAWAY and closed."""

    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem


class StreamError(Exception):
    """The peer broke a rule of one stream, which is reset; the others go on."""

    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem
