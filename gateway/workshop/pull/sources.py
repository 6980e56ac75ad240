"""The source that a reference names, with the credentials for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.web import WebSource
from gateway.workshop.pull.access import check_url, is_loopback, origin, rules, split_url
from gateway.workshop.pull.bucket import BucketPlace, S3Keys, object_url, signed_headers
from gateway.workshop.pull.credentials import read_keys, read_login
from gateway.workshop.pull.reference import OciReference, S3Reference, UrlReference
from gateway.workshop.pull.registry import RegistrySource
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.source import FileReleaseSource


@dataclass(frozen=True, slots=True)
class PullAccess:
    """How sources are reached. `credentials_file`: instead of the usual files. `environ`: environment variables."""

    connections: ConnectionPool
    settings: PullSettings
    credentials_file: str | None = None
    place: BucketPlace = BucketPlace()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


def open_registry(reference: OciReference, access: PullAccess) -> RegistrySource:
    """Return the source of an OCI reference. Raise ConfigurationError, FetchError for HTTP without TLS elsewhere."""
    base_url = registry_url(reference.registry, access.settings.fetch.ca_file)
    login = read_login(reference.registry, access.credentials_file, access.settings, access.environ)
    return RegistrySource(base_url, reference, login, access.connections, access.settings)


def open_file(reference: UrlReference | S3Reference, access: PullAccess) -> FileReleaseSource:
    """Return the source of a file. Raise ConfigurationError, FetchError for HTTP without TLS elsewhere."""
    url = reference.url if isinstance(reference, UrlReference) else object_url(reference, access.place)
    check_url(url)
    root, path = split_url(url)
    if isinstance(reference, UrlReference):
        login = read_login(origin_name(url), access.credentials_file, access.settings, access.environ)
        headers = {"Authorization": login.authorization} if login else {}
        allowed = rules(lambda asked: headers if origin(asked) == origin(url) else {})
    else:
        keys = read_keys(access.credentials_file, access.settings, access.environ)
        allowed = rules(lambda asked: _signed(asked, keys, access.place.region) if origin(asked) == origin(url) else {})
    web = WebSource(root, connections=access.connections, rules=allowed)
    return FileReleaseSource(web, path, reference.file, reference.digest)


def registry_url(registry: str, ca_file: str | None) -> str:
    """Return the base URL of a registry. One on this device has no TLS, unless its authority was named."""
    host = origin(f"https://{registry}/")[1]
    return f"{'http' if is_loopback(host) and ca_file is None else 'https'}://{registry}/"


def origin_name(url: str) -> str:
    """Return host and port as they are in the URL, without user: the key of a login."""
    return url.partition("://")[2].partition("/")[0]


def _signed(url: str, keys: S3Keys | None, region: str) -> Mapping[str, str]:
    return signed_headers(url, keys, region, datetime.now(timezone.utc)) if keys else {}
