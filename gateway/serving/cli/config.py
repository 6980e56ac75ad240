"""Verb `edge-gateway config`: show the effective settings; `config check FILE`: check a file for the service.

Both take the fleet's settings into account that the service on this device has committed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from gateway.common.domain.access import Security
from gateway.common.domain.document import parse_toml
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.profile import Profile
from gateway.common.domain.settings_layer import NEVER, SettingsLayer, refused_keys
from gateway.common.store.text import read_text
from gateway.common.terminal.tables import print_json, print_table
from gateway.serving.assembly import matching_profile
from gateway.serving.cli.access import denials
from gateway.serving.cli.common import committed_settings, fitted
from gateway.serving.cli.mqtt_choice import broker_faults
from gateway.serving.cli.service_user import UnitAccount, service_account
from gateway.serving.config import (
    DEFAULT_FILE,
    Config,
    check_listeners,
    exposed_secrets,
    gateway_id,
    load_config,
    open_listeners,
    parse_config,
    read_security,
    state_folder,
)
from gateway.serving.domain.permissions import UserAccount

NAMES_SHOWN = 5
"""Most names in one remark."""


def command(arguments: argparse.Namespace) -> int:
    """Show or check; return 1 if the file has a finding."""
    if arguments.fleet_settings:
        return check_fleet_settings(arguments)
    if arguments.action == "check":
        return _check(arguments)
    layer = committed_settings()
    config = fitted(arguments, layer)[0]
    settings = effective(config)
    if arguments.json:
        print_json(settings)
    else:
        print(f"{_files(config)}; this device is {gateway_id(config)}\n")
        rows = [
            (table, key, _toml_value(key, value), _origin(config, table, key))
            for table, keys in settings.items()
            for key, value in keys.items()
        ]
        print_table(("table", "key", "value", "from"), rows)
    return 0


def _files(config: Config) -> str:
    """Return the names of all files, the last of which counts."""
    return "from " + (", then ".join(source.file for source in config.sources) or "the defaults")


def _origin(config: Config, table: str, key: str) -> str:
    """Return the file and line that set `key`, from the folder of the main file on; "" for a default."""
    source = next((source for source in reversed(config.sources) if source.holds(table, key)), None)
    if source is None:
        return ""
    file, line = source.file.removeprefix(f"{Path(config.file or DEFAULT_FILE).parent}/"), source.line(table, key)
    return f"{file}:{line}" if line else file


def effective(config: Config) -> dict[str, dict[str, Any]]:
    """Return every setting by table and key, as plain values."""
    tables = dataclasses.asdict(config)
    tables.pop("file")
    tables.pop("sources")
    listens = {name: [str(address) for address in getattr(config, f"{name}_listen")] for name in ("grpc", "http")}
    for name, listen in listens.items():
        tables[name] = {"listen": listen, **tables[name]}
        tables.pop(f"{name}_listen")
    tables.pop("camera")
    for index, camera in enumerate(config.camera):
        tables[f"camera[{index}]"] = {**dataclasses.asdict(camera), "url": camera.shown_url}
    return tables


def _toml_value(key: str, value: Any) -> str:
    """Return the value in the file's syntax; "" if nothing is set."""
    if value is None:
        return ""
    return f"0o{value:o}" if key.endswith("_mode") else json.dumps(value, ensure_ascii=False)


def _check(arguments: argparse.Namespace) -> int:
    name = arguments.file or arguments.config
    account, unit = service_account(arguments.user)
    findings, remarks, profile, files, excerpt = [], [], None, [], ""
    try:
        config = load_config(Path(name) if name else None, committed_settings())
        files = [source.file for source in config.sources]
        findings = list(findings_of(config, account, unit))
        security = check_all(config)
        remarks = [*security_remarks(config, security), *broker_faults(config)]
        profile = asyncio.run(matching_profile(config))
    except ConfigurationError as error:
        findings.append(str(error))
        excerpt = error.excerpt
    name = name or (files[0] if files else "")
    _print_check(arguments, Check(name, files, account.name, profile, findings, remarks, excerpt))
    return 1 if findings else 0


def findings_of(config: Config, account: UserAccount, unit: UnitAccount | None) -> Iterator[str]:
    """Yield what `account` may not use, and the finding that a named model directory is missing."""
    state = Path(unit.state) if unit and unit.state else state_folder(None)
    for setting, found in denials(config, account, state, unit.hidden if unit else ()):
        yield f"{setting}: {found.problem}; {found.remedy}"
    yield from _models_absent(config)


def check_all(config: Config) -> Security:
    """Check the files of secrets and the listeners; return the security in force. Raises ConfigurationError."""
    security = read_security(config).at(time.time())
    check_listeners(config, security)
    return security


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """Result of the check of a file and those of conf.d; `remarks` are recommendations."""

    file: str
    files: list[str]
    user: str
    profile: Profile | None
    findings: list[str]
    remarks: list[str]
    excerpt: str


def security_remarks(config: Config, security: Security) -> list[str]:
    """Return recommendations about listeners and tokens that work and could be safer."""
    tokens = security.tokens.by_digest.values() if security.tokens else ()
    remarks = [
        f"auth.anonymous: anyone on the network may call {address}; set [auth] tokens_file or [tls] client_ca"
        for address in open_listeners(config, security)
    ]
    remarks += [f"{setting}: {'; '.join(problems)}" for setting, problems in exposed_secrets(config).items()]
    if plain := [token.holder.name for token in tokens if not token.hashed]:
        remarks.append(
            f"auth.tokens_file: {_names(plain)} in clear text; write sha256:HEX (printf %s TOKEN | sha256sum), or "
            "make new ones: edge-gateway token new NAME"
        )
    if expired := [token.holder.name for token in tokens if token.expired]:
        remarks.append(f"auth.tokens_file: {_names(expired)} expired; remove them, or make new ones")
    return remarks


def _names(names: list[str]) -> str:
    """Return "tokens of a, b and 3 more"."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"tokens of {', '.join(names[:NAMES_SHOWN])}{more}"


def _models_absent(config: Config) -> list[str]:
    """Return the finding that the named model directory is missing, without which the daemon does not start."""
    folder = Path(config.models.dir or "/")
    try:
        if S_ISDIR(folder.stat().st_mode):
            return []
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:  # not readable by this user: the check of permissions reports it
        return []
    return [f"models.dir: {folder} is no folder; create it, or name another one"]


def _print_check(arguments: argparse.Namespace, check: Check) -> None:
    profile, findings = check.profile, check.findings
    if arguments.json:
        facts = {"file": check.file, "ok": not findings, "problem": findings[0] if findings else None}
        facts |= {"files": check.files, "findings": findings, "remarks": check.remarks, "user": check.user}
        print_json({**facts, "profile_from": profile.origin if profile else None})
        return
    read = ", ".join(check.files) or "the defaults"
    print("\n".join([*findings, *filter(None, [check.excerpt])]) or f"{read}: fine, for user {check.user}")
    for remark in check.remarks:
        print(f"recommended: {remark}")
    if profile:
        print(f"device profile {profile.name}, from {profile.origin}")


def check_fleet_settings(arguments: argparse.Namespace) -> int:
    """Check the file over the defaults; return 1 if it has a finding."""
    file = Path(arguments.fleet_settings)
    findings, remarks = checked(read_text(file), str(file))
    if arguments.json:
        print_json({"file": str(file), "ok": not findings, "findings": findings, "remarks": remarks})
        return 1 if findings else 0
    print("\n".join(findings) or f"{file}: fine, as settings of a fleet")
    for remark in remarks:
        print(f"warning: {remark}")
    return 1 if findings else 0


def checked(toml: str, file: str) -> tuple[list[str], list[str]]:
    """Return findings, and remarks: devices refuse some settings unless a policy of theirs permits them."""
    try:
        document = parse_toml(toml, file)
        parse_config("", "", SettingsLayer(file, toml))
    except ConfigurationError as error:
        return [str(error)], []
    never = sorted(document.keys() & NEVER)
    findings = [f"{file}: [{table}] never comes from a fleet; take it out" for table in never]
    held = [key for key in refused_keys(document, ()) if key.partition(".")[0] not in NEVER]
    refused = "devices refuse these settings unless a policy of theirs permits it"
    return findings, [f'{key}: {refused}: "settings": ["{key}"]' for key in held]
