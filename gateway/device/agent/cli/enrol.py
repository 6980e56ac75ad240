"""`edge-agent enrol URL`: join a fleet over the network by a token or a serial that the fleet knows."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.text import read_text
from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.cli.pinning import Pinning
from gateway.device.agent.config import state_folder
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch.certificate import read_held

STANDARD_INPUT = "-"
LINE_LIMIT_CHARS = 4096


def command(arguments: argparse.Namespace) -> int:
    """Enrol this device. With a new token, replace a certificate that the fleet no longer accepts."""
    application = EnrolmentInput(  # before `configured` drops privileges: the files may be readable for root only
        arguments.url,
        _token(arguments),
        arguments.serial or "",
        _filled(arguments.ca, "certificate") if arguments.ca else "",
    )
    if not application.token and not application.serial:
        raise ConfigurationError("a device enrols with --token-file, --token or a --serial that the fleet knows")
    with Pinning(state_folder(arguments.state)) as pinning:
        config, folder = configured(arguments)
        with errors_with_exit_codes():
            identity = enrol(application, folder, config)
        pinning.keep(identity.root)
    held = read_held(folder)
    until = f", until {held.expires:%F}, renewed by itself" if held else ""
    print(f"this device is {identity.device}; it asks {identity.assignment} and keeps its store in {folder}")
    print(f"its certificate is in {folder}{until}")
    return 0


def _token(arguments: argparse.Namespace) -> str:
    file = arguments.token_file
    if file == STANDARD_INPUT:
        return sys.stdin.readline(LINE_LIMIT_CHARS).strip()
    return _filled(file, "token").strip() if file else arguments.token or ""


def _filled(file: str, what: str) -> str:
    """Return the text of a file that is not empty: without it, a device would trust or be something else."""
    text = read_text(Path(file))
    if not text.strip():
        raise ConfigurationError(f"holds no {what}; write it again", file=file)
    return text
