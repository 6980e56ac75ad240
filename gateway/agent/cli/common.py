"""What the verbs share: configuration, state folder, progress, and the agent's errors as exit codes."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gateway.agent.config import AgentConfig, load_config, state_folder
from gateway.domain.errors import ConfigurationError, UnreachableError
from gateway.store.durable import make_folder
from gateway.store.errors import StoreError
from gateway.trust.distrust import Distrust

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


USER = "edge-agent"
"""Whose store is made by root's first `bootstrap`, where that user exists and the store is its home."""
UMASK = 0o027


def configured(arguments: argparse.Namespace) -> tuple[AgentConfig, Path]:
    """The configuration and the device's folder; from here on root is whom that belongs to. Raises ConfigurationError.

    What only root may read must be read before.
    """
    config = load_config(Path(arguments.config) if arguments.config else None)
    folder = state_folder(arguments.state)
    if os.geteuid() == 0:
        _make_home(folder)
        _become_owner(folder)
    return config, folder


def _make_home(folder: Path) -> None:
    """The user's own folder, where it is not there yet: it could not make that itself in root's /var/lib."""
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return
    if folder == Path(user.pw_dir) and not folder.exists():
        make_folder(folder)
        os.chown(folder, user.pw_uid, user.pw_gid)


def _become_owner(folder: Path) -> None:
    """No file of root's must ever land in the store: its owner, the agent's service, could not replace it."""
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
def told() -> Iterator[None]:
    """What the agent raises, as errors with an exit code: a root that nobody signed was given wrongly, a store that
    fails is out of reach."""
    try:
        yield
    except Distrust as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        raise UnreachableError(str(error)) from error


class Bar:
    """A progress bar for downloads on standard error; nothing where that is no terminal."""

    def __init__(self) -> None:
        from gateway.terminal.tables import progress

        self._progress: Progress = progress(in_bytes=True)
        self._task: TaskID | None = None
        self._total = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, here_bytes: int, all_bytes: int) -> None:
        """Show how far the blob is that is being fetched."""
        if self._task is None or all_bytes != self._total:
            self._task = self._progress.add_task("fetching", total=all_bytes)
            self._total = all_bytes
        self._progress.update(self._task, completed=here_bytes)


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"edge-agent: {' '.join(message.splitlines())}", file=sys.stderr)
