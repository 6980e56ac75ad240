"""References to releases: `oci://`, `https://` and `s3://`, with the digest that vouches for the content. Pure."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from pathlib import PurePosixPath

from gateway.common.domain.errors import ConfigurationError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""Names of repositories and tags (distribution specification 1.1, "Pulling manifests")."""
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
FORMS = "write oci://REGISTRY/REPO@sha256:…, https://HOST/FILE#sha256=… or s3://BUCKET/KEY"
PIN = "name the digest that you trust with --digest sha256:… (sha256sum FILE prints it)"


@dataclass(frozen=True, slots=True)
class OciReference:
    """Manifest in a registry. `digest` of the manifest in hex; "": `tag` alone names it."""

    registry: str
    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        tag, digest = self.tag and f":{self.tag}", self.digest and f"@sha256:{self.digest}"
        return f"oci://{self.registry}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """Name for a model without a manifest."""
        return self.repository.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class UrlReference:
    """File on a web server, with the digest of its content in hex."""

    url: str
    digest: str

    def __str__(self) -> str:
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, "", f"sha256={self.digest}"))

    @property
    def file(self) -> str:
        """Name of the file."""
        return PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path)).name

    @property
    def name(self) -> str:
        """Name for a model without a manifest."""
        return _stem(self.file)


@dataclass(frozen=True, slots=True)
class S3Reference:
    """Object in a bucket, with the digest of its content in hex."""

    bucket: str
    key: str
    digest: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def file(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.key).name

    @property
    def name(self) -> str:
        """Name for a model without a manifest."""
        return _stem(self.file)


Reference = OciReference | UrlReference | S3Reference


def read_reference(text: str, digest: str = "") -> Reference:
    """Return what `text` refers to; `digest` is that of the option. Raise ConfigurationError with the remedy."""
    scheme, _, rest = text.partition("://")
    pinned = read_digest(digest) if digest else ""
    if scheme == "oci":
        return _oci(text, rest, pinned)
    if scheme in {"https", "http"}:
        return _url(text, pinned)
    if scheme == "s3":
        return _s3(text, rest, pinned)
    raise ConfigurationError(f"{text!r:.200} is no source; {FORMS}")


def read_digest(text: str) -> str:
    """Return a digest in hex. Raise ConfigurationError."""
    found = _DIGEST.fullmatch(text)
    if not found:
        raise ConfigurationError(f"{text!r:.120} is no digest; write sha256: and 64 lower-case hex digits")
    return found[1]


def _oci(text: str, rest: str, pinned: str) -> OciReference:
    place, at, digest = rest.partition("@")
    registry, _, path = place.partition("/")
    repository, colon, tag = path.partition(":")
    if not (_HOST.fullmatch(registry) and _REPOSITORY.fullmatch(repository)) or (colon and not _TAG.fullmatch(tag)):
        raise ConfigurationError(f"{text!r:.200} names no repository; {FORMS}")
    found = _agreed(read_digest(digest) if at else "", pinned)
    if not found and not tag:
        raise ConfigurationError(f"{text!r:.200} names neither a digest nor a tag; write REPO@sha256:…")
    return OciReference(registry, repository, tag, found)


def _url(text: str, pinned: str) -> UrlReference:
    url, _, fragment = text.partition("#")
    try:
        parts = urllib.parse.urlsplit(url)
        usable = bool(_HOST.fullmatch(parts.netloc.rpartition("@")[2])) and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in url:
        raise ConfigurationError(f"{text.partition('?')[0]!r:.200} is no URL; {FORMS}")
    if "@" in parts.netloc:
        raise ConfigurationError("the URL holds a password; others see it: put it into a file (--credentials-file)")
    if fragment and not fragment.startswith("sha256="):
        raise ConfigurationError(f"#{fragment:.80} is no digest; write #sha256= and 64 lower-case hex digits")
    digest = _agreed(read_digest(f"sha256:{fragment.removeprefix('sha256=')}") if fragment else "", pinned)
    found = UrlReference(url, _needed(digest, "the URL"))
    if not found.file:
        raise ConfigurationError("the URL names no file; its path must end with the name of a model or archive")
    return found


def _s3(text: str, rest: str, pinned: str) -> S3Reference:
    bucket, _, key = rest.partition("/")
    parts = key.split("/")
    if not _BUCKET.fullmatch(bucket) or not key.isprintable() or {"", ".", ".."} & set(parts):
        raise ConfigurationError(f"{text!r:.200} names no object; {FORMS}")
    return S3Reference(bucket, key, _needed(pinned, "the object"))


def _agreed(own: str, pinned: str) -> str:
    if own and pinned and own != pinned:
        raise ConfigurationError("the reference and --digest name different digests; give one of them")
    return own or pinned


def _needed(digest: str, what: str) -> str:
    if not digest:
        raise ConfigurationError(f"{what} is not pinned: its owner could replace the content; {PIN}")
    return digest


def archive_suffix(file: str) -> str:
    """Return the suffix of an archive that can be unpacked, or ""."""
    return next((suffix for suffix in _ARCHIVES if file.lower().endswith(suffix)), "")


def _stem(file: str) -> str:
    suffix = archive_suffix(file) or PurePosixPath(file).suffix
    return file[: len(file) - len(suffix)]
