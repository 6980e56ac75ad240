"""Verb `edge-gateway setup`: ask for the usual settings, or take them from options, and write them to `conf.d`.

All questions come before the first file is written. The result passes what `config check` checks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from gateway.common.domain.document import Source
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.files import durable
from gateway.common.files.credentials import is_credential
from gateway.common.memory import group_limit_bytes
from gateway.common.terminal.tables import plain, print_json, print_table
from gateway.serving.assembly import GROUP_SHARE, MIB, matching_profile
from gateway.serving.cli.cameras import CameraCheck
from gateway.serving.cli.checks import ExaminedDevice
from gateway.serving.cli.common import warn
from gateway.serving.cli.config import check_all, findings_of
from gateway.serving.cli.mqtt_choice import NamedBroker
from gateway.serving.cli.service_user import UnitAccount, service_account
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.cli.token import new_token, token_line
from gateway.serving.config import (
    DEFAULT_FILE,
    DEFAULT_MODELS,
    Config,
    gateway_id,
    merge_config,
    read_source,
    read_sources,
)
from gateway.serving.frontends.cameras.settings import CameraSettings, is_file
from gateway.serving.frontends.cameras.source import camera_source
from gateway.serving.frontends.mqtt.settings.broker import broker_of
from gateway.serving.frontends.mqtt.settings.route import DEFAULT_BROKER

NAME = "50-setup.toml"
PRIVATE_MODE, PUBLIC_MODE = 0o640, 0o644
DROP_IN = Path("/etc/systemd/system/edge-gateway.service.d/50-memory.conf")
HEAD = "# Written by `edge-gateway setup`, which replaces this file. Write your own settings into another file here.\n"
EVERYWHERE, LOCAL, DEFAULT_PORT = "0.0.0.0", "127.0.0.1", 8000  # noqa: S104  where the answer is "network"
TOKEN_NAME, TOKEN_SCOPES = "first", "infer,models,metrics"
LOOPBACK = [{"caller": "loopback", "scopes": ["admin"]}]
"""Grant by which commands on this device need no token; without a tokens file they need none either."""
RESERVE_SHARE, RESERVE_BYTES = 0.1, 256 * MIB
"""Memory that is left to the rest of the device: the larger of the two."""
LEAST_BYTES = 320 * MIB
"""Least MemoryMax=: of it 5/6 are the least `[gateway] memory_mib`."""
PROCESS_BYTES = 256 * MIB
"""Memory of the gateway and of one trial, without a model: 113 MiB (`make demo`), and as much again."""

Values = Mapping[str, Mapping[str, Any]]


@dataclass
class Setup:
    """Answers so far: `values` are the settings to write, by table and key.

    `base` is the configuration without the file that is written.
    """

    arguments: argparse.Namespace
    unit: UnitAccount | None
    base: Config
    values: dict[str, dict[str, Any]]
    token: str = ""
    cameras: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[Path, str] = field(default_factory=dict)
    """Files of passwords to write."""

    @property
    def asks(self) -> bool:
        """True if there are questions."""
        return not self.arguments.yes

    @property
    def is_installed(self) -> bool:
        """True if the configuration is that of an installed unit."""
        return self.unit is not None and self.main.resolve() == DEFAULT_FILE.resolve()

    @property
    def main(self) -> Path:
        """Path of the main file."""
        return Path(self.arguments.config or DEFAULT_FILE)

    @property
    def file(self) -> Path:
        """Path of the file that is written."""
        return self.main.with_name("conf.d") / NAME

    def set(self, table: str, key: str, value: Any, known: Any) -> None:
        """Set a value; leave it out if the other files (`known`) say the same."""
        keys = self.values.setdefault(table, {})
        keys.pop(key, None)
        if value != known:
            keys[key] = value

    def present(self, table: str, key: str) -> Any:
        """Return the value in force: of our file, else of the others."""
        return self.values.get(table, {}).get(key, getattr(getattr(self.base, table), key))

    def ask(self, option: str, question: str, present: str, take: Callable[[str], str]) -> None:
        """Let `take` use the option, else the answer; ask again as long as it returns a problem.

        Raises ConfigurationError for the problem of an option.
        """
        given = getattr(self.arguments, option)
        while problem := take(given or (_read(question, present) if self.asks else present)):
            if given or not self.asks:
                raise ConfigurationError(f"nothing is written: {problem}")
            print(plain(f"  {problem}"), file=sys.stderr)

    def text(self) -> str:
        """Return the content of that file."""
        cameras = ("".join(f"{key} = {_toml(value)}\n" for key, value in each.items()) for each in self.cameras)
        return HEAD + toml_text(self.values) + "".join(f"\n[[camera]]\n{lines}" for lines in cameras)

    def config(self) -> Config:
        """Return the configuration with the answers. Raises ConfigurationError, also if another file overrides one."""
        mine = read_source(self.text(), str(self.file))
        others = self.base.sources
        split = sum(Path(source.file).parent != self.file.parent or Path(source.file).name < NAME for source in others)
        config = merge_config([*others[:split], mine, *others[split:]], file=self.base.file)
        for later, table, key in self.overrides(others[split:]):
            raise later.error(f"overrides the answer of {NAME}; remove it there", table, key)
        return config

    def overrides(self, later: Sequence[Source]) -> Iterator[tuple[Source, str, str]]:
        """Yield each answer that a later file overrides: the file, table and key."""
        answers = [(table, key) for table, keys in self.values.items() for key in keys]
        return ((source, *answer) for source in later for answer in answers if source.holds(*answer))

    def check(self, *tables: str) -> str:
        """Return what `config check` would find first, or ""; with `tables`: in these, or that concerns an answer."""
        try:
            config = self.config()
        except ConfigurationError as error:
            return str(error)
        account, unit = service_account(None)
        findings = findings_of(config, account, unit)
        if finding := next((one for one in findings if one.startswith(tables or "")), ""):
            return finding
        if self.token:  # the file is written later
            config = replace(config, auth=replace(config.auth, tokens_file=None, anonymous=True))
        try:
            check_all(config)
        except ConfigurationError as error:
            return str(error) if error.table.startswith(tables or "") else ""
        return ""


def command(arguments: argparse.Namespace) -> int:
    """Ask, check, write, and print what was done. Raises ConfigurationError for an option that is wrong."""
    setup = _begin(arguments)
    for question in (_callers, _broker, _models, _camera):
        question(setup)
    if problem := setup.check():
        raise ConfigurationError(f"nothing is written: {problem}")
    files = _files(setup)
    restart = arguments.restart and not arguments.dry_run
    if not arguments.dry_run:
        restart = restart or (
            setup.asks and setup.is_installed and is_booted() and _yes("Restart the service now", "yes")
        )
        _write(setup, files)
    restarted = False
    try:
        if not arguments.dry_run and (restart or DROP_IN in files):
            _systemctl("daemon-reload")
        if restart:
            _systemctl("restart", "edge-gateway")
            restarted = True
    finally:  # the token is not shown again
        _print(setup, files, restarted=restarted)
    return 0


def toml_text(values: Values) -> str:
    """Return tables of plain values as TOML. Lists of tables are in their inline form."""
    texts = ((table, "".join(f"{key} = {_toml(value)}\n" for key, value in values[table].items())) for table in values)
    return "".join(f"\n[{table}]\n{lines}" for table, lines in texts if lines)


def _toml(value: object) -> str:
    """Return a value as TOML: as JSON, but for tables and DEL."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def memory_limits(memory_bytes: int, wanted_bytes: int) -> tuple[int, int]:
    """Return MemoryHigh= and MemoryMax= of the service in MiB.

    `wanted_bytes`: the profile's budget of a model (0: none). MemoryMax= leaves a part of the device's memory to the
    rest of it. MemoryHigh=, above which the kernel reclaims and slows down, is the bound of the gateway's own data (5/6
    of MemoryMax=), or what the largest model needs.
    """
    most = max(memory_bytes - max(int(RESERVE_SHARE * memory_bytes), RESERVE_BYTES), LEAST_BYTES)
    high = max(int(GROUP_SHARE * most), min(wanted_bytes + PROCESS_BYTES, most) if wanted_bytes else 0)
    return high // MIB, most // MIB


# ---- questions -------------------------------------------------------------------------------------------------------


def _begin(arguments: argparse.Namespace) -> Setup:
    """Read what is set. Raises ConfigurationError without a terminal to ask at, or if nothing may be written."""
    if not arguments.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("there is no terminal to ask at; use --yes with options: edge-gateway setup --help")
    path = Path(arguments.config) if arguments.config else None
    sources = read_sources(path)
    setup = Setup(arguments, service_account(None)[1], Config(), {})
    if arguments.restart and not (setup.is_installed and is_booted()):
        problem = "the service of this configuration is not installed here, or systemd does not run"
        raise ConfigurationError(f"{problem}; leave it out, and start the gateway: edge-gateway run", key="--restart")
    setup.base = merge_config([source for source in sources if source.file != str(setup.file)], file=str(setup.main))
    folder = next(place for place in (setup.file.parent, *setup.file.parent.absolute().parents) if place.exists())
    if not arguments.dry_run and not (os.access(folder, os.W_OK) and (os.geteuid() == 0 or not setup.is_installed)):
        again = shlex.join(["sudo", "edge-gateway", *sys.argv[1:]])
        raise ConfigurationError(f"{folder} belongs to root; run: {again}")
    if mine := next((source for source in sources if source.file == str(setup.file)), None):
        split = sources.index(mine) + 1
        merge_config(sources[:split], file=str(setup.main))  # refuses what was edited by hand and is wrong
        setup.cameras = [] if setup.base.camera else list(mine.values.get("camera", ()))
        setup.values = {table: dict(keys) for table, keys in mine.values.items() if table != "camera"}
        for later, table, key in list(setup.overrides(sources[split:])):
            warn(f"{later.file} overrides the earlier answer {table}.{key}, which is left out")
            setup.values[table].pop(key, None)
    return setup


def _callers(setup: Setup) -> None:
    base, tokens, listen = setup.base, setup.main.absolute().with_name("tokens"), setup.config().http_listen
    was_open = any(not address.private for address in listen)
    has_tokens = bool(setup.present("auth", "tokens_file"))

    def take(text: str) -> str:
        if text not in {"device", "network"}:
            return "answer device or network"
        host, opens = (EVERYWHERE, True) if text == "network" else (LOCAL, False)
        moved = [str(one if one.path or one.private != opens else replace(one, host=host)) for one in listen]
        if opens and all(one.path for one in listen):
            moved.append(f"{EVERYWHERE}:{DEFAULT_PORT}")
        setup.set("http", "listen", [*dict.fromkeys(moved)], [str(address) for address in base.http_listen])
        needs = opens and not (base.auth.tokens_file or base.tls.client_ca) and (has_tokens or not base.auth.anonymous)
        setup.set("auth", "tokens_file", str(tokens) if needs else "", "")
        setup.set("auth", "grant", LOOPBACK if needs and not base.auth.grant else [], [])
        setup.token = new_token() if needs and not tokens.exists() else ""
        return setup.check("http", "auth")

    question = "Callers over HTTP: device (programs on it) or network (with a token)"
    setup.ask("listen", question, "network" if was_open else "device", take)


def _broker(setup: Setup) -> None:
    options = setup.arguments

    def take(text: str) -> str:
        if text == "off":
            if options.mqtt_username or options.mqtt_password_file:
                return "--mqtt-username and --mqtt-password-file need a broker; name it, or leave them out"
            setup.set("mqtt", "url", "", setup.base.mqtt.url)
            for key in ("username", "password_file"):
                setup.values["mqtt"].pop(key, None)
            return setup.check("mqtt")
        try:
            broker_of(text)
        except ConfigurationError as error:
            return str(error)
        setup.set("mqtt", "url", text, setup.base.mqtt.url)
        return _credentials(setup) or setup.check("mqtt") or _connected(setup)

    question = "MQTT broker: mqtt://host:1883, mqtts://host:8883 or off"
    setup.ask("mqtt", question, setup.present("mqtt", "url") or "off", take)


def _credentials(setup: Setup) -> str:
    """Set user name and password file. Return the problem of a file that was named now, or ""."""
    option, had = setup.arguments.mqtt_password_file, setup.present("mqtt", "username")
    name = _credential(setup, "username", "User name at the broker (none: anonymous)", "none")
    if name == "none" and not option:
        if had:
            setup.set("mqtt", "password_file", "", setup.base.mqtt.password_file or "")
        return ""
    usual = str(setup.main.absolute().with_name("mqtt-password"))
    file = _credential(setup, "password_file", "File whose first line is the password (none: without)", usual)
    if file == "none" or is_credential(file) or not (setup.asks or option):
        return ""
    if not file.startswith("/"):
        return f"mqtt.password_file: {file}: name the file by its absolute path"
    problem = f"mqtt.password_file: cannot be read: {file} is no file; write the password into its first line"
    return "" if os.path.isfile(file) else problem  # noqa: PTH113  False for any name


def _credential(setup: Setup, key: str, question: str, default: str) -> str:
    """Set user name or password file: by the option, as answered, or as it is. Return it; "none": not set."""
    present, given = setup.present("mqtt", key), getattr(setup.arguments, f"mqtt_{key}")
    found = str(given or (_read(question, present or default) if setup.asks else present or "none"))
    setup.set("mqtt", key, "" if found == "none" else found, getattr(setup.base.mqtt, key) or "")
    return found


def _connected(setup: Setup) -> str:
    """Connect to a broker that was named now. Return the problem, unless the answer is to keep the broker, or ""."""
    options = setup.arguments
    if options.no_check or options.dry_run or not (setup.asks or options.mqtt):
        return ""
    try:
        asyncio.run(_connect(setup.config()))
    except UnreachableError as error:
        if not setup.asks:
            return f"{error.problem}; correct it, or leave out the test: --no-check"
        print(plain(f"  {error.problem}"), file=sys.stderr)
        return "" if _yes("Keep this broker all the same", "no") else "then name it again"
    except ConfigurationError as error:  # a file that cannot be read
        return str(error)
    return ""


def _models(setup: Setup) -> None:
    def folder(text: str) -> str:
        if not text.startswith("/"):
            return "name the folder by its absolute path"
        setup.set("models", "dir", "" if text == str(DEFAULT_MODELS) else text, setup.base.models.dir)
        return setup.check("models")

    def examples(text: str) -> str:
        if text not in {"yes", "no"}:
            return "answer yes or no"
        setup.set("models", "examples", text == "yes", setup.base.models.examples)
        return setup.check("models")

    setup.ask("models", "Folder of your models", setup.present("models", "dir") or str(DEFAULT_MODELS), folder)
    if folder_of_models := setup.present("models", "dir"):
        if setup.arguments.examples:
            problem = f"the examples serve only next to {DEFAULT_MODELS}, and [models] dir is {folder_of_models}"
            raise ConfigurationError(f"nothing is written: {problem}; leave it out", key="--examples")
    else:
        present = "yes" if setup.present("models", "examples") else "no"
        setup.ask("examples", "Serve the two examples too (yes, no)", present, examples)


def _camera(setup: Setup) -> None:
    """Add a camera, replace the one of its name, or remove those of earlier answers."""
    options = setup.arguments
    if setup.base.camera:
        if options.camera:
            problem = "another file has a [[camera]], and a list here would replace it; add this one there"
            raise ConfigurationError(f"nothing is written: {problem}", key="--camera")
        return
    by_name = {each["name"]: each for each in setup.cameras}
    first = by_name.get(options.camera_name or "", next(iter(by_name.values()), {}))

    def take(text: str) -> str:
        if text == "off":
            setup.cameras, setup.secrets = [], {}
            return ""
        try:
            url, secret = _without_login(text)
        except ConfigurationError as error:
            return error.problem
        name = options.camera_name or (_read("Its name", first.get("name", "camera")) if setup.asks else "camera")
        before = by_name.get(name, {})
        asked = before.get("model", "")
        model = options.camera_model or (_read("Model or pipeline that is asked", asked) if setup.asks else asked)
        found = {**before, "name": name, "url": url, "model": model}
        setup.secrets = {}  # not that of an answer before
        if secret:  # a file of its own: commands of every user read the settings
            file = setup.main.absolute().with_name(f"camera-{name}")
            found["credential"], setup.secrets = str(file), {file: secret}
        try:
            camera = CameraSettings(**{**found, "masks": (), "snapshot": None})
        except ConfigurationError as error:
            return str(error)
        setup.cameras = [*({**by_name, name: found}).values()]
        return setup.check("camera") or _reached(setup, camera)

    if options.camera or setup.asks:
        setup.ask("camera", "Camera: rtsp://USER:PASSWORD@host/path, /dev/video0 or off", first.get("url", "off"), take)


def _without_login(text: str) -> tuple[str, str]:
    """Return a camera's URL without its login, and the login as USER:PASSWORD or "". Raises ConfigurationError.

    Only what stands before the host is a login: paths and queries may have an "@", too.
    """
    if is_file(text):
        return text, ""
    camera_source(text, "a file is named by its whole path")
    parts = urlsplit(text)
    login, at, place = parts.netloc.rpartition("@")
    if not at:
        return text, ""
    user, colon, password = (unquote(part, errors="replace") for part in login.partition(":"))
    secret = f"{user}:{password}"
    if not user or ":" in user or not secret.isprintable() or secret != secret.strip() or "\ufffd" in secret:
        problem = "needs a user without ':', and no control characters or blanks at the ends in user and password"
        raise ConfigurationError(f"the url {problem}: rtsp://USER:PASSWORD@host/path")
    if not colon:
        warn("the camera's url names a user without a password; the password is taken as empty")
    return urlunsplit(parts._replace(netloc=place)), secret


def _reached(setup: Setup, camera: CameraSettings) -> str:
    """Look for the address of a camera. Return the problem, unless the answer is to keep it, or ""."""
    if setup.arguments.no_check or setup.arguments.dry_run:
        return ""
    found = CameraCheck(camera, ExaminedDevice(setup.arguments)).address()
    if found is None:
        return ""
    if not setup.asks:
        return f"{found.detail}; correct it, or leave out the test: --no-check"
    print(plain(f"  {found.detail}"), file=sys.stderr)
    return "" if _yes("Keep this camera all the same", "no") else "then name it again"


def _read(question: str, default: str) -> str:
    """Return the answer, or the default for an empty line. The end of the input is an interrupt: nothing is written."""
    print(plain(f"{question} [{default}]: "), end="", file=sys.stderr, flush=True)
    if not (line := sys.stdin.readline()):
        raise KeyboardInterrupt
    return line.strip() or default


def _yes(question: str, default: str) -> bool:
    return _read(f"{question} (yes, no)", default).lower() in {"y", "yes"}


async def _connect(config: Config) -> None:
    """Connect once as the gateway would. Raises ConfigurationError, UnreachableError."""
    broker = NamedBroker(DEFAULT_BROKER, config.mqtt)
    logging.disable(logging.WARNING)  # the error says the same
    try:
        async with subscribed(broker, "setup", f"{gateway_id(config)}-setup", [], lambda _message: None):
            pass
    finally:
        logging.disable(logging.NOTSET)


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(setup: Setup) -> dict[Path, tuple[str, int, str]]:
    """Return the files to write: their text, mode, and what they hold."""
    found: dict[Path, tuple[str, int, str]] = {}
    if setup.token:
        line = token_line(TOKEN_NAME, setup.token, TOKEN_SCOPES, None, None)
        found[setup.main.with_name("tokens")] = (f"{line}\n", PRIVATE_MODE, "tokens of callers: one line each")
    for file, secret in setup.secrets.items():
        found[file] = (f"{secret}\n", PRIVATE_MODE, "user and password of a camera")
    shows_all = not setup.cameras or all(camera.shown_url == camera.url for camera in setup.config().camera)
    found[setup.file] = (
        setup.text(),
        PUBLIC_MODE if shows_all else PRIVATE_MODE,  # names and paths only: commands of every user read it
        ", ".join(
            [f"{table}.{key}" for table, keys in setup.values.items() for key in keys]
            + [f"camera {each['name']}" for each in setup.cameras]
        )
        or "nothing: defaults",
    )
    if setup.is_installed:
        profile = asyncio.run(matching_profile(setup.config()))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        high, most = memory_limits(
            min(memory, group_limit_bytes() or memory), profile.budget.memory_bytes if profile else 0
        )
        text = f"# Written by `edge-gateway setup`.\n[Service]\nMemoryHigh={high}M\nMemoryMax={most}M\n"
        found[DROP_IN] = (text, PUBLIC_MODE, f"memory of the service: at most {most} MiB")
    return found


def _write(setup: Setup, files: Mapping[Path, tuple[str, int, str]]) -> None:
    """Write all files, each whole, owned by root and by the group of the service."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for file, (text, mode, _) in files.items():
            durable.make_folder(file.parent, 0o755)
            with durable.replacing(file, mode, durable.temporary(file.parent)) as staged:
                staged.write(text.encode())
                if setup.unit and os.geteuid() == 0 and mode == PRIVATE_MODE:
                    group = service_account(None)[0].group
                    shutil.chown(staged.fileno(), group=int(group) if group.isdecimal() else group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_booted() -> bool:
    """Return True if systemd runs here (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def _systemctl(*words: str) -> None:
    """Call systemctl where systemd runs. Raises ConfigurationError if it fails."""
    if not is_booted():
        return
    done = subprocess.run(["systemctl", *words], check=False, capture_output=True, text=True)  # noqa: S607
    if done.returncode:
        problem = f"systemctl {shlex.join(words)}: {done.stderr.strip()}"
        raise ConfigurationError(f"the settings are written, but {problem}; see: journalctl -u edge-gateway -n 20")


def _risks(config: Config) -> Iterator[str]:
    if all(address.private for address in config.http_listen):
        return
    if not config.tls.cert:
        yield "HTTP is not encrypted: others on the network can read requests and tokens; set [tls]"
    if not (config.auth.tokens_file or config.tls.client_ca):
        yield "anyone on the network may send requests, by [auth] anonymous = true; set tokens_file in its place"


def _print(setup: Setup, files: Mapping[Path, tuple[str, int, str]], *, restarted: bool) -> None:
    files = {
        file: ("[withheld]\n" if file in setup.secrets else text, mode, what)
        for file, (text, mode, what) in files.items()
    }
    dry, risks = setup.arguments.dry_run, [*_risks(setup.config())]
    following = [] if restarted else [f"edge-gateway run --config {shlex.quote(str(setup.main))}"]
    if setup.is_installed and not restarted:
        following = ["sudo systemctl restart edge-gateway    # or, the first time: enable --now"]
    if tokens := setup.config().auth.tokens_file:
        following.append(f"edge-gateway token new NAME    # and its line into {tokens}: one more caller")
    following.append("edge-gateway doctor    # what is missing on this device")
    following.append(f"sudo cp -r MODEL {setup.config().models.dir or DEFAULT_MODELS}/    # your models")
    if setup.arguments.json:
        written = [{"file": str(file), "what": what, "text": text} for file, (text, _, what) in files.items()]
        print_json({"written": not dry, "files": written, "token": setup.token or None, "restarted": restarted,
                    "risks": risks, "next": following})  # fmt: skip
        return
    if dry:
        for file, (text, mode, _) in files.items():
            print(f"==== {file}, mode {mode:04o}\n{text}")
        return
    print_table(("file", "what"), [(str(file), what) for file, (_, _, what) in files.items()])
    if setup.token:
        print(f"\ntoken for callers, which is not shown again:\n{setup.token}")
    for risk in risks:
        print(f"\nrisk: {risk}")
    print("\nnext:", *following, 'cameras and sensors: docs, "How to"', sep="\n  ")
