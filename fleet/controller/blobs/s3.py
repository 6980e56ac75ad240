"""Blobs in S3 or a compatible store. Devices download by pre-signed URL, not through this controller."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from fleet.controller.blobs.settings import S3Settings
from fleet.controller.blobs.store import absent, checked_digest, pieces
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import S3Store

READ_BYTES = 1_048_576
_ADDRESS = re.compile(r" https?://\S+")


class S3Blobs:
    """Blobs in one bucket. Objects appear whole: an upload with wrong content is never completed."""

    def __init__(self, settings: S3Settings) -> None:
        """Create the clients without a request. Raise ConfigurationError."""
        self._settings = settings
        self._store = _store(settings, settings.endpoint)
        self._public = _store(settings, settings.public_endpoint) if settings.public_endpoint else self._store

    def put(self, digest: str, stream: BinaryIO, size_bytes: int) -> None:
        """Upload in parts; only a few are in memory. If only the final response was lost, the upload counts as done."""
        import obstore

        if self.stat(digest) == size_bytes:
            return
        content = _ErrorKeepingIterator(pieces(stream, digest, size_bytes, self._settings.part_bytes))
        try:
            with self._request_errors(digest, content):
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
        """Return the size that the store reports."""
        import obstore

        try:
            with self._request_errors(digest):
                return int(obstore.head(self._store, self._path(digest))["size"])
        except RequestError as error:
            if error.fault is Fault.NOT_FOUND:
                return None
            raise

    def open(self, digest: str) -> BinaryIO:
        """Return a reader that requests ranges on demand."""
        import obstore

        with self._request_errors(digest):
            file = obstore.open_reader(self._store, self._path(digest), buffer_size=READ_BYTES)
        return cast("BinaryIO", io.BufferedReader(_Reading(self, digest, file), READ_BYTES))

    def url(self, digest: str, method: str) -> str:
        """Return a pre-signed URL without asking the store. If the object is missing, the download fails there."""
        import obstore

        valid = timedelta(seconds=self._settings.url_validity_s)
        verb = cast("Literal['GET', 'HEAD']", method)
        with self._request_errors(digest):
            return str(obstore.sign(self._public, verb, self._path(digest), valid))

    def _path(self, digest: str) -> str:
        return f"{self._settings.prefix.strip('/')}/{checked_digest(digest)}".lstrip("/")

    @contextmanager
    def _request_errors(self, digest: str, content: _ErrorKeepingIterator | None = None) -> Iterator[None]:
        """Translate obstore's errors into RequestError. An error of `content` has precedence."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            if content and content.error:
                raise content.error from None
            is_missing = isinstance(error, exceptions.NotFoundError | FileNotFoundError)
            if content is None and is_missing and "NoSuchBucket" not in str(error):
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


class _ErrorKeepingIterator:
    """Iterator that keeps the error that stopped it: obstore replaces it by an error of its own."""

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
    """Adapter from obstore's reader to `io.RawIOBase`."""

    def __init__(self, blobs: S3Blobs, digest: str, file: ReadableFile) -> None:
        self._blobs, self._digest, self._file = blobs, digest, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with self._blobs._request_errors(self._digest):
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


def _short(error: Exception) -> str:
    """Return the first line of an error, without addresses: signatures are in their queries and must not be logged."""
    text = _ADDRESS.sub("", str(error).partition("\n")[0]).partition(": <")[0]
    return f"{type(error).__name__}: {text:.300}"
