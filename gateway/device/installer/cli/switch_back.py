"""`edge-software switch-back`: run the previous version again."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.device.installer.cli.common import check_root, errors_with_exit_codes, home, records
from gateway.device.installer.commands import UNITS, CommandError, Units
from gateway.device.installer.places import CONFIRMED, CURRENT
from gateway.device.installer.settings import load_config


def command(arguments: argparse.Namespace) -> int:
    """Point both links to the previous version, and restart the units that run."""
    check_root()
    settings = load_config(Path(arguments.config) if arguments.config else None).software
    place, files = home(), records(arguments)
    with errors_with_exit_codes():
        update = files.update()
    current, confirmed = place.leads_to(CURRENT), place.leads_to(CONFIRMED)
    before = confirmed if current != confirmed else update.previous if update else ""
    if not before or before == current or not place.environment(before).is_dir():
        raise ConfigurationError("no previous version is kept; install one with make install", file=str(place.versions))
    for link in (CURRENT, CONFIRMED):
        place.point(link, before)
    units = Units(settings.unit_timeout_s, bool)
    try:
        units.restart([unit for unit in UNITS if units.states()[unit].wanted])
    except CommandError as error:
        print(f"{before} is in place, but the units were not restarted: {error}; restart edge-gateway and edge-agent")
        return 1
    print(f"{before} runs again, in place of {current}")
    return 0
