"""Shared parts of the verbs: the configuration with the command line's changes, and the root of another device."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings_layer import SettingsLayer
from gateway.common.store.errors import StoreError
from gateway.common.terminal.tables import plain
from gateway.serving.cli.service_user import installed_unit
from gateway.serving.config import Config, load_config, read_addresses, state_folder
from gateway.serving.store.settings_record import read_record

BOARD_VARIABLE = "EDGE_GATEWAY_BOARD"
"""Variable of the environment that precedes `[hardware] board`, for containers."""


def configured(arguments: argparse.Namespace) -> Config:
    """Return the configuration with the fleet's committed settings and the command line's changes.

    Raises ConfigurationError.
    """
    return fitted(arguments, committed_settings(getattr(arguments, "state", None)))[0]


def fitted(arguments: argparse.Namespace, layer: SettingsLayer | None) -> tuple[Config, str]:
    """Return the configuration with settings of the fleet, and why they are left out ("": they are not).

    Raises ConfigurationError for the device's own settings.
    """
    try:
        return configured_with(arguments, layer), ""
    except ConfigurationError as error:
        if layer is None:
            raise
        problem = str(error)
    config = configured_with(arguments, None)
    warn(f"the fleet's settings are left out: {problem}")
    return config, problem


def configured_with(arguments: argparse.Namespace, layer: SettingsLayer | None) -> Config:
    """Return the configuration with settings of the fleet and the command line's changes. Raises ConfigurationError."""
    path = Path(arguments.config) if arguments.config else None
    return overrides(arguments)(load_config(path, layer))


def committed_settings(state: str | None = None) -> SettingsLayer | None:
    """Return the fleet's settings that the gateway on this device has committed; None if there are none to be read.

    They are in the folder `state`, else in that of the installed service, else in that of the caller.
    """
    unit = None if state else installed_unit()
    try:
        stored = read_record(Path(unit.state) if unit and unit.state else state_folder(state)).committed
    except StoreError as error:
        warn(f"the fleet's settings are not taken into account: {error}")
        return None
    return stored.layer if stored else None


def overrides(arguments: argparse.Namespace) -> Callable[[Config], Config]:
    """Return a function that applies the changes of command line and environment; SIGHUP applies it again."""
    changes: dict[str, Any] = {}
    for name in ("grpc", "http"):
        texts = getattr(arguments, name, None)
        if texts:
            changes[f"{name}_listen"] = read_addresses(texts, f"--{name}", "")
    models, mqtt, control = (getattr(arguments, name, None) for name in ("models", "mqtt", "control"))

    def apply(config: Config) -> Config:
        laid = dict(changes)
        if models:
            laid["models"] = dataclasses.replace(config.models, dir=models)
        if mqtt:
            off = {"url": "", "broker": (), "route": ()}
            laid["mqtt"] = dataclasses.replace(config.mqtt, **(off if mqtt == "off" else {"url": mqtt}))
        if control:
            laid["control"] = dataclasses.replace(config.control, listen=control)
        if board := os.environ.get(BOARD_VARIABLE):
            laid["hardware"] = dataclasses.replace(config.hardware, board=board)
        return dataclasses.replace(config, **laid)

    return apply


def warn(message: str) -> None:
    """Print one line on standard error; the command continues."""
    print(f"edge-gateway: {plain(message)}", file=sys.stderr)


def clean_up_on_signals() -> None:
    """Let SIGTERM, and SIGHUP unless it is ignored, end the command as an exception, so that nothing is left."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda received, _: sys.exit(128 + received))


def root_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of --root. Raises ConfigurationError if it is no folder."""
    root = Path(arguments.root)
    if not root.is_dir():
        raise ConfigurationError("is no folder; --root takes the root of a device's files", file=arguments.root)
    return root
