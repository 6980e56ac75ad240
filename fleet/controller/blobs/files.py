"""File downloads over ASGI: by sendfile if the server can, otherwise in pieces, or by redirect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import BinaryIO

from fleet.controller.blobs.answer import BlobResponse, FileMetadata, answer
from fleet.controller.blobs.places import FileSource, OpenedFile
from fleet.controller.problems import ProblemError
from fleet.controller.serving.asgi import ZERO_COPY, Application, Receive, Scope, Send
from gateway.common.domain.errors import Fault, RequestError


def files(place: FileSource, piece_bytes: int, admit: Callable[[Scope], None] = lambda _: None) -> Application:
    """Return an application for GET and HEAD. `admit` raises RequestError for callers without permission.

    The application raises RequestError NOT_FOUND, UNAVAILABLE; ProblemError 405.
    """

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        admit(scope)
        method = scope["method"]
        if method not in {"GET", "HEAD"}:
            raise ProblemError(405, f"{method:.16} is not possible on files", headers=(("allow", "GET, HEAD"),))
        found = await asyncio.to_thread(_find, place, scope["path"], method)
        if found.file is None or found.content is None:
            await _send_elsewhere(scope, found, send)
            return
        with found.file as file:
            response = answer(method, _conditions(scope), found.content)
            await _start(send, response.status, response.headers)
            if response.count_bytes and ZERO_COPY in scope.get("extensions", {}):
                piece = {"file": file, "offset": response.offset_bytes, "count": response.count_bytes}
                await send({"type": ZERO_COPY, **piece})
                return
            await _send_pieces(file, response, piece_bytes, send)

    return app


def _find(place: FileSource, path: str, method: str) -> OpenedFile:
    try:
        found = place.find(path.removeprefix("/"), method)
    except OSError as error:
        problem = f"the controller's disk fails: {error.strerror or error}; try again later"
        raise RequestError(Fault.UNAVAILABLE, problem) from error
    if found is None:
        raise RequestError(Fault.NOT_FOUND, f"there is no file {path!r:.200}; see what is published")
    return found


async def _send_elsewhere(scope: Scope, found: OpenedFile, send: Send) -> None:
    """Redirect (302), or answer 304 without asking the store: the digest is the tag. The URL is for one caller."""
    known = answer(scope["method"], _conditions(scope), FileMetadata(found.etag, 0)).status == 304
    headers = [("etag", found.etag)] if known else [("location", found.url), ("content-length", "0")]
    await _start(send, 304 if known else 302, (*headers, ("cache-control", "private, no-store")))
    await send({"type": "http.response.body", "body": b""})


async def _send_pieces(file: BinaryIO, response: BlobResponse, piece_bytes: int, send: Send) -> None:
    offset, end = response.offset_bytes, response.offset_bytes + response.count_bytes
    while offset < end:
        piece = await asyncio.to_thread(os.pread, file.fileno(), min(piece_bytes, end - offset), offset)
        if not piece:
            return  # the file was truncated: the server closes the connection, so the client notices
        offset += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, status: int, headers: tuple[tuple[str, str], ...]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


def _conditions(scope: Scope) -> dict[str, str]:
    """Return the headers by name. Repeated headers are joined as in RFC 9110, 5.3."""
    joined: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1"), value.decode("latin-1")
        joined[name] = f"{joined[name]}, {text}" if name in joined else text
    return joined
