"""What verbs share: the configuration as the command line changes it, and the folder of another device."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config import Config, load_config, read_addresses
from gateway.domain.errors import ConfigurationError
from gateway.terminal.tables import plain


def configured(arguments: argparse.Namespace) -> Config:
    """The configuration with what the command line says laid over it. Raises ConfigurationError."""
    path = Path(arguments.config) if arguments.config else None
    return overrides(arguments)(load_config(path))


def overrides(arguments: argparse.Namespace) -> Callable[[Config], Config]:
    """What the command line changes in any configuration; SIGHUP applies it again."""
    changes: dict[str, Any] = {}
    for name in ("grpc", "http"):
        texts = getattr(arguments, name, None)
        if texts:
            changes[f"{name}_listen"] = read_addresses(texts, f"--{name}", "")
    models, mqtt, server = (getattr(arguments, name, None) for name in ("models", "mqtt", "grpc_server"))
    control = getattr(arguments, "control", None)

    def apply(config: Config) -> Config:
        laid = dict(changes)
        if models:
            laid["models"] = dataclasses.replace(config.models, dir=models)
        if mqtt:
            laid["mqtt"] = dataclasses.replace(config.mqtt, url="" if mqtt == "off" else mqtt)
        if control:
            laid["control"] = dataclasses.replace(config.control, listen=control)
        if server:
            laid["grpc"] = dataclasses.replace(config.grpc, server=server)
        return dataclasses.replace(config, **laid)

    return apply


def warn(message: str) -> None:
    """Print one line on standard error; the command goes on."""
    print(f"edge-gateway: {plain(message)}", file=sys.stderr)


def root_folder(arguments: argparse.Namespace) -> Path:
    """The folder of --root. Raises ConfigurationError where it is none."""
    root = Path(arguments.root)
    if not root.is_dir():
        raise ConfigurationError("is no folder; --root takes the root of a device's files", file=arguments.root)
    return root
