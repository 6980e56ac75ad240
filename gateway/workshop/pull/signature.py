"""Signatures of AWS, version 4, for GET of one object. Pure.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from dataclasses import dataclass, field
from datetime import datetime

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
