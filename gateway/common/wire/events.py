"""Server-Sent Events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""They keep proxies from caching the stream or buffering it (nginx)."""


def event(data: bytes, *, name: str = "", ident: str = "") -> bytes:
    """Return one message. `data` has no line break of its own, as JSON."""
    head = (f"event: {name}\n" if name else "") + (f"id: {ident}\n" if ident else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)
