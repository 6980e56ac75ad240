"""`edge-gateway run`: the daemon, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc

from gateway.cli.common import configured, overrides
from gateway.config import state_folder
from gateway.daemon import Daemon


def command(arguments: argparse.Namespace) -> int:
    """Serve; 0 once drained after SIGTERM or SIGINT."""
    gc.disable()  # the daemon enables it once it has started
    config = configured(arguments)

    async def serve() -> None:
        await Daemon(config, state_folder(arguments.state), overrides(arguments)).run()

    asyncio.run(serve())
    return 0
