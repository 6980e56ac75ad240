"""Addresses of objects in buckets: path style and virtual-hosted style. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.pull.reference import S3Reference
from gateway.workshop.pull.signature import object_path

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
