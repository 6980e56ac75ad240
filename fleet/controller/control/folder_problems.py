"""Refusals of a replica that cannot write or lock the publisher's folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fleet.controller.control.settings import DraftSettings
from fleet.controller.problems import ProblemError
from fleet.disk import locked
from fleet.problem_types import FOLDER_NOT_WRITABLE
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import Fault, RequestError, UnreachableError

FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
LOCKED_RETRY_S = 1.0
"""Retry-After, in seconds, while another request or command works in the folder."""


@contextmanager
def folder_problems(workspace: Workspace, settings: DraftSettings) -> Iterator[None]:
    """Raise ProblemError if this replica takes no drafts or may not write; RequestError for other OSErrors."""
    if not settings.accepted:
        problem = "this replica has a copy of the publisher's folder ([drafts] accepted = false)"
        raise _not_writable(f"{problem}; ask the one that has the folder itself")
    try:
        yield
    except OSError as error:
        if error.errno in FORBIDDEN:
            problem = f"this replica cannot write {workspace.folder}: {error.strerror}"
            raise _not_writable(f"{problem}; ask another one, or let its user write there") from error
        problem = f"the disk of {workspace.folder} fails: {error.strerror or error}"
        raise RequestError(Fault.UNAVAILABLE, f"{problem}; free space on it or repair it, then try again") from error


@contextmanager
def folder_lock(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold a folder's lock. Raise RequestError OVERLOADED if another one keeps it for longer than `wait_s`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, wait_s))
        except UnreachableError as error:
            raise RequestError(Fault.OVERLOADED, str(error), retry_after_s=LOCKED_RETRY_S) from None
        yield


def _not_writable(detail: str) -> ProblemError:
    return ProblemError(FOLDER_NOT_WRITABLE.status, detail, kind=FOLDER_NOT_WRITABLE)
