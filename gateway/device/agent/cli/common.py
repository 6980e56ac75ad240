"""Shared parts of the verbs: configuration, state folder, progress, and exit codes for the agent's errors."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.files.durable import make_folder
from gateway.common.store.errors import StoreError
from gateway.common.trust.distrust import Distrust
from gateway.device.agent.config import AgentConfig, load_config, state_folder

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


USER = "edge-agent"
"""User of the agent's service. The first `bootstrap` by root makes its home if that is the store."""
UMASK = 0o027


def configured(arguments: argparse.Namespace) -> tuple[AgentConfig, Path]:
    """Return configuration and store. Root becomes the store's owner here. Raise ConfigurationError.

    Files that only root may read must be read before this call.
    """
    config = load_config(Path(arguments.config) if arguments.config else None)
    folder = state_folder(arguments.state)
    if os.geteuid() == 0:
        _make_home(folder)
        _become_owner(folder)
    return config, folder


def _make_home(folder: Path) -> None:
    """Make the user's home if it is absent: the user itself cannot do so in /var/lib."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return
    if folder == Path(user.pw_dir) and not folder.exists():
        make_folder(folder)
        os.chown(folder, user.pw_uid, user.pw_gid)


def _become_owner(folder: Path) -> None:
    """Drop root to the store's owner: the agent's service could not replace files that belong to root."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return
    if found.st_uid == 0:
        return
    try:
        os.setgroups([found.st_gid])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)
    except OSError as error:
        problem = f"belongs to the user id {found.st_uid}, which this process may not become: {error.strerror}"
        raise ConfigurationError(f"{problem}; run edge-agent as that user", file=str(folder)) from error
    os.umask(UMASK)


@contextmanager
def errors_with_exit_codes() -> Iterator[None]:
    """Translate errors of the agent to errors with an exit code.

    A root without valid signatures becomes ConfigurationError, a failing store UnreachableError.
    """
    try:
        yield
    except Distrust as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        raise UnreachableError(str(error)) from error


class Bar:
    """Progress bar for downloads on standard error; hidden if that is not a terminal."""

    def __init__(self) -> None:
        from gateway.common.terminal.tables import progress

        self._progress: Progress = progress(in_bytes=True)
        self._task: TaskID | None = None
        self._total = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, here_bytes: int, all_bytes: int) -> None:
        """Show the progress of the blob that is being fetched."""
        if self._task is None or all_bytes != self._total:
            self._task = self._progress.add_task("fetching", total=all_bytes)
            self._total = all_bytes
        self._progress.update(self._task, completed=here_bytes)


def complain(message: str) -> None:
    """Print one line on standard error."""
    print(f"edge-agent: {' '.join(message.splitlines())}", file=sys.stderr)
