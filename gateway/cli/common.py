"""Shared parts of the verbs: the configuration with the command line's changes, and the root of another device."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config import Config, load_config, read_addresses
from gateway.domain.errors import ConfigurationError
from gateway.domain.settings_layer import SettingsLayer
from gateway.terminal.tables import plain


def configured(arguments: argparse.Namespace, layer: SettingsLayer | None = None) -> Config:
    """Return the configuration with settings of the fleet and the command line's changes. Raises ConfigurationError."""
    path = Path(arguments.config) if arguments.config else None
    return overrides(arguments)(load_config(path, layer))


def overrides(arguments: argparse.Namespace) -> Callable[[Config], Config]:
    """Return a function that applies the command line's changes to a configuration; SIGHUP applies it again."""
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
    """Print one line on standard error; the command continues."""
    print(f"edge-gateway: {plain(message)}", file=sys.stderr)


def root_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of --root. Raises ConfigurationError if it is no folder."""
    root = Path(arguments.root)
    if not root.is_dir():
        raise ConfigurationError("is no folder; --root takes the root of a device's files", file=arguments.root)
    return root
