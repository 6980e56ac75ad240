"""Refusals of a replica that cannot write the publisher's folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.control.settings import DraftSettings
from fleet.problem_types import FOLDER_NOT_WRITABLE
from fleet.problems import ProblemError
from fleet.workspace import Workspace
from gateway.domain.errors import Fault, RequestError

FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


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
        problem = f"the disk of {workspace.folder} fails: {error.strerror or error}; make room or mend it, then go on"
        raise RequestError(Fault.UNAVAILABLE, problem) from error


def _not_writable(detail: str) -> ProblemError:
    return ProblemError(FOLDER_NOT_WRITABLE.status, detail, kind=FOLDER_NOT_WRITABLE)
