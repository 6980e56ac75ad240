"""`edge-gateway config`: the settings in force; `config check FILE`: whether a file can be used."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from gateway.cli.common import configured
from gateway.config import Config, check_listeners, gateway_id, load_config, read_security
from gateway.domain.errors import ConfigurationError
from gateway.terminal.tables import print_json, print_table


def command(arguments: argparse.Namespace) -> int:
    """Show, or check: 1 where the file has a finding."""
    if arguments.action == "check":
        return _check(arguments)
    config = configured(arguments)
    settings = effective(config)
    if arguments.json:
        print_json(settings)
    else:
        print(f"from {config.file or 'the defaults'}; this device is {gateway_id(config)}\n")
        rows = [(table, key, _shown(key, value)) for table, keys in settings.items() for key, value in keys.items()]
        print_table(("table", "key", "value"), rows)
    return 0


def effective(config: Config) -> dict[str, dict[str, Any]]:
    """Every setting by table and key, as plain values."""
    tables = dataclasses.asdict(config)
    tables.pop("file")
    listens = {name: [str(address) for address in getattr(config, f"{name}_listen")] for name in ("grpc", "http")}
    for name, listen in listens.items():
        tables[name] = {"listen": listen, **tables[name]}
        tables.pop(f"{name}_listen")
    return tables


def _shown(key: str, value: Any) -> str:
    """As it would be written in the file; "" where nothing is set."""
    if value is None:
        return ""
    return f"0o{value:o}" if key.endswith("_mode") else json.dumps(value, ensure_ascii=False)


def _check(arguments: argparse.Namespace) -> int:
    name = arguments.file or arguments.config
    problem = None
    try:
        config = load_config(Path(name) if name else None)
        name = name or config.file
        check_listeners(config, read_security(config))
    except ConfigurationError as error:
        problem = str(error)
    if arguments.json:
        print_json({"file": name, "ok": problem is None, "problem": problem})
    else:
        print(problem or f"{name or 'the defaults'}: fine")
    return 1 if problem else 0
