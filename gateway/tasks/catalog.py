"""All kinds of tasks by the name that manifests give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.document import Table
from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import ModelManifest
from gateway.tasks.task import Task

MANIFEST = "manifest.toml"
KINDS: Mapping[str, Callable[[ModelManifest, Table], Task]] = {}
"""Constructors by kind. They raise ConfigurationError for options and outputs that do not fit."""


def task_of(manifest: ModelManifest) -> Task | None:
    """Return the task of a model, or None if its manifest has no table `[task]`.

    Raises ConfigurationError for an unknown kind, and for options and outputs that do not fit it.
    """
    if manifest.task_options is None:
        return None
    make = KINDS.get(manifest.task)
    if make is None:
        problem = f"{manifest.task!r:.80} is no known kind; known ones are {', '.join(sorted(KINDS))}"
        raise ConfigurationError(problem, file=MANIFEST, table="task", key="kind")
    options = Table(dict(manifest.task_options), file=MANIFEST, name="task")
    task = make(manifest, options)
    options.finish()
    return task
