"""Registry of the OCI distribution specification 1.1: manifests, blobs and token authentication."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway.common.transfer.answers import without_secrets
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError, Receiver
from gateway.common.transfer.web import WebSource
from gateway.workshop.pull.access import origin, rules, split_url
from gateway.workshop.pull.credentials import PullLogin
from gateway.workshop.pull.manifest import ACCEPT, ReleasePart, read_parts
from gateway.workshop.pull.reference import OciReference
from gateway.workshop.pull.settings import PullSettings

_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$)")
CHALLENGE_LIMIT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Challenge:
    """Authentication that a server wants. `scheme` in lower case; `realm`: URL of the token service for `bearer`."""

    scheme: str
    realm: str = ""
    service: str = ""


def read_challenge(text: str) -> Challenge | None:
    """Return the first challenge of a header, or None."""
    found = _SCHEME.match(text[:CHALLENGE_LIMIT_CHARS])
    if not found:
        return None
    at, values = found.end(), dict[str, str]()
    while parameter := _PARAMETER.match(text[:CHALLENGE_LIMIT_CHARS], at):
        name, quoted, plain = parameter.groups()
        values.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain)
        at = parameter.end()
    return Challenge(found[1].lower(), values.get("realm", ""), values.get("service", ""))


Result = TypeVar("Result")


class RegistrySource:
    """Release of `reference` in the registry at `base_url`. The tag, if any, is resolved once, by `resolve`."""

    def __init__(
        self,
        base_url: str,
        reference: OciReference,
        login: PullLogin | None,
        connections: ConnectionPool,
        settings: PullSettings,
    ) -> None:
        self._base, self._reference, self._login = base_url, reference, login
        self._connections, self._settings = connections, settings
        self._authorization = login.authorization if login and login.token else ""
        self._web = WebSource(base_url, connections=connections, rules=rules(self._headers))
        self._manifest: bytes | None = None

    def resolve(self) -> str:
        """Return the digest of the manifest that the reference names, computed here. Raise FetchError."""
        if self._manifest is None:
            named = f"sha256:{self._reference.digest}" if self._reference.digest else self._reference.tag
            path = f"v2/{self._reference.repository}/manifests/{named}"
            limit_bytes = self._settings.manifest_limit_bytes
            self._manifest = self._authenticated(lambda: self._web.read(path, limit_bytes).content or b"")
        found = hashlib.sha256(self._manifest).hexdigest()
        if self._reference.digest not in {"", found}:
            problem = "is not what was pinned: the manifest that came has another digest; nothing of it is used"
            raise FetchError(f"{self._reference} {problem}", final=True)
        return found

    def parts(self) -> tuple[ReleasePart, ...]:
        """Return the layers of the manifest."""
        digest = self.resolve()
        named = f"{self._reference.registry}/{self._reference.repository}@sha256:{digest}"
        return read_parts(self._manifest or b"", named, self._settings)

    def etag(self, _part: ReleasePart) -> str:
        """Return "": a blob is named by its digest."""
        return ""

    def copy(self, part: ReleasePart, receiver: Receiver) -> None:
        """Append the missing bytes of a blob. A token that expires in the middle is renewed."""
        path = f"v2/{self._reference.repository}/blobs/sha256:{part.digest}"
        self._authenticated(lambda: self._web.copy(path, receiver, part.size_bytes))

    def _headers(self, url: str) -> Mapping[str, str]:
        """Return the headers for a URL: credentials for the registry, none for where it redirects to."""
        headers = {"Accept": ACCEPT} if "/manifests/" in url else {}
        if self._authorization and origin(url) == origin(self._base):
            headers["Authorization"] = self._authorization
        return headers

    def _authenticated(self, request: Callable[[], Result]) -> Result:
        """Return the result of a request; if the registry wants authentication, authenticate and repeat it once."""
        try:
            return request()
        except FetchError as error:
            challenge = read_challenge(error.challenge) if error.status == 401 else None
            authorization = self._answer(challenge) if challenge else ""
            if not authorization or authorization == self._authorization:
                raise
            self._authorization = authorization
        return request()

    def _answer(self, challenge: Challenge) -> str:
        """Return the header that answers a challenge; "" if there is none."""
        if challenge.scheme == "bearer" and not (self._login and self._login.token):
            return f"Bearer {self._token(challenge)}"
        return self._login.authorization if challenge.scheme == "basic" and self._login else ""

    def _token(self, challenge: Challenge) -> str:
        """Return a token of the service that the registry names. It gets the login, if there is one."""
        root, rest = split_url(challenge.realm)
        if self._login and origin(root)[0] != "https" and origin(root) != origin(self._base):
            problem = "gets no credentials: a token service needs https, or the registry's own scheme, host and port"
            raise FetchError(f"{without_secrets(root)} {problem}; correct the registry's realm", final=True)
        path, _, own = rest.partition("?")
        sent = {"Authorization": self._login.authorization} if self._login else {}
        service = WebSource(
            root,
            connections=self._connections,
            rules=rules(lambda url: sent if origin(url) == origin(root) else {}),
        )
        query = dict(urllib.parse.parse_qsl(own)) | {"scope": f"repository:{self._reference.repository}:pull"}
        query |= {"service": challenge.service} if challenge.service else {}
        content = service.read(path, self._settings.token_limit_bytes, query=query).content
        return _read_token(content or b"", service.name)


def _read_token(content: bytes, named: str) -> str:
    """Return the token of an answer (distribution, "Token Authentication Specification"). Raise FetchError."""
    try:
        document = json.loads(content)
        token = document.get("token") or document.get("access_token")
    except (ValueError, AttributeError, RecursionError):
        token = None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise FetchError(f"{named} sent no token; check the registry's configuration", final=True)
    return token
