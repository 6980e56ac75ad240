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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

from gateway import __version__
from gateway.common.domain.document import parse_toml
from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.pipeline import PIPELINE
from gateway.common.domain.redaction import SECRET_SETTING, WITHHELD, value_without_secrets, without_secrets
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.files.credentials import DIRECTORY, PREFIX, is_credential
from gateway.common.store.text import TEXT_LIMIT_BYTES, read_text
from gateway.common.terminal.tables import plain, print_table
from gateway.serving.cli.checks import ExaminedDevice, command_output
from gateway.serving.cli.common import clean_up_on_signals
from gateway.serving.cli.config import effective
from gateway.serving.cli.http_client import GatewayClient
from gateway.serving.cli.running import LOCAL_TIMEOUT_S, local_addresses
from gateway.serving.config import DEFAULT_FILE, Config, more_files
from gateway.serving.model_sources import releases_here
from gateway.serving.store.releases import MANIFEST

PART_LIMIT_BYTES = 1024 * 1024
"""Most bytes of one file of the bundle. Of a longer one the end is kept: the last lines of a log count."""
PARTS_LIMIT = 64
"""Most files. With their limit, a bundle has at most 64 MiB unpacked."""
LEAST_SECRET = 4
"""Characters from which a word is withheld also within longer words."""
LOG_LINES = 500
FILES_OF_SECRETS = ("tokens_file", "username_file", "password_file")
RUNNING_CREDENTIALS = "/run/credentials/edge-gateway.service"
Makes = Callable[[], Any]
THIS_DEVICE = {"localhost", "127.0.0.1", "::1"}


def check_name(name: str) -> None:
    """Raise ConfigurationError for a name that does not tell what the file is, that exists or cannot be written."""
    folder = Path(name).absolute().parent
    if not name.endswith(".tar.gz") or os.path.lexists(name):
        raise ConfigurationError("takes a new file that ends in .tar.gz", file=name, table="--bundle")
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable" if folder.is_dir() else "is no folder"
        raise ConfigurationError(f"{folder} {problem}; name a file in another folder", file=name, table="--bundle")


def write_bundle(name: str, device: ExaminedDevice, documents: Mapping[str, Makes]) -> list[tuple[str, str, str]]:
    """Write the bundle, which only this user may read. Return its files with size and remark, also what is left out.

    Raises ConfigurationError, and leaves no file, if it cannot be written.
    """
    clean_up_on_signals()
    redacted = Redaction(device)
    parts = [*documents.items(), *_parts(device, redacted.unknown)]
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _unwritten(name, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            written = [_added(archive, title, make, redacted) for title, make in parts[:PARTS_LIMIT]]
            owner = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
            if os.geteuid() == 0 and all(number.isdecimal() for number in owner):
                with suppress(OSError):  # a file system without owners
                    os.fchown(descriptor, *map(int, owner))
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritten(name, error) from error
        raise
    if more := len(parts) - PARTS_LIMIT:
        written += [(f"{more} more", "", f"left out: a bundle has at most {PARTS_LIMIT} files")] * (more > 0)
    return written


def print_bundle(name: str, written: Sequence[tuple[str, str, str]]) -> None:
    """Print what is in the bundle and what was left out."""
    print_table(("file", "bytes", "remark"), written)
    print("\nleft out: weights, inputs and results of models, files of secrets, names of brokers' hosts")
    print(f"{name}: {Path(name).stat().st_size} bytes; read it before you send it: tar xzf {name}")


def _unwritten(name: str, error: OSError) -> ConfigurationError:
    problem = f"cannot be written: {error.strerror or error}; name a file on another disk, such as /tmp/report.tar.gz"
    return ConfigurationError(problem, file=name, table="--bundle")


def _added(archive: tarfile.TarFile, title: str, make: Makes, redacted: Redaction) -> tuple[str, str, str]:
    """Write one file. Return its name, size and remark."""
    try:
        whole = redacted(make())
    except (OSError, ConfigurationError, RequestError, sqlite3.Error, ValueError) as error:
        return title, "", f"left out: {error}"
    entry = tarfile.TarInfo(f"edge-gateway/{title}")
    entry.size, entry.mode = min(len(whole), PART_LIMIT_BYTES), 0o600
    archive.addfile(entry, io.BytesIO(whole[-PART_LIMIT_BYTES:]))
    return title, f"{entry.size}", f"the end of {len(whole)} bytes" * (len(whole) > entry.size)


class Redaction:
    """Redaction by patterns of secrets, and by words: what files of secrets contain, users and hosts of brokers.

    The words are those of the files as they are, so that a setting that is refused hides none. The named configuration
    and that of the service count: the logs are the service's. `unknown`: why words may be missing ("": none is).
    """

    def __init__(self, device: ExaminedDevice) -> None:
        self.unknown, self._words = "", set[str]()
        for source in device.config.sources if device.config else ():
            self._words.update(self._of(source.values))
        for main in {Path(device.arguments.config or DEFAULT_FILE), DEFAULT_FILE}:
            try:
                for file in filter(os.path.lexists, (main, *more_files(main))):
                    self._words.update(self._of(parse_toml(_content(file), str(file))))
            except (OSError, ValueError, ConfigurationError) as error:
                self.unknown = str(error)
        self._words -= THIS_DEVICE

    def _of(self, values: Any, key: str = "") -> Iterator[str]:
        """Yield the words, in lower case, of settings at any depth."""
        for name, inner in values.items() if isinstance(values, dict) else [(key, each) for each in values]:
            if isinstance(inner, dict | list):
                yield from self._of(inner, name)
            elif isinstance(inner, str) and inner:
                yield from filter(None, map(str.lower, self._found(name, inner)))

    def _found(self, key: str, value: str) -> Iterable[str]:
        if key == "url":
            user, _, place = value.rpartition("://")[2].rpartition("@")
            host = re.match(r"\[?((?<=\[)[^\]]*|[^:/?#]*)", place)
            return [user, *re.split("[:/@]", user), host[1] if host else ""]
        if key == "username":
            return [value]
        if key not in FILES_OF_SECRETS:
            return [value] if SECRET_SETTING.search(f"{key}=") else []
        folder = os.environ.get(DIRECTORY) or RUNNING_CREDENTIALS
        path = Path(folder, value.removeprefix(PREFIX)) if is_credential(value) else Path(value)
        try:
            content = _content(path)
        except (FileNotFoundError, NotADirectoryError):
            return [] if is_credential(value) else [value]  # a secret in place of the name of its file
        except (OSError, ValueError) as error:
            self.unknown = f"{key}: {error}"
            return [value]
        lines = [line.strip() for line in content.splitlines()]
        first = [] if key == "tokens_file" else lines[:1]
        return [*first, *(word for word in (*content.split(), *lines) if len(word) >= LEAST_SECRET)]

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
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        """Withhold the words: short ones where they stand alone, long ones anywhere."""
        lowered = text.lower()
        found = sorted((word for word in self._words if word in lowered), key=len, reverse=True)
        escaped = [(word, re.escape(word)) for word in found]  # one pattern of all words would take minutes
        forms = [form if len(word) >= LEAST_SECRET else rf"(?<!\w){form}(?!\w)" for word, form in escaped]
        return re.sub("|".join(forms), WITHHELD, text, flags=re.IGNORECASE) if forms else text


def _content(file: Path) -> str:
    """Return the text of a file. Raises OSError, and ValueError for what is large or no regular file."""
    if not S_ISREG(file.stat().st_mode):
        raise ValueError(f"{file} is no regular file")
    with file.open("rb") as opened:
        content = opened.read(TEXT_LIMIT_BYTES + 1)
    if len(content) > TEXT_LIMIT_BYTES:
        raise ValueError(f"{file} is larger than {TEXT_LIMIT_BYTES} bytes")
    return content.decode("utf-8-sig", "replace")


def _parts(device: ExaminedDevice, unknown: str) -> Iterator[tuple[str, Makes]]:
    """Yield each file's name and what makes its content; logs are left out if words to withhold are `unknown`."""
    yield "versions.json", _versions
    for unit in ("edge-gateway", "edge-agent"):
        status = ("systemctl", "status", "--no-pager", "--lines=0", unit)
        yield f"{unit}.status.txt", partial(_said, *status, unknown=unknown)
        journal = ("journalctl", "--no-pager", "--quiet", "--utc", f"--lines={LOG_LINES}", f"--unit={unit}")
        yield f"{unit}.log", partial(_said, *journal, unknown=unknown)
    yield "verdicts.json", partial(_verdicts, device.state / "state.sqlite")
    if device.config is not None:
        yield "configuration.json", partial(effective, device.config)
        yield "metrics.txt", partial(_metrics, device, device.config)
        with suppress(ConfigurationError, OSError):  # `doctor.json` has it
            for release in asyncio.run(releases_here(device.config)):
                for name in (MANIFEST, PIPELINE):
                    if (file := release.folder / name).is_file():
                        yield f"models/{release.name}/{release.version}/{name}", partial(read_text, file)


def _versions() -> dict[str, Any]:
    names = {name for spec in RUNTIMES.values() for each in spec.packages for name in each.distributions}
    found = {each.name: each.version for each in importlib.metadata.distributions() if each.name in names}
    system = {"python": platform.python_version(), "system": platform.platform(), "libc": " ".join(platform.libc_ver())}
    return {"gateway": __version__, **system, "os": read_text(Path("/etc/os-release")).splitlines(), "runtimes": found}


def _said(*command: str, unknown: str) -> str:
    if unknown:
        raise ConfigurationError(f"secrets in it cannot be recognised: {unknown}; correct that, or use sudo")
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
