"""Report about this device for the reader of a bug report: one archive of texts, without secrets."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import re
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.redaction import WITHHELD, value_without_secrets, without_secrets
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.files.credentials import is_credential
from gateway.common.store.text import read_text
from gateway.common.terminal.tables import plain, print_table
from gateway.serving.assembly import MachineSurvey
from gateway.serving.cli import probe
from gateway.serving.cli.checks import AGENT_STORE, ExaminedDevice, command_output
from gateway.serving.cli.config import effective
from gateway.serving.cli.http_client import GatewayClient
from gateway.serving.cli.running import LOCAL_TIMEOUT_S, local_addresses
from gateway.serving.config import Config, models_folder
from gateway.serving.frontends.mqtt.settings.broker import broker_of
from gateway.serving.store.releases import MANIFEST

SUFFIX = ".tar.gz"
PART_LIMIT_BYTES = 1024 * 1024
"""Most bytes of one file of the bundle. Of a longer one the end is kept: the last lines of a log count."""
PARTS_LIMIT = 64
"""Most files. With their limit, a bundle has at most 64 MiB unpacked."""
SECRET_LIMIT_BYTES = 1024 * 1024
LEAST_SECRET = 4
"""Characters from which a word of a secret file is withheld wherever it occurs."""
LOG_LINES = 500
THIS_DEVICE = frozenset({"localhost", "127.0.0.1", "::1"})


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that does not tell what the file is, or that exists."""
    if not name.endswith(SUFFIX):
        raise ConfigurationError(f"takes a file that ends in {SUFFIX}, not {name!r:.150}", table="--bundle")
    if os.path.lexists(name):
        raise ConfigurationError("exists; remove it, or name another file", file=name, table="--bundle")


def write_bundle(name: str, device: ExaminedDevice, surveyed: MachineSurvey | None, doctor: Mapping[str, Any]) -> None:
    """Write the bundle, which only this user may read, and print what is in it and what was left out."""
    redacted = Redaction(device.config)
    written: list[tuple[str, str, str]] = []
    with (
        os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for title, make in _parts(device, surveyed, doctor):
            if len(written) == PARTS_LIMIT:
                written.append(("…", "", f"more than {PARTS_LIMIT} files are left out"))
                break
            try:
                content = redacted(make())
            except (OSError, ConfigurationError, RequestError, sqlite3.Error, ValueError) as error:
                written.append((title, "", f"left out: {error}"))
                continue
            note = f"the last {PART_LIMIT_BYTES} bytes" if len(content) > PART_LIMIT_BYTES else ""
            content = content[-PART_LIMIT_BYTES:]
            entry = tarfile.TarInfo(f"edge-gateway/{title}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
            written.append((title, f"{len(content)}", note))
    print(f"{name}: {Path(name).stat().st_size} bytes. Read it before you send it: tar xzf {name}\n")
    print_table(("file", "bytes", "remark"), written)
    print("\nleft out: weights, inputs and results of models, files of secrets, names of brokers' hosts")


class Redaction:
    """Redaction of texts: patterns of secrets, the words of the secret files that settings name, hosts of brokers."""

    def __init__(self, config: Config | None) -> None:
        words, self._hosts = set[str](), dict[str, str]()
        brokers = (config.mqtt, *config.mqtt.broker) if config else ()
        files = [config.auth.tokens_file, config.tls.key] if config else []
        for at, one in enumerate(brokers):
            files += [one.username_file, one.password_file, one.key]
            words |= {one.username} if one.username else set()
            with suppress(ConfigurationError):
                self._hosts[broker_of(one.url).host] = f"broker-{at}"
        words |= {word for file in files if file and not is_credential(file) for word in _words(Path(file))}
        held = sorted((word for word in words if len(word) >= LEAST_SECRET), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, held))) if held else None

    def __call__(self, content: Any) -> bytes:
        """Return a text, or the JSON of a value, without secrets."""
        if not isinstance(content, str):
            value = json.loads(json.dumps(content, default=str))  # tuples are lists then
            content = json.dumps(self._value(value_without_secrets(value)), indent=1, ensure_ascii=False)
        else:
            content = self._text(without_secrets(content))
        return content.encode("utf-8", "replace")

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(key): self._value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner) for inner in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        text = self._secrets.sub(WITHHELD, text) if self._secrets else text
        for host in self._hosts.keys() - THIS_DEVICE:
            text = re.sub(rf"(?i)(?<![\w.-]){re.escape(host)}(?![\w-])", self._hosts[host], text)
        return text


def _words(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as content:
            text = content.read(SECRET_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:  # its words cannot be in what this user may read, either
        return
    for line in text.splitlines():
        yield line.strip()
        yield from (word for word in line.split() if not word.startswith(("scopes=", "models=", "expires=")))


def _parts(
    device: ExaminedDevice, surveyed: MachineSurvey | None, doctor: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each file's name and what makes its content."""
    yield "versions.json", _versions
    yield "doctor.json", lambda: doctor
    if surveyed is not None:
        yield "probe.json", lambda: probe.document(surveyed)
    for unit in ("edge-gateway", "edge-agent"):
        yield f"{unit}.status.txt", partial(_said, ["systemctl", "status", "--no-pager", "--lines=0", unit])
        journal = ["journalctl", "--no-pager", "--quiet", "--utc", f"--lines={LOG_LINES}", f"--unit={unit}"]
        yield f"{unit}.log", partial(_said, journal)
    yield "verdicts.json", lambda: _verdicts(device.state / "state.sqlite")
    config = device.config
    if config is None:
        return
    yield "configuration.json", lambda: effective(config)
    yield "metrics.txt", lambda: _metrics(device, config)
    for manifest in sorted(models_folder(config).glob(f"*/*/{MANIFEST}")):
        name = "/".join(manifest.parts[-3:])
        yield f"models/{name}", partial(read_text, manifest)


def _versions() -> dict[str, Any]:
    distributions = [name for spec in RUNTIMES.values() for each in spec.packages for name in each.distributions]
    found = {each.name: each.version for each in importlib.metadata.distributions() if each.name in distributions}
    release = Path("/etc/os-release")
    return {
        "gateway": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "os": release.read_text("utf-8").splitlines() if release.is_file() else None,
        "runtimes": found,
        "fleet": AGENT_STORE.exists(),
    }


def _said(command: list[str]) -> str:
    if not (text := command_output(command)):
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
            if status != 200:
                raise ConfigurationError(f"{place} answered HTTP {status}: callers need the scope metrics")
            return content.decode("utf-8", "replace")
    raise ConfigurationError("HTTP is off")
