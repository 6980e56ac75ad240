"""TLS in front of an S3, as devices reach it, that can be lost: refused, silent, or cut in the middle of an answer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.simulators.authority import Authority

PIECE_BYTES = 1024
LOSSES = ("refused", "silent", "cut")


class LostS3:
    """The way to the S3. `loss`: one of LOSSES, or "" while it is there; `lost`: how many connections were."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        authority = Authority()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = authority.write(folder)
        self._context.load_cert_chain(files / "cert.pem", files / "key.pem")
        self.ca_pem, self.url, self.loss, self.lost = authority.pem, "", "", 0
        self._server, self._over = urlsplit(endpoint).netloc.split(":"), asyncio.Event()

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `end`."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await self._over.wait()

    def end(self) -> None:
        """End `serve`, in its thread."""
        self._over.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lost += bool(self.loss)
        if self.loss == "silent":
            await self._over.wait()
        if self.loss in {"", "cut"}:
            with suppress(OSError):
                there, back = await asyncio.open_connection(*self._server)
                await asyncio.wait(
                    [asyncio.ensure_future(_copied(reader, back, None)),
                     asyncio.ensure_future(_copied(there, writer, 2 if self.loss else None))],
                    return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                back.transport.abort()
        writer.transport.abort()


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter, pieces: int | None) -> None:
    """Copy until the end, or that many pieces."""
    while pieces != 0 and (piece := await source.read(PIECE_BYTES)):
        target.write(piece)
        await target.drain()
        pieces = pieces and pieces - 1


@contextmanager
def lost_s3(endpoint: str, folder: Path) -> Iterator[LostS3]:
    """Run it in front of the S3 at `endpoint`."""
    way, ready = LostS3(endpoint, folder), threading.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(way.serve(ready),))
    thread.start()
    try:
        assert ready.wait(20)
        yield way
    finally:
        loop.call_soon_threadsafe(way.end)
        thread.join()
        loop.close()
