"""Settings of blob storage, and timeouts of a remote store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Table `[blobs.s3]`. Credentials come from the environment (AWS_ACCESS_KEY_ID etc.) or the machine's role."""

    bucket: str = ""  # empty: blobs are on disk
    prefix: str = "blobs/sha256"  # prefix of the objects' names; the digest follows
    region: str = "us-east-1"  # of the bucket
    endpoint: str = ""  # URL of the store, if it is not Amazon's
    public_endpoint: str = ""  # URL for devices, if it differs from this controller's
    url_validity_s: float = 900.0  # validity of a pre-signed URL: a device that resumes asks for a new one
    connect_timeout_s: float = 5.0  # for a connection
    request_timeout_s: float = 60.0  # for one request, a part of an upload included
    retries: ClassVar[int] = 3  # after temporary failures
    retry_timeout_s: ClassVar[float] = 60.0  # for a request and its retries
    part_bytes: ClassVar[int] = 8_388_608  # 8 MiB: one part of an upload; 10,000 parts at most
    parts_at_once: ClassVar[int] = 4  # parts of one upload in memory
    retry_after_s: ClassVar[float] = 10.0  # Retry-After while the store is unavailable


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """Table `[blobs]`."""

    s3: S3Settings = field(default_factory=S3Settings)
    piece_bytes: ClassVar[int] = 131_072  # 128 KiB: one piece of a file sent over TLS
    leftover_age_s: ClassVar[float] = 86_400.0  # age at which an incomplete upload is removed
