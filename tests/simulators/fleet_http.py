"""The controller's HTTP server with a small application, its CA, and clients with certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fleet.controller.authority.ca import Authority, new_authority
from fleet.controller.authority.certificate import DeviceCertificate
from fleet.controller.serving.asgi import Application, Receive, Scope, Send, peer_of
from fleet.controller.serving.identity import Recognition
from fleet.controller.serving.server import Bound, Server, stacked
from fleet.controller.serving.settings import ServingSettings
from fleet.controller.serving.tls import server_context
from gateway.common.domain.access import Address
from gateway.common.domain.errors import Fault, RequestError

LOOPBACK = Address("127.0.0.1", 0)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


AUTHORITY = new_authority(now() - timedelta(days=30))


@dataclass(frozen=True)
class Device:
    """A key and its certificate."""

    certificate: DeviceCertificate
    key_pem: bytes

    def write(self, folder: Path) -> Path:
        """Write certificate and key to one file, in the form for curl and the agent."""
        file = folder / f"{self.certificate.device}.pem"
        file.write_bytes(self.certificate.pem + self.key_pem)
        return file


def device(name: str, authority: Authority = AUTHORITY, validity_d: float | None = None, when: datetime | None = None):
    """Return an enrolled device."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    signed = authority.sign_csr(request.public_bytes(Encoding.PEM), name, when or now(), validity_d)
    return Device(signed, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Return the peer and the request. /denied refuses, /broken fails, /large sends 64 MiB, /slow waits.

    ?status=404: nothing is there.
    """
    if scope["path"] == "/denied":
        raise RequestError(Fault.UNAUTHENTICATED, "a token is required")
    if scope["query_string"] == b"status=404":
        raise RequestError(Fault.NOT_FOUND, "there is no such file")
    if scope["path"] == "/broken":
        raise ZeroDivisionError("a defect")
    if scope["path"] == "/large":
        await large(send)
        return
    if scope["path"] == "/slow":
        await scope["state"]["proceed"].wait() if "proceed" in scope["state"] else await asyncio.Event().wait()
    size, more = 0, True
    while more and scope["path"] != "/unread":
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    peer = peer_of(scope)
    shown = {"device": peer.device, "address": peer.address, "proxied": peer.proxied, "size": size}
    shown["serial"] = peer.certificate.serial if peer.certificate else ""
    body = json.dumps(shown | {"headers": [name.decode() for name, _ in scope["headers"]]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def large(send: Send) -> None:
    """Send more than socket buffers hold."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(64):
        await send({"type": "http.response.body", "body": bytes(1_048_576), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@dataclass
class Controller:
    """A running server; `tls`: it has a certificate."""

    server: Server
    addresses: tuple[Address, ...]
    folder: Path
    tls: bool
    counts: Counter[str]
    revoked: set[str] = field(default_factory=set)

    @property
    def port(self) -> int:
        return self.addresses[0].port

    @property
    def url(self) -> str:
        """The URL with a trailing slash."""
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}/"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def client(self, shown: Device | None = None) -> httpx.AsyncClient:
        """Return a client that presents a certificate."""
        verify: ssl.SSLContext | bool = False
        if self.tls:
            verify = ssl.create_default_context(cafile=str(self.ca_file))
            if shown:
                verify.load_cert_chain(shown.write(self.folder))
        return httpx.AsyncClient(base_url=self.url, verify=verify, trust_env=False, timeout=30)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection to the first address."""
        return await asyncio.open_connection(self.addresses[0].host, self.port)

    async def run(self, program: str, *words: str, stdin: bytes = b"") -> tuple[int, str]:
        """Run a program; return exit code and output."""
        found = shutil.which(program)
        assert found, f"{program} is one of the packages that make test installs"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            found, *words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, cwd=self.folder
        )
        out, _ = await process.communicate(stdin)
        return process.returncode or 0, out.decode(errors="replace")


@asynccontextmanager
async def controlling(
    folder: Path,
    app: Application = echo,
    *,
    tls: bool = False,
    settings: ServingSettings | None = None,
    addresses: tuple[Address, ...] = (LOOPBACK,),
    bound: Bound | None = None,
    clock: Callable[[], datetime] = now,
    wrap: Callable[[Application], Application] = lambda app: app,
) -> AsyncIterator[Controller]:
    """Run a server on free loopback ports."""
    settings, counts, revoked = settings or ServingSettings(), Counter[str](), set[str]()
    recognition = Recognition(AUTHORITY.trusted, lambda: revoked, clock)
    context = server_context(*AUTHORITY.issue_server(["localhost", "127.0.0.1"], now()), AUTHORITY.pem) if tls else None
    (folder / "ca.pem").write_bytes(AUTHORITY.pem)
    server = Server(wrap(stacked(app, recognition, settings, counts, bound)), settings, counts, context)
    bound_to = await server.start(addresses)
    try:
        yield Controller(server, bound_to, folder, tls, counts, revoked)
    finally:
        await server.stop(0)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a raw connection and ignore errors."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
