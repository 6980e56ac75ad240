"""Server on a UNIX socket with the same response to every request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer


@contextmanager
def scripted(path: Path, status: int, content: bytes) -> Iterator[Path]:
    """Serve on `path` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.wfile.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815  http.server's names

    with ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()
