"""Parser of requests: h11's, with the strict choice for all of RFC 9112's options, and with exact limits."""

from __future__ import annotations

import h11

MOST_FIELDS = 100
"""Most fields of one request's head; browsers send about 20."""
MOST_PIECES = 256
"""Most chunks of a body that may be of any size, not counting the first of each read ..."""
PIECE_BYTES = 64
"""... and their least size on average above that: a chunk of one byte takes as long as one of many."""

EVENTS_AT_ONCE = 32
"""Events returned between two calls of `begin_slice`: heads, pieces and ends of bodies, 15 µs each."""

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Parser(h11.Connection):
    """Server's side of a connection.

    `max_header_bytes` bounds the request line and the fields together. It also bounds the framing of a body in addition
    to the body's own size: chunk sizes, chunk extensions, trailers. `piece_bytes` is the size of the last piece of a
    body in the last bytes received.
    """

    def __init__(self, max_header_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_header_bytes)
        self._max_header_bytes = max_header_bytes
        self._received = self._pieces = self._body_bytes = self.piece_bytes = 0
        self._first = True
        self.behind = False
        """Flag: events may be left that belong to the next slice."""
        self.paused = False
        """Flag: the next request waits for the answer to this one."""
        self.began = False
        """Flag: a request has begun in this slice; the next request has another slice."""
        self._left = 0
        self.problem = ""
        """Text of the problem, once `next_event` has raised."""

    def receive_data(self, data: bytes) -> None:
        """Add bytes from the peer."""
        self._received += len(data)
        self._first, self.piece_bytes = True, 0
        super().receive_data(data)

    def begin_slice(self) -> None:
        """Return events again."""
        self.behind, self._left, self.began = False, EVENTS_AT_ONCE, False

    def next_event(self) -> Event:
        """Return the next event, PAUSED at the end of a slice.

        Raises RemoteProtocolError, after which the connection must be closed.
        """
        if not self._left or (self.began and self.their_state is h11.IDLE and self.trailing_data[0]):
            self.behind = True
            return h11.PAUSED
        self._left -= 1
        try:
            if self.their_state is h11.IDLE:
                self._check_lines(self.trailing_data[0])
            event = super().next_event()
            self.paused = event is h11.PAUSED
            if isinstance(event, h11.Request):
                self.began = True
                return self._begin(event)
            if isinstance(event, h11.Data):
                self._check_pieces(len(event.data))
            elif event is h11.NEED_DATA and self.their_state is h11.SEND_BODY:
                self._check_framing()
        except h11.RemoteProtocolError as error:
            self.problem = str(error)
            raise
        return event

    def _check_lines(self, head: bytes) -> None:
        """Check a head that may be incomplete: its size and its lines.

        They must end with CRLF (RFC 9112, section 2.2) and not be folded (section 5.2).
        """
        end = head.find(b"\r\n\r\n")
        size = len(head) if end < 0 else end + 4
        if size > self._max_header_bytes:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        if head.count(b"\n", 0, size) != head.count(b"\r\n", 0, size):
            raise h11.RemoteProtocolError("a line ends with LF alone")
        if head.find(b"\n ", 0, size) >= 0 or head.find(b"\n\t", 0, size) >= 0:
            raise h11.RemoteProtocolError("a field is folded")

    def _begin(self, request: h11.Request) -> h11.Request:
        names = [name for name, _ in request.headers]
        if len(names) > MOST_FIELDS:
            raise h11.RemoteProtocolError("too many fields", error_status_hint=431)
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
            raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or not in HTTP/1.1")
        self._received = len(self.trailing_data[0])
        self._pieces = self._body_bytes = 0
        return _in_origin_form(request)

    def _check_pieces(self, size: int) -> None:
        self._pieces += not self._first  # the read pays for its first piece
        self._first, self.piece_bytes = False, size
        self._body_bytes += size
        if self._pieces > MOST_PIECES + self._body_bytes // PIECE_BYTES:
            raise h11.RemoteProtocolError("the body comes in too many small pieces")

    def _check_framing(self) -> None:
        """Check the received part of a body, of which all but an incomplete line was read."""
        if self._received - self._body_bytes > self._max_header_bytes + self._body_bytes:
            raise h11.RemoteProtocolError("chunks are framed by more than they hold")


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return the request with a path as its target, also if it was sent in the form for a proxy.

    The authority in that form's target replaces Host (RFC 9112, section 3.2.2).
    """
    scheme, separator, rest = request.target.partition(b"://")
    if scheme.lower() not in (b"http", b"https") or not separator:
        return request
    authority, slash, path = rest.partition(b"/")
    headers = [(name, authority if name == b"host" else value) for name, value in request.headers]
    return h11.Request(
        method=request.method, target=slash + path or b"/", headers=headers, http_version=request.http_version
    )
