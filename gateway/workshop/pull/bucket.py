"""Objects in buckets: their addresses, in path style or virtual-hosted style, and AWS' signatures, version 4. Pure.

Source of signatures: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.pull.reference import S3Reference

ALGORITHM = "AWS4-HMAC-SHA256"
NO_BODY = hashlib.sha256(b"").hexdigest()
_PLAIN = "/-_.~"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Access key. `token` of temporary credentials, or ""."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def object_path(*parts: str) -> str:
    """Return the path of bucket and key, encoded as the signature requires it."""
    return "/".join(urllib.parse.quote(part, safe=_PLAIN) for part in parts)


def signed_headers(url: str, keys: S3Keys, region: str, now: datetime) -> dict[str, str]:
    """Return the headers of a GET of `url` without a query; `now` in UTC."""
    parts = urllib.parse.urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": NO_BODY, "x-amz-date": stamp}
    headers |= {"x-amz-security-token": keys.token} if keys.token else {}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"GET\n{parts.path}\n{parts.query}\n{lines}\n{names}\n{NO_BODY}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = f"{ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(_signing_key(keys.secret, stamp[:8], region), text.encode(), "sha256").hexdigest()
    credential = f"Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    del headers["host"]  # the HTTP client sends it
    return {**headers, "Authorization": f"{ALGORITHM} {credential}"}


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key


PATH, VIRTUAL = "path", "virtual"
STYLES = (PATH, VIRTUAL)
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """Place of buckets. `endpoint`: base URL of a service, "": Amazon's for `region`. `style`: "" selects one."""

    endpoint: str = ""
    region: str = DEFAULT_REGION
    style: str = ""


def read_place(endpoint: str, region: str, style: str, environ: Mapping[str, str]) -> BucketPlace:
    """Return the place by options, else by the usual environment variables. Raise ConfigurationError."""
    endpoint = endpoint or environ.get("AWS_ENDPOINT_URL_S3", "") or environ.get("AWS_ENDPOINT_URL", "")
    region = region or environ.get("AWS_REGION", "") or environ.get("AWS_DEFAULT_REGION", "") or DEFAULT_REGION
    try:
        parts = urllib.parse.urlsplit(endpoint or "https://amazonaws.com")
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query and not parts.username
        usable = usable and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not region.isascii() or not region.replace("-", "").isalnum():
        raise ConfigurationError("--endpoint takes https://HOST[:PORT], --region a name such as eu-central-1")
    return BucketPlace(endpoint.rstrip("/"), region, style)


def object_url(reference: S3Reference, place: BucketPlace) -> str:
    """Return the URL of an object.

    A bucket is part of the host's name at Amazon, unless it has dots: its certificates cover one label.
    """
    style = place.style or (PATH if place.endpoint or "." in reference.bucket else VIRTUAL)
    endpoint = place.endpoint or f"https://s3.{place.region}.amazonaws.com"
    if style == PATH:
        return f"{endpoint}/{object_path(reference.bucket, reference.key)}"
    parts = urllib.parse.urlsplit(endpoint)
    return f"{parts.scheme}://{reference.bucket}.{parts.netloc}{parts.path}/{object_path(reference.key)}"
