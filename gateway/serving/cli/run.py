"""Verb `edge-gateway run`: the daemon, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.serving.config import Config
    from gateway.serving.fleet_settings import Life

FILES_BESIDE = 512
"""Descriptors of everything but connections: models, libraries, state, connections that are being closed."""
THREADS_END_S = 5.0
"""Longest wait of a stop for threads that read or write files: one may hang on a disk."""
HELD = frozenset({signal.SIGHUP, signal.SIGTERM, signal.SIGINT})
"""Signals that wait while a process is replaced by the next one: neither of the two handles them in between."""


def command(arguments: argparse.Namespace) -> int:
    """Serve; return 0 once drained after SIGTERM or SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it would end a process that does not handle it yet
    gc.disable()  # the daemon enables it once it has started
    from gateway.common.domain.errors import ConfigurationError
    from gateway.common.notify import Notifier, failures_in_a_row
    from gateway.common.wire.kept_listeners import KEPT
    from gateway.serving.config import state_folder
    from gateway.serving.fleet_settings import WITHOUT, begin, execute_again, is_on_trial, take_back

    notifier, failures = Notifier.from_environment(os.environ), failures_in_a_row(os.environ)
    notifier.status(failures)
    KEPT.inherit(os.environ)
    life = begin(state_folder(arguments.state))
    try:
        restart = _serve(arguments, life, failures)
    except Exception as error:
        reason = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        notifier.status(f"ended: {reason}; see: journalctl -u edge-gateway{failures and f' ({failures})'}")
        problem = f"the gateway could not start with them: {error}"
        if is_on_trial(life):
            take_back(life, problem)
            restart = ""
        elif life.in_force and isinstance(error, ConfigurationError):
            restart = f"{WITHOUT} {problem}"
        else:
            KEPT.close()
            raise
    if restart is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        execute_again(restart)
    if threading.active_count() > 1:
        # Such as that of an abandoned run. Python ends it by unwinding, for which a library in C++ aborts the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _serve(arguments: argparse.Namespace, life: Life, failures: str) -> str | None:
    """Serve until the daemon ends; return what `execute_again` takes, or None. Raises ConfigurationError."""
    from gateway.common.wire.direct_loop import run
    from gateway.serving.cli.common import overrides
    from gateway.serving.daemon import Daemon

    config, life = _configured(arguments, life)
    _allow_files(config)
    daemon = Daemon(config, life, overrides(arguments), failures)

    async def serve() -> None:
        asyncio.get_running_loop().set_default_executor(_ThreadPool())
        # Callbacks run once run() first waits. Its signal handlers are set by then.
        asyncio.get_running_loop().call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, HELD)
        await daemon.run()
        if daemon.restart is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, HELD)

    run(serve())
    return daemon.restart


class _ThreadPool(ThreadPoolExecutor):
    """Threads of the event loop. Their end is awaited for a limited time."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait as `asyncio.run` wants, THREADS_END_S at most; `command` and `execute_again` end what is left."""
        given = {"wait": wait, "cancel_futures": cancel_futures}
        ending = threading.Thread(target=super().shutdown, kwargs=given, daemon=True)
        ending.start()
        ending.join(THREADS_END_S)


def _configured(arguments: argparse.Namespace, life: Life) -> tuple[Config, Life]:
    """Return the configuration, and the life with it. Committed settings that no longer fit are left out.

    Raises ConfigurationError for the device's own settings, and for those on trial.
    """
    from gateway.serving.cli.common import configured_with, fitted

    if life.ends_in_s is not None:
        config, problem = configured_with(arguments, life.layer), ""
    else:
        config, problem = fitted(arguments, life.layer)
    return config, life.without(problem) if problem or not config.fleet.settings else life


def _allow_files(config: Config) -> None:
    """Allow as many open files as there may be connections.

    A connection that cannot be accepted because no descriptor is left also delays callers whose share is not used up.
    Handshakes of HTTP are counted separately from its connections.
    """
    from gateway.common.terminal.open_files import allow_open_files

    connections = config.grpc.max_connections + 2 * config.http.max_connections + config.control.max_connections
    wanted = connections + FILES_BESIDE
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        print(
            f"the connections that [grpc], [http] and the control socket allow take {wanted} open files, this process "
            f"may have {allowed}; raise LimitNOFILE or `ulimit -Hn`, or lower max_connections",
            file=sys.stderr,
        )
