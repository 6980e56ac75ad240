"""`edge-gateway run`: the daemon, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal


def command(arguments: argparse.Namespace) -> int:
    """Serve; 0 once drained after SIGTERM or SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it would end a process that does not catch it yet
    gc.disable()  # the daemon enables it once it has started
    from gateway.cli.common import configured, overrides
    from gateway.config import state_folder
    from gateway.daemon import Daemon

    config = configured(arguments)

    async def serve() -> None:
        daemon = Daemon(config, state_folder(arguments.state), overrides(arguments))
        # Callbacks run once run() first waits. It has caught its signals by then.
        asyncio.get_running_loop().call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGHUP})
        await daemon.run()

    asyncio.run(serve())
    return 0
