"""Debian's docker-registry as a process, with a token service of our own where a test wants authentication.

The registry verifies every token: its signature, audience, expiry and access.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509 import load_pem_x509_certificate

from tests.simulators.authority import Authority

PROGRAM = "docker-registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TITLE = "org.opencontainers.image.title"
USER, PASSWORD = "camera-7", "not-a-secret"
SERVICE, ISSUER = "models", "tests"
WAIT_S = 20.0
Layer = dict[str, Any]


def sha256(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Registry:
    """Running registry at `host`; `url` is its base URL. `ca`: its authority, if it has TLS."""

    host: str
    url: str
    ca: str | None = None

    def blob(self, repository: str, content: bytes) -> str:
        """Upload a blob; return its digest."""
        begun = self._ask("POST", f"{self.url}v2/{repository}/blobs/uploads/", 202)
        where = begun.headers["Location"]
        where = urllib.parse.urljoin(self.url, where) + ("&" if "?" in where else "?")
        self._ask("PUT", f"{where}digest={sha256(content)}", 201, content)
        return sha256(content)

    def layer(self, repository: str, content: bytes, title: str = "", kind: str = "application/octet-stream") -> Layer:
        """Upload a blob; return its descriptor."""
        digest = self.blob(repository, content)
        notes = {"annotations": {TITLE: title}} if title else {}
        return {"mediaType": kind, "digest": digest, "size": len(content), **notes}

    def push(self, repository: str, tag: str, *layers: Layer) -> str:
        """Upload a manifest with these layers, and give it a tag; return its digest."""
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": self.blob(repository, b"{}"), "size": 2}
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)}
        content = json.dumps(document).encode()
        self._ask("PUT", f"{self.url}v2/{repository}/manifests/{tag}", 201, content, MANIFEST)
        return sha256(content)

    def _ask(self, method: str, url: str, status: int, body: bytes = b"", kind: str = "application/octet-stream"):
        pool = urllib3.PoolManager(ca_certs=self.ca)
        answer = pool.request(method, url, body=body, headers={"Content-Type": kind}, retries=False)
        pool.clear()
        assert answer.status == status, (answer.status, answer.data)
        return answer


@dataclass
class TokenService:
    """Token service of a registry (distribution, "Token Authentication Specification"). `asked`: its requests."""

    folder: Path
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    lifetime_s: int = 300

    def __post_init__(self) -> None:
        authority = Authority()
        certificate, key = authority.issue("tokens")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "roots.pem").write_bytes(authority.pem)
        der = load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
        self._chain = [base64.b64encode(der).decode()]
        loaded = serialization.load_pem_private_key(key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded

    def token(self, scope: str) -> str:
        """Return a signed token for a scope such as `repository:NAME:pull`."""
        kind, name, actions = scope.split(":")
        now = int(time.time())
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        times = {"nbf": now - 60, "iat": now - 60, "exp": now + self.lifetime_s}
        claims = {"iss": ISSUER, "aud": SERVICE, "sub": USER, "jti": secrets.token_hex(8), "access": access, **times}
        header = {"typ": "JWT", "alg": "ES256", "x5c": self._chain}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        first, second = decode_dss_signature(self._key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_encoded(first.to_bytes(32, 'big') + second.to_bytes(32, 'big'))}"

    @contextlib.contextmanager
    def running(self, tls: Path) -> Iterator[TokenService]:
        """Answer by TLS on a free loopback port until the block ends; only to the right name and password."""
        service = self
        wanted = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                service.asked.append((self.path, given))
                query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                known = given == wanted and query.get("service") == [SERVICE]
                body = json.dumps({"token": service.token(query["scope"][0])} if known else {}).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
            self.url = f"https://localhost:{listening.server_address[1]}/token"
            thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield self
            finally:
                listening.shutdown()
                thread.join()


@contextlib.contextmanager
def registry(folder: Path, *, tls: Path | None = None, tokens: TokenService | None = None) -> Iterator[Registry]:
    """Run a registry on a free loopback port, with its content in `folder`. `tls`: folder of `Authority.write`."""
    folder.mkdir(exist_ok=True)
    port = _free_port()
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "content")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": secrets.token_hex(8)},
    }
    if tls:
        config["http"]["tls"] = {"certificate": str(tls / "cert.pem"), "key": str(tls / "key.pem")}
    if tokens:
        settings = {"realm": tokens.url, "service": SERVICE, "issuer": ISSUER}
        config["auth"] = {"token": {**settings, "rootcertbundle": str(tokens.folder / "roots.pem")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    program = shutil.which(PROGRAM)
    assert program, "docker-registry is not installed; run `make debian-test`"
    with subprocess.Popen([program, "serve", str(folder / "config.yml")], stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port)
            host = f"localhost:{port}"
            yield Registry(host, f"{'https' if tls else 'http'}://{host}/", str(tls / "ca.pem") if tls else None)
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(port: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError("the registry did not start")


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
