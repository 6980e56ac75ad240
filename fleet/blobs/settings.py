"""Where blobs lie, and how long is waited for a store that is far away."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class S3Settings:
    """`[blobs.s3]`. Credentials come from the environment (AWS_ACCESS_KEY_ID and its like) or the machine's role."""

    bucket: str = ""  # empty: blobs lie on the disk
    prefix: str = "blobs/sha256"  # of the objects' names; the digest follows
    region: str = "us-east-1"  # of the bucket
    endpoint: str = ""  # where S3 answers, for stores that are not Amazon's
    public_endpoint: str = ""  # how devices reach it, where that is another address than this controller's
    url_validity_s: float = 900.0  # how long a pre-signed URL holds: a device that resumes asks for a new one
    connect_timeout_s: float = 5.0  # for a connection
    request_timeout_s: float = 60.0  # for one request, a part of an upload included
    retries: int = 3  # of a request that failed in passing
    retry_timeout_s: float = 60.0  # for a request and its retries
    part_bytes: int = 8_388_608  # 8 MiB: of an upload at a time; 10,000 parts at most
    parts_at_once: int = 4  # of an upload; so much of it is held in memory
    retry_after_s: float = 10.0  # told to callers while the store is away


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """`[blobs]`."""

    piece_bytes: int = 131_072  # of a file that goes out over TLS, at a time
    leftover_age_s: float = 86_400.0  # what an upload that was cut off left behind is removed after that
    s3: S3Settings = field(default_factory=S3Settings)
