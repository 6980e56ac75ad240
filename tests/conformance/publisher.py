"""A TUF repository of a few kilobytes, well or ill at will, on a web server that remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    SuccinctRoles,
    TargetFile,
    Targets,
    Timestamp,
)

TOP = (Root.type, Timestamp.type, Snapshot.type, Targets.type)
LATER = timedelta(days=30)


@cache
def key(number: int) -> CryptoSigner:
    """Return the same key for the same number, all through a session."""
    return CryptoSigner.generate_ed25519()


class Publisher:
    """Publisher of a repository: `publish` signs a role of `md` in a new version and puts it among the public `files`.

    `signers` are the keys that sign a role next, whichever its delegator names. `stated`: whether snapshot and
    timestamp state lengths and hashes of what they list.
    """

    def __init__(self, *, consistent: bool = True) -> None:
        self.files: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.requests: list[str] = []
        self.signers: dict[str, list[CryptoSigner]] = {}
        self.stated = False
        self.now = datetime.now(UTC).replace(microsecond=0)
        kinds = (Root(expires=self.now + LATER, consistent_snapshot=consistent),)
        others = (kind(expires=self.now + LATER) for kind in (Timestamp, Snapshot, Targets))
        self.md: dict[str, Any] = {signed.type: Metadata(signed) for signed in (*kinds, *others)}
        self._published: set[str] = set()
        for number, role in enumerate(TOP):
            self.set_keys(role, [100 + number])
        self.publish(Root.type, Targets.type, Snapshot.type, Timestamp.type)

    @property
    def root(self) -> Root:
        return self.md[Root.type].signed

    @property
    def timestamp(self) -> Timestamp:
        return self.md[Timestamp.type].signed

    @property
    def snapshot(self) -> Snapshot:
        return self.md[Snapshot.type].signed

    @property
    def targets(self) -> Targets:
        return self.md[Targets.type].signed

    def set_keys(self, role: str, keys: list[int], *, threshold: int = 1, signed_by: list[int] | None = None) -> None:
        """Name `keys` for a top-level role; `signed_by` sign it from now on (the same where not said)."""
        for keyid in list(self.root.roles[role].keyids):
            self.root.revoke_key(keyid, role)
        for number in keys:
            self.root.add_key(key(number).public_key, role)
        self.root.roles[role].threshold = threshold
        self.signers[role] = [key(number) for number in (keys if signed_by is None else signed_by)]

    def publish(self, *roles: str, bump: bool = True) -> None:
        """Sign and make public, in that order; who lists a role is told of it, but not published."""
        for role in roles:
            metadata = self.md[role]
            if role in self._published and bump:
                metadata.signed.version += 1
            self._published.add(role)
            self._sign(role)
            self.files[self.place(role)] = metadata.to_bytes()
            self._list(role)

    def refresh(self) -> None:
        """Publish new versions of all but root."""
        self.publish(*(role for role in self.md if role not in TOP), Targets.type, Snapshot.type, Timestamp.type)

    def place(self, role: str) -> str:
        """Return where the present version of a role is public."""
        versioned = role == Root.type or (role != Timestamp.type and self.root.consistent_snapshot)
        return f"metadata/{f'{self.md[role].signed.version}.' if versioned else ''}{quote(role, '')}.json"

    def delegate(self, role: DelegatedRole, by: str = Targets.type, *, expires: datetime | None = None) -> Targets:
        """Add a delegation and, where it is new, the role that it names; neither is published yet."""
        delegator: Targets = self.md[by].signed
        delegator.delegations = delegator.delegations or Delegations({}, {})
        assert delegator.delegations.roles is not None
        delegator.delegations.roles[role.name] = role
        number = 200 + sum(role.name.encode())
        delegator.add_key(key(number).public_key, role.name)
        self.signers[role.name] = [key(number)]
        return self.md.setdefault(role.name, Metadata(Targets(expires=expires or self.now + LATER))).signed

    def delegate_bins(self, bits: int, prefix: str) -> None:
        """Add succinct delegations: 2^bits roles, published with the next refresh."""
        bins = SuccinctRoles([], 1, bits, prefix)
        self.targets.delegations = Delegations({}, None, bins)
        self.targets.add_key(key(300).public_key)
        for name in bins.get_roles():
            self.md[name] = Metadata(Targets(expires=self.now + LATER))
            self.signers[name] = [key(300)]

    def add(self, path: str, content: bytes, role: str = Targets.type) -> None:
        """Add a target of `role`: its file is public, its metadata not yet."""
        target = TargetFile.from_data(path, content, ["sha256"])
        self.md[role].signed.targets[path] = target
        self.files[self.target_place(path, target)] = content

    def target_place(self, path: str, target: TargetFile) -> str:
        folder, slash, name = path.rpartition("/")
        prefix = f"{target.hashes['sha256']}." if self.root.consistent_snapshot else ""
        return f"targets/{folder}{slash}{prefix}{name}"

    def asked_metadata(self) -> list[str]:
        """Return the metadata files asked for so far, without folder and ending."""
        return [
            path.removeprefix("metadata/").removesuffix(".json")
            for path in self.requests
            if path.startswith("metadata/")
        ]

    def _sign(self, role: str) -> None:
        metadata = self.md[role]
        metadata.signatures.clear()
        for signer in self.signers[role]:
            metadata.sign(signer, append=True)

    def _list(self, role: str) -> None:
        if role in {Root.type, Timestamp.type}:
            return
        version, content = self.md[role].signed.version, self.files[self.place(role)]
        listed = MetaFile.from_data(version, content, ["sha256"]) if self.stated else MetaFile(version)
        if role == Snapshot.type:
            self.timestamp.snapshot_meta = listed
        else:
            self.snapshot.meta[f"{role}.json"] = listed

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the repository on a free port of this machine; yield the URL, ending in a slash."""
        publisher = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with suppress(ConnectionError):  # the client has seen enough
                    super().handle()

            def do_GET(self) -> None:
                path = self.path.removeprefix("/")
                publisher.requests.append(path)
                content = publisher.files.get(path, publisher.files.get(unquote(path)))
                status = publisher.statuses.get(path, 200 if content is not None else 404)
                body = content if status == 200 and content is not None else b"no"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: it would not be read."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/"
            finally:
                server.shutdown()
                thread.join()
