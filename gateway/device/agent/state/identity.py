"""Identity of this device in its fleet and its pinned root, both written once by `bootstrap` or `enrol`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.files.durable import write_file
from gateway.common.store.errors import store_errors
from gateway.common.store.text import read_text
from gateway.common.trust.chain import trusted_root
from gateway.device.agent.config import DEVICE_FILE
from gateway.device.store.journal import Journal

SCHEMA = 1
ROOT_FILE = "root.json"
POLL_LOW_S, POLL_HIGH_S = 1.0, 604_800.0
SCHEMES = ("https", "http", "file")


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Identity of a device.

    `repository` and `assignment` are URLs, the latter of this device's own document. `root`: the pinned root.
    `document`: the bytes of device.json. `controller`: URL for reports ("": none). `poll_s`: interval of polls until an
    assignment sets another (None: as configured).
    """

    device: str
    repository: str
    assignment: str
    root: bytes
    document: bytes = field(default=b"", compare=False)
    controller: str = field(default="", compare=False)
    poll_s: float | None = field(default=None, compare=False)


def read_identity(folder: Path) -> DeviceIdentity:
    """Return the identity in a folder with `device.json` and `root.json`. Raise ConfigurationError."""
    file = folder / DEVICE_FILE
    return parse_identity(read_text(file), read_text(folder / ROOT_FILE).encode(), str(file))


def parse_identity(text: str, root: bytes, file: str) -> DeviceIdentity:
    """Return the identity in a device document. `file` is named in errors. Raise ConfigurationError."""
    document = _document(text, file)
    device, controller, poll_s = document["device"], document.get("controller") or "", document.get("poll_s")
    if not NAME_PATTERN.fullmatch(device):
        raise ConfigurationError(f"{device!r:.80} is no device's name", file=file, key="device")
    for key in ("repository", "assignment", *(["controller"] if controller else [])):
        if urlsplit(document[key]).scheme not in SCHEMES:
            problem = f"{document[key]!r:.200} is no URL of {', '.join(SCHEMES)}"
            raise ConfigurationError(problem, file=file, key=key)
    return DeviceIdentity(
        device, document["repository"], document["assignment"], root, text.encode(), controller, poll_s
    )


def bootstrap(identity: DeviceIdentity, folder: Path) -> DeviceIdentity:
    """Give the device in `folder` its identity. Safe to repeat.

    Raise ConfigurationError if the folder belongs to another device, Distrust if the root is not signed by itself,
    StoreError. A device that lost its journal raises StoreError too: only `recover` replaces a journal.
    """
    trusted_root(identity.root, (), 1)
    if (folder / DEVICE_FILE).exists():
        known = read_identity(folder)
        if known == identity:
            Journal.open(folder).close()
            return known
        problem = f"is bootstrapped already, as {known.device}; to start again, stop the agent and remove the folder"
        raise ConfigurationError(problem, file=str(folder))
    Journal.create(folder).close()  # and the folder
    with store_errors(folder):
        write_file(folder / ROOT_FILE, identity.root)
        write_file(folder / DEVICE_FILE, identity.document)  # last: its presence means that all files are complete
    return identity


def _document(text: str, file: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
        texts = [document[key] for key in ("device", "repository", "assignment")]
        texts.append(document.get("controller") or "")
        problem = "" if all(isinstance(value, str) for value in texts) else "a value is no string"
        if not POLL_LOW_S <= (document.get("poll_s") or POLL_LOW_S) <= POLL_HIGH_S:
            problem = "poll_s is out of bounds"
        if document["schema"] != SCHEMA:
            problem = f"schema {document['schema']!r:.40} is not known, {SCHEMA} is"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error!s:.200}"
    if problem:
        raise ConfigurationError(f"is no device document ({problem}); make it with edge-fleet bootstrap", file=file)
    return dict(document)
