"""`edge-fleet serve`: run the controller until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from securesystemslib.signer import Signer

from fleet import events
from fleet.cli.common import asker
from fleet.controller.config import load_config
from fleet.controller.serving.settings import ServingSettings
from fleet.publisher.keys import PUBLIC_SUFFIX, has_secret, load_signer
from gateway import __version__
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.common.terminal.open_files import allow_open_files

if TYPE_CHECKING:
    from fleet.controller.app import Controller

FILES_BESIDE = 256
"""Files open in addition to connections and the files that are sent."""
_log = logging.getLogger(__name__)
LINE = "%(levelname)s %(name)s: %(message)s"


def command(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return 0. With --json, print what is served as one line of JSON."""
    logging.basicConfig(stream=sys.stderr, level=arguments.log_level.upper(), format=LINE)
    for quiet in ("alembic", "urllib3", "tuf"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    folder = Path(arguments.dir)
    if not folder.is_dir():  # a mistyped one must not begin another fleet, with another CA
        raise ConfigurationError("is not a folder; name the publisher's with --dir", file=str(folder))
    config = load_config(folder)
    database, listening = config.database.url.partition(":")[0] or "fleet.sqlite", ", ".join(config.listen.addresses)
    _log.info(events.CONTROLLER_STARTING, __version__, folder.resolve(), database, listening)
    from fleet.controller.app import Controller, Origin  # takes seconds on a small machine

    signers, ask = _signers(folder / "keys", arguments), asker(arguments, attended=False)
    _allow_files(config.serve)
    try:
        controller = Controller(Origin(folder, config, signers, ask=ask))
        from fleet.cli.observed import observe
        from fleet.controller.control.checks import findings

        # No finding keeps this replica from what it can do.
        try:
            for finding in findings(observe(folder, config)):
                _log.warning(events.PROBLEM_FOUND, finding.where, finding.problem, finding.remedy)
        except (ConfigurationError, OSError) as error:
            _log.warning(events.CHECKS_NOT_COMPLETED, error)
        asyncio.run(_serve(controller, as_json=arguments.json))
    except RequestError as error:
        if error.fault is not Fault.UNAVAILABLE:
            raise
        raise UnreachableError(error.message) from None
    return 0


async def _serve(controller: Controller, *, as_json: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    addresses = await controller.start()
    url, listening = controller.control.url, [*map(str, addresses)]
    words = f"serving {url} on {', '.join(listening)}"
    print(json.dumps({"url": url, "addresses": listening}) if as_json else words, flush=True)
    await stop.wait()
    await controller.stop()


def _signers(folder: Path, arguments: argparse.Namespace) -> Sequence[Signer]:
    """Return the online keys whose secret is in `folder` or in a token. Of other keys only the public part is there.

    Raise ConfigurationError, UnreachableError.
    """
    files = [file for file in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")) if has_secret(file)]
    return [load_signer(file, asker(arguments)) for file in files]


def _allow_files(settings: ServingSettings) -> None:
    """Allow as many open files as there may be connections: without a free one no connection is accepted.

    systemd's unit allows them. A shell allows 1,024 at first, and more on request.
    """
    wanted = settings.max_connections + settings.max_handshakes + settings.max_requests + FILES_BESIDE
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        _log.warning(events.OPEN_FILES_LIMITED, wanted, allowed)
