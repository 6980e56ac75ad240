"""Work that a peer's bytes cause: its costs in nanoseconds of CPU time, and the meter that adds them up.

The costs are ratios to each other rather than times: another machine multiplies all of them. They were measured by
`python -m tests.performance.work` (CPython 3.11, one core of a server). A test holds each to the measured cost within a
factor of 2.
"""

from __future__ import annotations

SLICE_NS = 500_000
"""Work after which reading a connection stops, so that others have their turn; the rest follows in the next one."""
READ_NS = 3_000
"""Cost of a read, independent of its size."""
BYTES_PER_NS = 3
"""Bytes that are received and passed on in a nanosecond."""
FRAME_NS = 1_250
"""Cost of a frame's header and of skipping the frame."""
RUN_NS = 500
"""Further cost of each DATA frame that is read in a row with others."""
DELIVERY_NS = 1_900
"""Cost of DATA that is passed to its stream ..."""
PART_NS = 500
"""... and of each part of it."""
REPLY_NS = 1_000
"""Cost of a control frame that is applied or answered."""
WINDOW_NS = 90
"""Cost per open stream of SETTINGS_INITIAL_WINDOW_SIZE."""
BLOCK_NS = 800
"""Cost of a known field block."""
FIELD_NS = 160
"""Cost of each field in a decoded block."""
LITERAL_NS = 1_100
"""Further cost of a literal field."""
HUFFMAN_NS = 110
"""Further cost of a byte in Huffman's code."""
TABLE_NS = 450
"""Further cost of a field that enters the table, with those that leave it, or of a change of the table's size."""
CHECK_NS = 750
"""Cost of examining a field of a request."""
PARSE_NS = 6_000
"""Cost of parsing the fields of a request's headers."""
STREAM_NS = 2_000
"""Cost of opening a stream and of ending it."""
RESET_NS = 900
"""Cost of a stream that is reset or refused."""


class Meter:
    """Sum of the work of one connection. `ns` is set to 0 when a slice begins."""

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0
