"""Report about this device for the reader of a bug report: one archive of texts, without secrets."""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import os
import platform
import re
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway import __version__
from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.redaction import WITHHELD, value_without_secrets, without_secrets
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.store.text import read_text
from gateway.common.terminal.tables import plain, print_table
from gateway.serving.cli.checks import ExaminedDevice, command_output
from gateway.serving.cli.config import effective
from gateway.serving.cli.http_client import GatewayClient
from gateway.serving.cli.running import LOCAL_TIMEOUT_S, local_addresses
from gateway.serving.config import Config
from gateway.serving.frontends.mqtt.settings.broker import MqttBroker, MqttSettings
from gateway.serving.model_sources import releases_here
from gateway.serving.store.releases import MANIFEST

PART_LIMIT_BYTES = 1024 * 1024
"""Most bytes of one file of the bundle. Of a longer one the end is kept: the last lines of a log count."""
PARTS_LIMIT = 64
"""Most files. With their limit, a bundle has at most 64 MiB unpacked."""
LEAST_SECRET = 4
"""Characters from which a word of a secret file is withheld wherever it occurs."""
LOG_LINES = 500
Makes = Callable[[], Any]
THIS_DEVICE = {"localhost", "127.0.0.1", "::1"}


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that does not tell what the file is, or that exists."""
    if not name.endswith(".tar.gz") or os.path.lexists(name):
        raise ConfigurationError("takes a new file that ends in .tar.gz", file=name, table="--bundle")


def write_bundle(name: str, device: ExaminedDevice, documents: Mapping[str, Makes]) -> None:
    """Write the bundle, which only this user may read, and print what is in it and what was left out."""
    redacted, written = Redaction(device.config), list[tuple[str, str, str]]()
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for title, make in (*documents.items(), *_parts(device)):
            try:
                whole = redacted(make()) if len(written) < PARTS_LIMIT else b""
            except (OSError, ConfigurationError, RequestError, sqlite3.Error, ValueError) as error:
                written.append((title, "", f"left out: {error}"))
                continue
            entry = tarfile.TarInfo(f"edge-gateway/{title}")
            entry.size, entry.mode = min(len(whole), PART_LIMIT_BYTES), 0o600
            archive.addfile(entry, io.BytesIO(whole[-PART_LIMIT_BYTES:]))
            written.append((title, f"{entry.size}", f"the end of {len(whole)} bytes" * (len(whole) > entry.size)))
    print_table(("file", "bytes", "remark"), written)
    print("\nleft out: weights, inputs and results of models, files of secrets, names of brokers' hosts")
    print(f"{name}: {Path(name).stat().st_size} bytes; read it before you send it: tar xzf {name}")


class Redaction:
    """Redaction by patterns of secrets, by the words of the files of secrets that settings name, of brokers' hosts."""

    def __init__(self, config: Config | None) -> None:
        words, files = set[str](), list[str | None]()
        if config is not None:
            brokers: tuple[MqttSettings | MqttBroker, ...] = (config.mqtt, *config.mqtt.broker)
            hosts = {urlsplit(one.url or "").hostname or "" for one in brokers} - THIS_DEVICE
            words = {one.username for one in brokers if one.username} | hosts
            files = [config.auth.tokens_file, *(one.username_file for one in brokers)]
            files += [one.password_file for one in brokers]
        for file in files:
            if file and os.access(file, os.R_OK):  # words of a file that cannot be read are in no text of this user
                content = read_text(Path(file))
                words |= {*content.split(), *(line.strip() for line in content.splitlines())}
        held = sorted((word for word in words if len(word) >= LEAST_SECRET), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, held)) or r"(?!)")

    def __call__(self, content: Any) -> bytes:
        """Return a text, or the JSON of a value, without secrets."""
        if not isinstance(content, str):
            value = json.loads(json.dumps(content, default=str))  # tuples are lists then
            return json.dumps(self._value(value_without_secrets(value)), indent=1, ensure_ascii=False).encode()
        return str(self._value(without_secrets(content))).encode("utf-8", "replace")

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._value(key): self._value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner) for inner in value]
        return self._secrets.sub(WITHHELD, value) if isinstance(value, str) else value


def _parts(device: ExaminedDevice) -> Iterator[tuple[str, Makes]]:
    """Yield each file's name and what makes its content."""
    yield "versions.json", _versions
    for unit in ("edge-gateway", "edge-agent"):
        yield f"{unit}.status.txt", partial(_said, "systemctl", "status", "--no-pager", "--lines=0", unit)
        journal = ("journalctl", "--no-pager", "--quiet", "--utc", f"--lines={LOG_LINES}", f"--unit={unit}")
        yield f"{unit}.log", partial(_said, *journal)
    yield "verdicts.json", partial(_verdicts, device.state / "state.sqlite")
    if device.config is not None:
        yield "configuration.json", partial(effective, device.config)
        yield "metrics.txt", partial(_metrics, device, device.config)
        with suppress(ConfigurationError):  # `doctor.json` has it
            for release in asyncio.run(releases_here(device.config)):
                if (file := release.folder / MANIFEST).is_file():
                    yield f"models/{release.name}/{release.version}/{MANIFEST}", partial(read_text, file)


def _versions() -> dict[str, Any]:
    names = {name for spec in RUNTIMES.values() for each in spec.packages for name in each.distributions}
    found = {each.name: each.version for each in importlib.metadata.distributions() if each.name in names}
    system = {"python": platform.python_version(), "system": platform.platform(), "libc": " ".join(platform.libc_ver())}
    return {"gateway": __version__, **system, "os": read_text(Path("/etc/os-release")).splitlines(), "runtimes": found}


def _said(*command: str) -> str:
    if not (text := command_output(*command)):
        raise ConfigurationError(f"{command[0]} has no answer here")
    return plain(text)


def _verdicts(file: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT key, content FROM verdict ORDER BY rowid DESC LIMIT 1000")
        return [{"key": key, "verdict": json.loads(content)} for key, content in rows]


def _metrics(device: ExaminedDevice, config: Config) -> str:
    for place, keys in local_addresses(config, device.arguments):
        with GatewayClient(place, keys, LOCAL_TIMEOUT_S) as client:
            status, content = client.exchange("GET", "/metrics")
        if status == 200:
            return content.decode("utf-8", "replace")
        raise ConfigurationError(f"{place} answered HTTP {status}: callers need the scope metrics")
    raise ConfigurationError("HTTP is off")
