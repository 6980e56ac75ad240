"""Blobs in S3 or what speaks like it: devices fetch by pre-signed URL, so that their bytes never pass here."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from fleet.blobs.settings import S3Settings
from fleet.blobs.store import absent, checked_digest, pieces
from gateway.domain.errors import ConfigurationError, Fault, RequestError

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import S3Store

READ_BYTES = 1_048_576
_ADDRESS = re.compile(r" https?://\S+")


class S3Blobs:
    """One bucket. Objects appear whole: what is not what it was announced to be is never finished."""

    def __init__(self, settings: S3Settings) -> None:
        """Asks nobody yet. Raises ConfigurationError."""
        self._settings = settings
        self._store = _store(settings, settings.endpoint)
        self._public = _store(settings, settings.public_endpoint) if settings.public_endpoint else self._store

    def put(self, digest: str, stream: BinaryIO, size_bytes: int) -> None:
        """In parts, a few of which are in memory. Where only the store's answer was lost, it is there."""
        import obstore

        if self.stat(digest) == size_bytes:
            return
        content = _Watched(pieces(stream, digest, size_bytes, self._settings.part_bytes))
        try:
            with self._told(digest, content):
                obstore.put(
                    self._store,
                    self._path(digest),
                    content,
                    use_multipart=size_bytes > self._settings.part_bytes,
                    chunk_size=self._settings.part_bytes,
                    max_concurrency=self._settings.parts_at_once,
                )
        except RequestError:
            if content.error or self.stat(digest) != size_bytes:
                raise

    def stat(self, digest: str) -> int | None:
        """As the store says."""
        import obstore

        try:
            with self._told(digest):
                return int(obstore.head(self._store, self._path(digest))["size"])
        except RequestError as error:
            if error.fault is Fault.NOT_FOUND:
                return None
            raise

    def open(self, digest: str) -> BinaryIO:
        """Read by ranges, as they are asked for."""
        import obstore

        with self._told(digest):
            file = obstore.open_reader(self._store, self._path(digest), buffer_size=READ_BYTES)
        return cast("BinaryIO", io.BufferedReader(_Reading(self, digest, file), READ_BYTES))

    def url(self, digest: str, method: str) -> str:
        """Signed here, without asking the store: whether it is there, the store tells who follows."""
        import obstore

        valid = timedelta(seconds=self._settings.url_validity_s)
        verb = cast("Literal['GET', 'HEAD']", method)
        with self._told(digest):
            return str(obstore.sign(self._public, verb, self._path(digest), valid))

    def _path(self, digest: str) -> str:
        return f"{self._settings.prefix.strip('/')}/{checked_digest(digest)}".lstrip("/")

    @contextmanager
    def _told(self, digest: str, content: _Watched | None = None) -> Iterator[None]:
        """obstore's errors as what a caller can do about them; the one that stopped `content` goes before."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            if content and content.error:
                raise content.error from None
            if content is None and _is_absence(error):
                raise absent(digest) from error
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> RequestError:
        from obstore import exceptions

        where = f"the bucket {self._settings.bucket}" + (
            f" at {self._settings.endpoint}" * bool(self._settings.endpoint)
        )
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError):
            problem = f"{where} refuses this controller's credentials; see AWS_ACCESS_KEY_ID, or the machine's role"
        else:
            remedy = (
                "see its state, [blobs.s3], and whose credentials are used: AWS_ACCESS_KEY_ID, or the machine's role"
            )
            problem = f"{where} does not answer as it should; {remedy}"
        wait_s = self._settings.retry_after_s
        return RequestError(Fault.UNAVAILABLE, f"{problem} ({_short(error)})", retry_after_s=wait_s)


class _Watched:
    """An iterator that remembers why it stopped: what passes through obstore comes back as an error of its own."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content = content
        self.error: RequestError | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._content
        except RequestError as error:
            self.error = error
            raise


class _Reading(io.RawIOBase):
    """obstore's reader as Python's files are."""

    def __init__(self, blobs: S3Blobs, digest: str, file: ReadableFile) -> None:
        self._blobs, self._digest, self._file = blobs, digest, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with self._blobs._told(self._digest):
            piece = self._file.read(len(buffer))
        buffer[: len(piece)] = memoryview(piece)
        return len(piece)


def _store(settings: S3Settings, endpoint: str) -> S3Store:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    if not settings.bucket:
        raise ConfigurationError("name the bucket, or leave [blobs.s3] out", table="blobs.s3", key="bucket")
    more: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        return S3Store(
            settings.bucket,
            region=settings.region,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
                "timeout": timedelta(seconds=settings.request_timeout_s),
            },
            retry_config={
                "max_retries": settings.retries,
                "retry_timeout": timedelta(seconds=settings.retry_timeout_s),
            },
            **more,
        )
    except (BaseError, ValueError) as error:
        raise ConfigurationError(f"the store cannot be used ({_short(error)})", table="blobs.s3") from None


def _is_absence(error: Exception) -> bool:
    """Of what was asked for, not of the bucket."""
    from obstore import exceptions

    return isinstance(error, exceptions.NotFoundError | FileNotFoundError) and "NoSuchBucket" not in str(error)


def _short(error: Exception) -> str:
    """Its first line: obstore appends Rust's own account. Signatures travel in queries, and in what a store says of
    them: neither is told."""
    text = _ADDRESS.sub("", str(error).partition("\n")[0]).partition(": <")[0]
    return f"{type(error).__name__}: {text:.300}"
