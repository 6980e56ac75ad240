"""Verb `edge-gateway run`: the daemon, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Config

FILES_BESIDE = 512
"""Descriptors of everything but connections: models, libraries, state, connections that are being closed."""


def command(arguments: argparse.Namespace) -> int:
    """Serve; return 0 once drained after SIGTERM or SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it would end a process that does not handle it yet
    gc.disable()  # the daemon enables it once it has started
    from gateway.cli.common import configured, overrides
    from gateway.config import state_folder
    from gateway.daemon import Daemon

    config = configured(arguments)
    _allow_files(config)

    async def serve() -> None:
        daemon = Daemon(config, state_folder(arguments.state), overrides(arguments))
        # Callbacks run once run() first waits. Its signal handlers are set by then.
        asyncio.get_running_loop().call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGHUP})
        await daemon.run()

    asyncio.run(serve())
    return 0


def _allow_files(config: Config) -> None:
    """Allow as many open files as there may be connections.

    A connection that cannot be accepted because no descriptor is left also delays callers whose share is not used up.
    Handshakes of HTTP are counted separately from its connections.
    """
    from gateway.terminal.open_files import allow_open_files

    connections = config.grpc.max_connections + 2 * config.http.max_connections + config.control.max_connections
    wanted = connections + FILES_BESIDE
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        print(
            f"the connections that [grpc], [http] and [control] allow take {wanted} open files, this process may have "
            f"{allowed}; raise LimitNOFILE or `ulimit -Hn`, or lower max_connections",
            file=sys.stderr,
        )
