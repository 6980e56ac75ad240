"""Shared parts of the verbs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.installation import HERE
from gateway.common.store.errors import StoreError
from gateway.common.trust.distrust import Distrust
from gateway.device.domain.software_request import PACKAGES_OWN
from gateway.device.installer.places import VersionFolder
from gateway.device.installer.record import InstallRecords


def home() -> VersionFolder:
    """Return the folder of versions that this program runs from. Raise ConfigurationError for another layout."""
    place = Path(sys.prefix)
    if HERE.is_packaged:
        raise ConfigurationError(PACKAGES_OWN, file=str(place))
    if place.parent.name != "versions":
        problem = "this program does not run from an installed version; install it with make install"
        raise ConfigurationError(problem, file=str(place))
    return VersionFolder(place.parents[1])


def records(arguments: argparse.Namespace) -> InstallRecords:
    """Return the installer's files."""
    return InstallRecords(Path(arguments.state))


def check_root() -> None:
    """Raise ConfigurationError unless the process runs as root."""
    if os.geteuid() != 0:
        raise ConfigurationError("only root may change what runs here; run it with sudo")


@contextmanager
def errors_with_exit_codes() -> Iterator[None]:
    """Translate errors of store and trust to errors with an exit code."""
    try:
        yield
    except Distrust as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        raise UnreachableError(str(error)) from error
